"""RayJob and RayCluster: the driver becomes a role with a quota on a machine of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from dljob.api.torchrun import FOR_EVER
from dljob.convert import command
from dljob.convert.kubeflow import managed
from dljob.convert.meta import head, scalar
from dljob.convert.pods import ConvertedPod
from dljob.convert.raycluster import cluster
from dljob.convert.source import UNKNOWN, Draft, UnfitError
from dljob.spec.quantity import GRAIN, parse_cpu
from dljob.spec.rules.outside import RUNTIME_ENV, is_uri
from dljob.spec.text import tree
from dljob.spec.text.tree import Loc
from dljob.spec.variables import is_reserved
from dljob.telemetry.wording import counted

AGAIN = {"name": "backoff-limit", "onReasons": ["UserError", "ImportError"], "action": "RestartProcess"}
"""Restart rule for errors of the driver itself: KubeRay does not look at why it failed, and starts it again."""
_SUBMITTER = "the operator submits the driver itself: there is no pod for that"
_HARMLESS = {
    "jobId": "dljob names its submissions itself",
    "metadata": "Ray's own table of jobs shows it, and nothing else reads it",
    "submitterPodTemplate": _SUBMITTER,
    "submitterConfig": _SUBMITTER,
    "submissionMode": _SUBMITTER,
    "entrypointNumCpus": "the driver has a machine of its own",
    "ttlSecondsAfterFinished": "the RayCluster is deleted as soon as the job has ended",
}
_RETAIN = "cleanupPolicy: Retain keeps it"
_AT_ONCE = f"the RayCluster is deleted as soon as the job has ended: {_RETAIN}"
_LOST_DELETIONS = {
    "DeleteNone": f"the RayCluster is deleted after this end of the job, too: {_RETAIN} after any",
    "DeleteWorkers": f"the head is deleted with the workers, as soon as the job has ended: {_RETAIN}",
    "DeleteSelf": "the job's own object stays: ttlSecondsAfterFinished deletes it",
}


def ray_job(draft: Draft, argv: Sequence[str], workdir: str) -> None:
    """Convert a RayJob."""
    source = draft.source
    head(draft)
    source.stands(("spec",), ("spec",))
    text = source.text(("spec", "entrypoint"))
    if source.value(("spec", "submissionMode")) == "InteractiveMode" and not text and not argv:
        raise UnfitError(("spec", "submissionMode"), "InteractiveMode: the job has no program", "add --command")
    if not text and not argv:
        raise UnfitError(("spec",), "has no entrypoint", "add --command")
    line = command.of_words(argv) if argv else command.of_text(text or "")
    role: Loc = ("spec", "roles", 0)
    draft.put(role, {"name": "driver", "reserve": "Quota"})
    for key, at in source.keys(("spec",)):
        _field(draft, key, at)
    selected = draft.get(("spec", "rayClusterRef")) is not None
    if not selected and draft.get(("spec", "cleanupPolicy")) is None:
        draft.remarks.append(f"KubeRay keeps the RayCluster of a job that has ended, and dljob deletes it: {_RETAIN}")
    pod = None if selected else cluster(draft, ("spec", "rayClusterSpec"))
    folder = workdir or _folder(draft, pod, line)
    _driver(draft, pod, role)
    _attempts(draft, role)
    draft.put((*role, "entrypoint", "command"), command.argv(line, folder))
    if argv:
        source.harmless(("spec", "entrypoint"), "--command takes its place")
    elif text:
        source.carry(("spec", "entrypoint"), (*role, "entrypoint", "command"))


def _field(draft: Draft, key: str, at: Loc) -> None:
    """Convert a field of a RayJob's spec."""
    source = draft.source
    match key:
        case "suspend" | "activeDeadlineSeconds" | "preRunningDeadlineSeconds":
            scalar(draft, at, ("spec", key))
        case "ttlSecondsAfterFinished" if source.number(at):
            source.drop(at, _AT_ONCE)
        case "entrypointResources":
            source.drop(at, "machines have no resources of Ray's beyond CPU, memory and devices")
        case _ if key in _HARMLESS:
            source.harmless(at, _HARMLESS[key])
        case _ if key in _CONVERTERS:
            _CONVERTERS[key](draft, at)
        case _:
            pass  # `_attempts` reads backoffLimit, and holds without it too


def _attempts(draft: Draft, role: Loc) -> None:
    """Start the driver as often as KubeRay does: once, and `backoffLimit` times more where it fails."""
    at: Loc = ("spec", "backoffLimit")
    more = draft.source.number(at)
    if more is not None:
        draft.source.carry(at, (*role, "restartPolicy", "maxRestarts"))
    # The job has no budget of its own, in which restarts would begin anew once the role's is used up.
    budgets: dict[str, Any] = {"maxRestarts": 0, "maxClusterRestarts": more or 0}
    if more:
        draft.put((*role, "restartPolicy"), {"maxRestarts": more})
        budgets |= {"windowSeconds": FOR_EVER, "rules": [AGAIN]}
        times = counted(more, "time")
        draft.remarks.append(f"a driver that fails starts again, {times}; a lost RayCluster is replaced as often")
    else:
        # Never, and not only no budget: none is charged for a machine whose end was announced.
        draft.put((*role, "restartPolicy"), {"level": "Never", "maxRestarts": 0})
        draft.remarks.append("the driver starts once, as with KubeRay's backoffLimit of 0: its failure fails the job")
    draft.put(("spec", "faultTolerance"), budgets)


def _shutdown(draft: Draft, at: Loc) -> None:
    source = draft.source
    if source.value(("spec", "deletionStrategy")):
        source.harmless(at, "KubeRay follows deletionStrategy")
    else:
        draft.move(at, ("spec", "cleanupPolicy"), "Retain" if source.value(at) is False else "DeleteCluster")


def _deletion(draft: Draft, at: Loc) -> None:
    """Carry what is deleted after the job as far as `cleanupPolicy` has it: all at once after any end, or nothing."""
    source, to = draft.source, ("spec", "cleanupPolicy")
    # (place, end of the job, policy, seconds after it)
    deletions: list[tuple[Loc, str, str | None, int]] = [
        ((*at, key), end, source.text((*at, key, "policy")), 0)
        for key, end in (("onSuccess", "SUCCEEDED"), ("onFailure", "FAILED"))
        if source.value((*at, key)) is not None
    ]
    for rule in source.items((*at, "deletionRules")):
        condition, policy = (*rule, "condition"), source.text((*rule, "policy"))
        end = source.text((*condition, "jobStatus")) or source.text((*condition, "jobDeploymentStatus")) or ""
        deletions.append((rule, end.upper(), policy, source.number((*condition, "ttlSeconds")) or 0))
    if not deletions:
        return
    keeps_all = all(policy == "DeleteNone" for _, _, policy, _ in deletions)
    deleted_ends = {end for _, end, policy, _ in deletions if policy in ("DeleteCluster", "DeleteSelf")}
    draft.put(to, "Retain" if keeps_all else "DeleteCluster")
    for place, _, policy, seconds in deletions:
        if keeps_all or (policy == "DeleteCluster" and not seconds and {"SUCCEEDED", "FAILED"} <= deleted_ends):
            source.carry((*place, "policy"), to)
            source.harmless((*place, "condition"), "cleanupPolicy holds for any end of the job")
        elif policy == "DeleteCluster":
            reason = f"the RayCluster is deleted after any end of the job: {_RETAIN}"
            source.drop(place, _AT_ONCE if seconds else reason)
        else:
            source.drop(place, _LOST_DELETIONS.get(policy or "", UNKNOWN))


def _selector(draft: Draft, at: Loc) -> None:
    source = draft.source
    place = (*at, "ray.io/cluster")
    if name := source.text(place):
        draft.move(place, ("spec", "rayClusterRef", "name"), name)
        draft.remarks.append(f"the image of RayCluster {name} must contain dljob")
        source.harmless(("spec", "rayClusterSpec"), "KubeRay ignores it beside clusterSelector")


def _driver_devices(draft: Draft, at: Loc) -> None:
    source = draft.source
    count = source.value(at)
    if not count:
        source.harmless(at, "no devices")
    elif isinstance(count, int):
        draft.move(at, ("spec", "roles", 0, "accelerator", "count"), str(count))
    else:
        source.drop(at, "a driver gets whole devices")


def _runtime_env(draft: Draft, at: Loc) -> None:
    """Carry the runtime environment, which is YAML within a text."""
    source = draft.source
    text = source.text(at)
    documents = tree.read(text, kubectl="follow") if text and text.strip() else []
    data = documents[0].data if documents else {}
    if (documents and documents[0].faults) or not isinstance(data, dict):
        source.drop(at, "is no YAML of a mapping")
        return
    lost: list[str] = []
    for key, value in data.items():
        if key == "working_dir" and not is_uri(value):
            draft.put(("<workdir>",), value)
        elif key not in RUNTIME_ENV or (key == "py_modules" and not _uris(value)):
            lost.append(key)
        elif key == "env_vars" and isinstance(value, dict):
            variables = {name: str(text) for name, text in value.items() if not is_reserved(name)}
            draft.put(("spec", "runtimeEnv", key), variables)
            if reserved := ", ".join(sorted(value.keys() - variables.keys())):
                source.drop(at, f"{reserved} is set by dljob")
        else:
            draft.put(("spec", "runtimeEnv", key), value)
    source.carry(at, ("spec", "runtimeEnv"))
    if lost:
        source.drop(
            at, f"{', '.join(lost)}: only URIs that pods can reach, and what Ray 2.60 knows; the rest is carried"
        )


_CONVERTERS: Mapping[str, Callable[[Draft, Loc], None]] = {
    "shutdownAfterJobFinishes": _shutdown,
    "deletionStrategy": _deletion,
    "managedBy": managed,
    "clusterSelector": _selector,
    "entrypointNumGpus": _driver_devices,
    "runtimeEnvYAML": _runtime_env,
}


def _uris(value: object) -> bool:
    items = cast("list[object]", value) if isinstance(value, list) else []
    return bool(items) and all(map(is_uri, items))


def _folder(draft: Draft, pod: ConvertedPod | None, line: command.ContainerCommand) -> str:
    """Return the folder in which the driver starts under Ray; empty where it does not matter."""
    source = draft.source
    local = draft.document.pop("<workdir>", None)
    at: Loc = ("spec", "runtimeEnvYAML")
    if isinstance(local, str) and local.startswith("/"):
        source.carry(at, ("spec", "runtimeEnv") if draft.get(("spec", "runtimeEnv")) else ("spec", "roles", 0))
        draft.remarks.append(
            f"working_dir {local} is a folder of the image: the driver starts there, and nothing is packed"
        )
        return local
    if local is not None:
        source.drop(
            at, f"working_dir {local} is a folder of the machine that submits: use `dljob submit`, or an archive's URI"
        )
    if draft.get(("spec", "runtimeEnv", "working_dir")):
        return ""
    if pod and pod.workdir:
        source.carry((*pod.loc, "workingDir"), ("spec", "roles", 0, "entrypoint", "command"))
        return pod.workdir
    if not (files := command.relative_files(line)):
        return ""
    image = str(draft.get(("spec", "image")))
    if re.search(r"(^|/)(rayproject/)?ray(-ml|-llm)?:", image):
        return "/home/ray"
    source.drop(
        ("spec", "entrypoint"), f"{files[0]} lies in the image's WORKDIR, which only the image knows: add --workdir"
    )
    return ""


def _driver(draft: Draft, pod: ConvertedPod | None, role: Loc) -> None:
    """Give the driver its machine and what it counts on."""
    count = draft.get((*role, "accelerator", "count"))
    if pod is None:
        return
    groups = draft.items(("spec", "nodeGroups"))
    if count is not None:
        home = next((group for group in groups if group.get("accelerator")), None)
        if home is None:
            draft.source.drop(("spec", "entrypointNumGpus"), "no machine has devices")
            draft.document["spec"]["roles"][0].pop("accelerator")
        else:
            draft.put((*role, "nodeGroup"), home["name"])
            return
    draft.put((*role, "nodeGroup"), draft.get((*pod.group, "name")))
    if pod.cpu:
        amount = parse_cpu(pod.cpu)
        draft.put((*role, "resources", "cpu"), str(amount // GRAIN) if amount >= GRAIN else pod.cpu)
    if pod.devices:
        draft.put((*role, "accelerator"), {"type": pod.devices[0], "count": str(pod.devices[1])})


def ray_cluster(draft: Draft, argv: Sequence[str], workdir: str) -> None:
    """Convert a RayCluster and the command that is to run on it."""
    if not argv:
        raise UnfitError(("kind",), "a RayCluster runs nothing by itself", "add --command 'python train.py'")
    head(draft)
    role: Loc = ("spec", "roles", 0)
    draft.put(role, {"name": "driver", "reserve": "Quota"})
    pod = cluster(draft, ("spec",))
    line = command.of_words(argv)
    _driver(draft, pod, role)
    image = str(draft.get(("spec", "image")))
    if pod.workdir and not workdir:
        draft.source.carry((*pod.loc, "workingDir"), (*role, "entrypoint", "command"))
    folder = (
        workdir or pod.workdir or ("/home/ray" if command.relative_files(line) and "rayproject/ray" in image else "")
    )
    draft.put((*role, "entrypoint", "command"), command.argv(line, folder))
