"""The rules about inputs from outside the job: environment, volumes, Ray's runtime environment, labels of queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from dljob.spec import cel
from dljob.spec.model import DLJobSpec
from dljob.spec.rules.findings import Check, Finding, one_each
from dljob.spec.text.tree import Loc
from dljob.spec.text.words import did_you_mean

PLACES = ("/dljob", "/etc/dljob")
"""Folders that dljob mounts in every Ray pod."""
OUR_LABELS = ("ray.io/cluster", "ray.io/node-type", "ray.io/group")
"""Labels that KubeRay sets, beside dljob's own."""

RUNTIME_ENV = (
    *("working_dir", "py_modules", "py_executable", "excludes", "pip", "uv", "conda", "env_vars", "config"),
    *("image_uri", "container", "worker_process_setup_hook", "java_jars", "nsight", "_nsight"),
)
"""Source: Ray 2.60, RuntimeEnv.known_fields, and the plugins it brings."""


def is_ours(label: str) -> bool:
    """Return whether only dljob or KubeRay may set a label."""
    return label.startswith("dljob.io/") or label in OUR_LABELS


def inside(path: str, places: tuple[str, ...] = PLACES) -> str:
    """Return the reserved folder that contains a path; empty where none does."""
    path = path.rstrip("/")
    # With the slash: `/dljob-data` does not lie in `/dljob`.
    return next((place for place in places if path == place or path.startswith(f"{place}/")), "")


def _env_from(spec: DLJobSpec) -> Iterator[Finding]:
    for index, source in enumerate(spec.env_from):
        if (source.config_map_ref is None) == (source.secret_ref is None):
            count_text = "both are given" if source.config_map_ref else "none is given"
            yield Finding(("spec", "envFrom", index), f"{cel.ENV_FROM.message}; {count_text}")
    yield from one_each(("spec", "imagePullSecrets"), [secret.name for secret in spec.image_pull_secrets], "secrets")


def _runtime_env(spec: DLJobSpec) -> Iterator[Finding]:
    loc: Loc = ("spec", "runtimeEnv")
    for name, value in spec.runtime_env.items():
        if name not in RUNTIME_ENV:
            yield Finding((*loc, name), "unknown field", did_you_mean(name, RUNTIME_ENV), at_key=True)
        if name == "working_dir" and not is_uri(value):
            hint = "for a folder of this machine use code.workingDir with `dljob submit`"
            yield Finding((*loc, name), f"must be a URI that pods can reach, not {value!r:.60}", hint)
        # runtimeEnv is a free object, so the value may have any type.
        modules = cast("list[object]", value if name == "py_modules" and isinstance(value, list) else [])
        if name == "py_modules" and (not modules or not all(is_uri(item) for item in modules)):
            yield Finding((*loc, name), "must be a list of URIs that pods can reach")


def is_uri(value: object) -> bool:
    """Return whether a value of a runtime environment is a URI, and no folder."""
    return isinstance(value, str) and "://" in value


# Two mounts at one path, or one over dljob's own folder, would make pods that cannot start.
def _volumes(spec: DLJobSpec) -> Iterator[Finding]:
    journal = spec.master.journal
    paths: dict[Loc, str] = {}
    if journal.claim_name:
        loc: Loc = ("spec", "master", "journal")
        if journal.path is None:
            yield Finding(
                (*loc, "claimName"), cel.CLAIM_PATH.message, "say where it is mounted: path: /journal", (loc,)
            )
        elif not journal.path.startswith("/"):
            yield Finding((*loc, "path"), "must be absolute: a claim is mounted there", f"write /{journal.path}")
        else:
            paths[(*loc, "path")] = journal.path.rstrip("/")
    if spec.checkpoint and spec.checkpoint.path is None:
        if spec.checkpoint.claim_name:
            claim_loc: Loc = ("spec", "checkpoint", "claimName")
            yield Finding(claim_loc, cel.CLAIM_PATH.message, "say where it is mounted: path: /ckpt", (claim_loc[:-1],))
    elif spec.checkpoint and spec.checkpoint.path:
        loc = ("spec", "checkpoint", "path")
        if spec.checkpoint.path.rstrip("/") in paths.values():
            yield Finding(loc, "is the path of master.journal, too", "give each a folder of its own")
        paths[loc] = spec.checkpoint.path
    for loc, path in paths.items():
        place = inside(path)
        if place:
            yield Finding(loc, f"{path} lies in {place}, which is reserved for dljob", "mount it elsewhere")


def checkpoint_warnings(spec: DLJobSpec) -> Iterator[Finding]:
    """Yield cuts that are valid, and that the next attempt of the job will not find."""
    checkpoint = spec.checkpoint
    if checkpoint is not None and checkpoint.every_steps is not None and checkpoint.path is None:
        words = "without a path cuts outlive processes and PrimeMaster only: the loss of the head or cluster ends them"
        yield Finding(("spec", "checkpoint", "everySteps"), words, "path: a folder on a volume of all pods")


# Labels for queues have typed fields; a contradiction would otherwise be resolved in silence.
def _queue(spec: DLJobSpec) -> Iterator[Finding]:
    loc: Loc = ("spec", "scheduling", "labels")
    fields = {
        "kueue.x-k8s.io/queue-name": ("queueName", spec.scheduling.queue_name),
        "kueue.x-k8s.io/priority-class": ("priorityClassName", spec.scheduling.priority_class_name),
    }
    for name, value in spec.scheduling.labels.items():
        if is_ours(name):
            yield Finding((*loc, name), f"{name} is set by dljob", "choose another", at_key=True)
        field, field_value = fields.get(name, ("", None))
        if field_value not in (None, value):
            yield Finding((*loc, name), f"says {value}, scheduling.{field} says {field_value}", "keep one")


OUTSIDE_RULES: tuple[Check, ...] = (_env_from, _runtime_env, _volumes, _queue)
