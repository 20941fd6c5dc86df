"""Acceptance of a spec: the terms that each pass needs, or the refusal in the loader's words.

The functions are pure and cache their last answers by the text of the spec. `terms` and `forbidden` run at each pass of
each job, so their answers are small; `blueprint`, with the whole plan, is needed only when a RayCluster is made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
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
from dljob.reconcile.state import excess, reasons
from dljob.reconcile.state.fields import field, part
from dljob.reconcile.state.model import Object, Settings
from dljob.reconcile.state.placement import placement_plan
from dljob.reconcile.state.text_cache import cached_by_digest
from dljob.spec import standing
from dljob.spec.chosen_resources import ChosenResource, with_chosen
from dljob.spec.loading.load import parse
from dljob.spec.model import DLJobManifest
from dljob.spec.policy import FaultTolerance
from dljob.spec.rules.findings import Finding
from dljob.spec.text.words import path_of

API_VERSION = "dljob.io/v1alpha1"
QUEUE = "kueue.x-k8s.io/queue-name"
"""The label of a RayCluster that Kueue keeps suspended until its quota has room."""
LIVE_FIELDS = (
    *("ttlSecondsAfterFinished", "cleanupPolicy", "activeDeadlineSeconds", "preRunningDeadlineSeconds"),
    "suspend",
)
"""Fields that the operator itself applies at once: a change of them does not wait for the next attempt."""

LONGEST = 4096
"""Characters of a refusal."""
USUAL = 1 << 16
"""Characters of a spec whose plan is kept; larger ones are worked out anew, as 64 of them could fill the memory."""
_RESTARTS = FaultTolerance().max_cluster_restarts
GRACE_SECONDS = 120
"""The default of checkpoint.gracePeriodSeconds for a spec without `checkpoint`."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a spec is not accepted."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Terms:
    """The facts of an accepted spec that each pass needs."""

    hash: str
    """The digest that `Blueprint.hash` describes."""
    image: str
    ray_version: str
    """Image and version are empty where the spec leaves them to the RayCluster of spec.rayClusterRef."""
    roles: tuple[tuple[str, int], ...]
    """(name, ranks) of each role, in the order of the spec."""
    services: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
    """(role, its ports (name, number or 0)) of each role with a Service."""
    accelerators: str
    """The total of all devices, such as "16 NPU"; empty without devices."""
    plan_hash: str
    lease_seconds: int
    grace_seconds: int
    """Seconds for writing checkpoints that are only in memory to disk."""
    drain_seconds: float
    """The longest drain of a role's servers."""
    pending_timeout: int
    unreachable_seconds: int | None
    """Seconds of PrimeMaster's silence after which a head on a silent Kubernetes node is replaced; None: never."""
    queued: bool
    """Whether a queue decides when the RayCluster may run."""


@dataclass(frozen=True, slots=True)
class Live:
    """Fields that the operator applies at once, at any time of a job, even from a spec that it does not accept.

    The API server's schema has checked each of them by itself.
    """

    active_deadline: int | None
    pre_running_deadline: int | None
    ttl: int | None
    retain: bool
    """Whether the RayCluster stays after the end of the job (cleanupPolicy: Retain)."""
    max_cluster_restarts: int
    """faultTolerance.maxClusterRestarts, which is read when an attempt is lost."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A spec that was read, completed with defaults, and planned."""

    manifest: DLJobManifest
    """The spec with image and Ray version filled in, unless the job runs on the RayCluster of spec.rayClusterRef."""
    plan: JobPlan
    hash: str
    """16 hex digits over the part of the user's spec that an attempt is made of.

    The operator's own defaults are not part of it: changing them must not look like an edit of every job.
    """


def source(job: Object, chosen: Sequence[ChosenResource] = ()) -> str:
    """Return the fields that a plan depends on, as text: the key of every cache in this module.

    `chosen` has the values that `resources.auto` leaves open, once they are chosen for the attempt.
    """
    metadata: Object = job["metadata"]
    identity: Object = {key: metadata[key] for key in ("name", "namespace", "labels") if metadata.get(key)}
    document = {"metadata": identity, "spec": job.get("spec") or {}, **({"chosen": list(chosen)} if chosen else {})}
    return json.dumps(document, separators=(",", ":"))


@cached_by_digest(4096)
def terms(text: str, settings: Settings) -> Terms | Refused:
    """Return the terms of a job, or why its spec is refused. `text` is the job's `source`."""
    try:
        accepted = blueprint(text, settings)
        cluster = preview_raycluster(accepted.plan, accepted.manifest)
    except SpecError as error:
        return Refused(reasons.INVALID_SPEC, _in_a_line(error))
    except PlacementError as error:
        return Refused(reasons.DOES_NOT_FIT, _in_a_line(error))
    # A ConfigMap holds 1 MiB: a spec that does not fit is refused before anything is created.
    findings = too_large(len(spec_text(accepted.manifest)))
    if findings:
        return Refused(reasons.INVALID_SPEC, _describe_findings(findings))
    spec, node = accepted.manifest.spec, accepted.manifest.spec.fault_tolerance.node
    return Terms(
        hash=accepted.hash,
        image=spec.image or "",
        ray_version=spec.ray_version or "",
        roles=tuple((role.name, role.replicas) for role in spec.roles),
        services=tuple((role.name, role.ports) for role in accepted.plan.roles.values() if role.service),
        accelerators=_accelerators(accepted.plan),
        plan_hash=placement_plan(accepted.plan)[1],
        lease_seconds=standing.lease_seconds(
            spec.fault_tolerance.lease_seconds, survives=spec.gcs_fault_tolerance is not None
        ),
        grace_seconds=spec.checkpoint.grace_period_seconds if spec.checkpoint else GRACE_SECONDS,
        drain_seconds=max(role.drain_s for role in accepted.plan.roles.values()),
        pending_timeout=node.pending_timeout_seconds,
        unreachable_seconds=None if node.action == "Ignore" else node.unreachable_seconds,
        queued=QUEUE in part(cluster, "metadata", "labels"),
    )


@cached_by_digest(4096)
def live(text: str) -> Live:
    """Return the fields that are applied at once, whether or not the spec is valid. `text` is the job's `source`."""
    spec: Object = json.loads(text)["spec"]
    restarts = _integer(field(spec.get("faultTolerance"), "maxClusterRestarts"))
    return Live(
        active_deadline=_integer(spec.get("activeDeadlineSeconds")),
        pre_running_deadline=_integer(spec.get("preRunningDeadlineSeconds")),
        ttl=_integer(spec.get("ttlSecondsAfterFinished")),
        retain=spec.get("cleanupPolicy") == "Retain",
        max_cluster_restarts=_RESTARTS if restarts is None else restarts,
    )


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) else None


@cached_by_digest(4096)
def forbidden(text: str, settings: Settings) -> Refused | None:
    """Return the pod policy's refusal of an accepted spec; None: it allows the spec. `text` is the job's `source`.

    This is not part of `Terms`: the policy is checked when an attempt is made, and a stricter policy never stops one
    that runs.
    """
    accepted = blueprint(text, settings)
    findings = breaches(accepted.manifest, accepted.plan.node_groups, settings.pods)
    return Refused(reasons.FORBIDDEN_POD, _describe_findings(findings)) if findings else None


def blueprint(text: str, settings: Settings) -> Blueprint:
    """Return a spec with its plan.

    `text` is the job's `source`. The cache spans the passes until the RayCluster is made, but for a very large spec.

    Raises:
        SpecError: The spec is wrong.
        PlacementError: The roles fit on no machines.
    """
    return _cached_blueprint(text, settings) if len(text) <= USUAL else read(text, settings)


@lru_cache(maxsize=64)
def _cached_blueprint(text: str, settings: Settings) -> Blueprint:
    return read(text, settings)


def read(text: str, settings: Settings) -> Blueprint:
    """Return a spec with its plan, without a cache."""
    written, manifest = completed(text, settings)
    # The digest is of what the user wrote: the choice of each attempt is no edit.
    return Blueprint(manifest, plan(manifest), _hash(written))


def completed(text: str, settings: Settings) -> tuple[DLJobManifest, DLJobManifest]:
    """Return a job as it was written, and with the defaults of the operator and the amounts of the attempt.

    Raises:
        SpecError: The spec is wrong.
    """
    data: dict[str, Any] = json.loads(text)
    too_much = field(data, "spec", excess.MARK)
    if too_much:
        raise SpecError((Problem("spec", str(too_much), hint=excess.HINT),))
    chosen = [ChosenResource(*row) for row in data.pop("chosen", ())]
    written = parse({"apiVersion": API_VERSION, "kind": "DLJob", **data})
    # Defaults of the operator say nothing about a RayCluster that somebody else made.
    is_existing = written.spec.ray_cluster_ref is not None
    defaults = (settings.image, settings.ray_version, settings.pull_secrets)
    return written, with_chosen(written if is_existing else effective(written, *defaults), chosen)


def _hash(manifest: DLJobManifest) -> str:
    spec = manifest.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    # Fields that are applied at once are left out: an edit of them must not look like a new attempt.
    fixed_fields = {key: value for key, value in spec.items() if key not in LIVE_FIELDS}
    for key in ("roles", "nodeGroups"):
        if key in fixed_fields:
            fixed_fields[key] = [_without_count(item) for item in fixed_fields[key]]
    return hashlib.sha256(json.dumps(fixed_fields, sort_keys=True).encode()).hexdigest()[:16]


def _without_count(item: Object) -> Object:
    """Return a role or node group as the digest covers it: with bounds, `replicas` changes within a running attempt."""
    bounded = "minReplicas" in item or "maxReplicas" in item
    return {key: value for key, value in item.items() if key != "replicas"} if bounded else item


def _describe_findings(faults: Iterable[Finding]) -> str:
    return _cut("; ".join(str(Problem(path_of(fault.loc), fault.message, hint=fault.hint)) for fault in faults))


def _in_a_line(error: Exception) -> str:
    """Return an error on one line: `kubectl describe` does not indent further lines of a message."""
    return _cut("; ".join(line.strip() for line in str(error).splitlines()))


def _cut(message: str) -> str:
    """Return a message as a condition has room for it: a spec may be wrong in thousands of places."""
    return message if len(message) <= LONGEST else f"{message[: LONGEST - 4]} ..."


def _accelerators(plan: JobPlan) -> str:
    total: dict[str, int] = {}
    for group in plan.node_groups.values():
        if group.device:
            name = group.device[0]
            total[name] = total.get(name, 0) + group.replicas * dict(group.resources).get(name, 0)
    return ", ".join(resource_text(name, amount) for name, amount in sorted(total.items()))
