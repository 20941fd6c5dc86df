"""Reading a spec: what the operator needs of it at each pass, or why it cannot be accepted, in the loader's words.

The functions are pure and remember their last answers: `terms` and `forbidden` are asked at each pass of each job, so
their answers are small; `blueprint`, with the whole plan, only when a RayCluster is made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dljob.errors import PlacementError, Problem, SpecError
from dljob.plan.model import JobPlan
from dljob.plan.plan import plan
from dljob.plan.words import resource_text
from dljob.raycluster.acceptance import spec_text, too_large
from dljob.raycluster.pod_security import breaches
from dljob.raycluster.render import effective, preview_raycluster
from dljob.reconcile.state import reasons
from dljob.reconcile.state.fields import field, part
from dljob.reconcile.state.model import Object, Settings
from dljob.reconcile.state.placement import placement_plan
from dljob.spec import standing
from dljob.spec.loading.load import parse
from dljob.spec.model import DLJobManifest
from dljob.spec.policy import FaultTolerance
from dljob.spec.rules.findings import Finding
from dljob.spec.text.words import path_of

API_VERSION = "dljob.io/v1alpha1"
QUEUE = "kueue.x-k8s.io/queue-name"
"""The label of a RayCluster that Kueue suspends until there is room."""
LIVE_FIELDS = (
    *("ttlSecondsAfterFinished", "cleanupPolicy", "activeDeadlineSeconds", "preRunningDeadlineSeconds"),
    "suspend",
)
"""What the operator obeys itself, at once: a change of it does not wait for the next attempt."""

_RESTARTS = FaultTolerance().max_cluster_restarts
GRACE_SECONDS = 120
"""checkpoint.gracePeriodSeconds of a spec that says nothing of checkpoints."""


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
    lease_seconds: int
    grace_seconds: int
    """How long what is in memory may take to come to disk."""
    pending_timeout: int
    queued: bool
    """Whether a queue decides when the RayCluster may run."""


@dataclass(frozen=True, slots=True)
class Live:
    """What the operator obeys itself, at once: of a spec that it does not accept, too, while the job runs or is over.

    The API server's schema has checked each by itself.
    """

    active_deadline: int | None
    pre_running_deadline: int | None
    ttl: int | None
    retain: bool
    """Whether the RayCluster stays after the end."""
    max_cluster_restarts: int
    """Read when an attempt is lost."""


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
    found = too_large(len(spec_text(made.manifest)))
    if found:
        return Refused(reasons.INVALID_SPEC, _said(found))
    spec = made.manifest.spec
    return Terms(
        hash=made.hash,
        image=spec.image or "",
        ray_version=spec.ray_version or "",
        roles=tuple((role.name, role.replicas) for role in spec.roles),
        accelerators=_accelerators(made.plan),
        plan_hash=placement_plan(made.plan)[1],
        lease_seconds=standing.lease_seconds(
            spec.fault_tolerance.lease_seconds, survives=spec.gcs_fault_tolerance is not None
        ),
        grace_seconds=spec.checkpoint.grace_period_seconds if spec.checkpoint else GRACE_SECONDS,
        pending_timeout=spec.fault_tolerance.node.pending_timeout_seconds,
        queued=QUEUE in part(preview_raycluster(made.plan, made.manifest), "metadata", "labels"),
    )


@lru_cache(maxsize=4096)
def live(text: str) -> Live:
    """What a job says of it, whatever else it says; `text` is its `source`."""
    spec: Object = json.loads(text)["spec"]
    restarts = _whole(field(spec.get("faultTolerance"), "maxClusterRestarts"))
    return Live(
        active_deadline=_whole(spec.get("activeDeadlineSeconds")),
        pre_running_deadline=_whole(spec.get("preRunningDeadlineSeconds")),
        ttl=_whole(spec.get("ttlSecondsAfterFinished")),
        retain=spec.get("cleanupPolicy") == "Retain",
        max_cluster_restarts=_RESTARTS if restarts is None else restarts,
    )


def _whole(found: object) -> int | None:
    return found if isinstance(found, int) else None


@lru_cache(maxsize=4096)
def forbidden(text: str, settings: Settings) -> Refused | None:
    """What the pods of an accepted spec may not have; `text` is its `source`.

    No part of its terms: it is judged when an attempt is made, and never held against one that runs.
    """
    made = blueprint(text, settings)
    found = breaches(made.manifest, made.plan, settings.pods)
    return Refused(reasons.FORBIDDEN_POD, _said(found)) if found else None


@lru_cache(maxsize=64)
def blueprint(text: str, settings: Settings) -> Blueprint:
    """The whole of a spec; `text` is its `source`. Kept from its first sight until its RayCluster is made.

    Raises:
        SpecError: It is wrong.
        PlacementError: It fits on no machines.
    """
    return read(text, settings)


def read(text: str, settings: Settings) -> Blueprint:
    """As `blueprint`, and remembers nothing: for specs that nobody may ever apply."""
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


def _said(found: Iterable[Finding]) -> str:
    return "; ".join(str(Problem(path_of(one.loc), one.message, hint=one.hint)) for one in found)


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
