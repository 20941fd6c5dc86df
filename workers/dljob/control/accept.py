"""Reading a spec: what the operator needs of it at each pass, or why it cannot be accepted, in the loader's words.

Both functions are pure and remember their last answers: the first is asked at each pass of each job, so its answers are
small; the second, with the whole plan, only when a RayCluster is made.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dljob.control import reasons
from dljob.control.fields import part
from dljob.control.forbidden import forbidden
from dljob.control.model import Object, Settings
from dljob.control.placement import placement_plan
from dljob.errors import PlacementError, SpecError
from dljob.plan.dress import Dress, dressed, effective
from dljob.plan.model import JobPlan
from dljob.plan.plan import plan
from dljob.plan.words import resource_text
from dljob.spec import standing
from dljob.spec.load import parse
from dljob.spec.model import DLJobManifest

API_VERSION = "dljob.io/v1alpha1"
QUEUE = "kueue.x-k8s.io/queue-name"
"""The label of a RayCluster that Kueue suspends until there is room."""
LIVE_FIELDS = (
    *("ttlSecondsAfterFinished", "cleanupPolicy", "activeDeadlineSeconds", "preRunningDeadlineSeconds"),
    "suspend",
)
"""What the operator obeys itself, at once: a change of it does not wait for the next attempt."""

GRACE_SECONDS = 120
"""checkpoint.gracePeriodSeconds of a spec that says nothing of checkpoints."""

MAX_SPEC = 1_000_000
"""Bytes of the spec as the head mounts it: a ConfigMap holds 1 MiB, with what the last attempt hands on."""
TOO_LARGE = f"and a ConfigMap of it holds {MAX_SPEC}: put large data into a file or a volume, and name that"


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a spec is not accepted."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Terms:
    """What each pass needs to know of an accepted spec."""

    hash: str
    """As the blueprint's."""
    image: str
    ray_version: str
    """Both empty where the spec leaves them to a RayCluster that is there."""
    roles: tuple[tuple[str, int], ...]
    """(name, ranks), in the order of the spec."""
    accelerators: str
    """All devices of the machines: "16 NPU"; empty without any."""
    plan_hash: str
    max_cluster_restarts: int
    lease_seconds: int
    grace_seconds: int
    """How long what is in memory may take to come to disk."""
    pending_timeout: int
    active_deadline: int | None
    pre_running_deadline: int | None
    ttl: int | None
    queued: bool
    """Whether a queue decides when the RayCluster may run."""
    retain: bool
    """Whether the RayCluster stays after the end."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A spec, read, completed and planned."""

    manifest: DLJobManifest
    """Effective: image and Ray's version are filled in, unless the job runs on a RayCluster that is there."""
    plan: JobPlan
    hash: str
    """16 hex digits of what the user wrote, as far as an attempt is made of it: not of the operator's own defaults."""


def source(job: Object) -> str:
    """What a plan depends on, as text: the key of everything that is remembered here."""
    metadata: Object = job["metadata"]
    kept: Object = {key: metadata[key] for key in ("name", "namespace", "labels") if metadata.get(key)}
    return json.dumps({"metadata": kept, "spec": job.get("spec") or {}}, separators=(",", ":"))


@lru_cache(maxsize=4096)
def terms(text: str, settings: Settings) -> Terms | Refused:
    """The terms of a job; `text` is its `source`."""
    try:
        made = blueprint(text, settings)
    except SpecError as error:
        return Refused(reasons.INVALID_SPEC, _in_a_line(error))
    except PlacementError as error:
        return Refused(reasons.DOES_NOT_FIT, _in_a_line(error))
    size = len(spec_text(made))
    if size > MAX_SPEC:
        return Refused(reasons.INVALID_SPEC, f"the spec has {size} bytes as JSON, {TOO_LARGE}")
    metadata, spec = made.manifest.metadata, made.manifest.spec
    cluster: Object = {}
    if spec.ray_cluster_ref is None:
        cluster = dressed(made.plan, made.manifest, Dress(metadata.name, metadata.namespace or ""))
    wrong = forbidden(cluster, settings.service_account)
    if wrong:
        return Refused(reasons.FORBIDDEN_POD, wrong)
    return Terms(
        hash=made.hash,
        image=spec.image or "",
        ray_version=spec.ray_version or "",
        roles=tuple((role.name, role.replicas) for role in spec.roles),
        accelerators=_accelerators(made.plan),
        plan_hash=placement_plan(made.plan)[1],
        max_cluster_restarts=spec.fault_tolerance.max_cluster_restarts,
        lease_seconds=standing.lease_seconds(
            spec.fault_tolerance.lease_seconds, survives=spec.gcs_fault_tolerance is not None
        ),
        grace_seconds=spec.checkpoint.grace_period_seconds if spec.checkpoint else GRACE_SECONDS,
        pending_timeout=spec.fault_tolerance.node.pending_timeout_seconds,
        active_deadline=spec.active_deadline_seconds,
        pre_running_deadline=spec.pre_running_deadline_seconds,
        ttl=spec.ttl_seconds_after_finished,
        queued=QUEUE in part(cluster, "metadata", "labels"),
        retain=spec.cleanup_policy == "Retain",
    )


def spec_text(made: Blueprint) -> str:
    """The effective spec as JSON, as the launcher takes it."""
    data = made.manifest.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    whole = {"apiVersion": made.manifest.api_version, "kind": made.manifest.kind, **data}
    return json.dumps(whole, separators=(",", ":"))


@lru_cache(maxsize=64)
def blueprint(text: str, settings: Settings) -> Blueprint:
    """The whole of a spec; `text` is its `source`. Kept from its first sight until its RayCluster is made.

    Raises:
        SpecError: It is wrong.
        PlacementError: It fits on no machines.
    """
    data: dict[str, Any] = json.loads(text)
    written = parse({"apiVersion": API_VERSION, "kind": "DLJob", **data})
    there = written.spec.ray_cluster_ref is not None
    manifest = written if there else effective(written, settings.image, settings.ray_version)
    return Blueprint(manifest, plan(manifest), _hash(written))


def _hash(manifest: DLJobManifest) -> str:
    spec = manifest.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    kept = {key: value for key, value in spec.items() if key not in LIVE_FIELDS}
    for key in ("roles", "nodeGroups"):
        if key in kept:
            kept[key] = [_without_count(one) for one in kept[key]]
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def _without_count(one: Object) -> Object:
    """A role or node group as an attempt is made of it: where it has bounds, its number follows at once."""
    bounded = "minReplicas" in one or "maxReplicas" in one
    return {key: value for key, value in one.items() if key != "replicas"} if bounded else one


def _in_a_line(error: Exception) -> str:
    """An error's words as a condition's message: `kubectl describe` indents no second line."""
    return "; ".join(line.strip() for line in str(error).splitlines())


def _accelerators(plan: JobPlan) -> str:
    total: dict[str, int] = {}
    for group in plan.node_groups.values():
        if group.device:
            name = group.device[0]
            total[name] = total.get(name, 0) + group.replicas * dict(group.resources).get(name, 0)
    return ", ".join(resource_text(name, amount) for name, amount in sorted(total.items()))
