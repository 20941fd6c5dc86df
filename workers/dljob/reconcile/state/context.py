"""The job at one moment, as the policies read it: observed objects, and the fields that the status remembers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from dljob.reconcile.state import accept, names, reasons
from dljob.reconcile.state.accept import Refused, Terms
from dljob.reconcile.state.fields import field, items, number, part, text
from dljob.reconcile.state.model import Object, Observed, Pod, RayJobView, Settings, Trouble
from dljob.reconcile.state.steps import ENDINGS, Ending, ending
from dljob.spec.chosen_resources import ChosenResource
from dljob.telemetry.reasons import NEVER_FITS, NO_ROOM

PATIENCE_SECONDS = 10.0
"""Seconds that PrimeMaster and its gateway may be silent before a condition reports it: their restarts are shorter."""

DASHBOARD_PORT = 8265

START_SECONDS = 60.0
"""Seconds for PrimeMaster's first report: Ray creates a runtime environment and starts the launcher before it."""


@dataclass(frozen=True, slots=True)
class ConditionState:
    """A condition in the status."""

    status: str
    reason: str
    message: str
    generation: int
    since: str
    """When `status` last changed, RFC 3339."""


@dataclass(frozen=True)
class ReconcileContext:
    """The input of the policies. Everything is derived from three values and computed on first use."""

    observed: Observed
    settings: Settings
    now: float

    # -- the DLJob

    @cached_property
    def meta(self) -> Object:
        """The DLJob's metadata."""
        return self.observed.job["metadata"]

    @cached_property
    def old(self) -> Object:
        """The status as the API server has it."""
        return part(self.observed.job, "status")

    @property
    def name(self) -> str:
        """The job's name."""
        return self.meta["name"]

    @property
    def uid(self) -> str:
        """The job's uid, with dashes."""
        return self.meta["uid"]

    @property
    def generation(self) -> int:
        """The generation of the spec."""
        return number(self.meta, "generation") or 1

    @property
    def annotations(self) -> Mapping[str, str]:
        """The DLJob's annotations."""
        return part(self.meta, "annotations")

    @cached_property
    def source(self) -> str:
        """The spec as text, with the resources chosen for the attempt: the key of the caches in `accept`."""
        return accept.source(self.observed.job, self.chosen)

    @cached_property
    def chosen(self) -> tuple[ChosenResource, ...]:
        """The resources that were chosen for this attempt (`resources.auto`); empty: none, or not yet."""
        recorded = part(self.old, "chosenResources")
        if number(recorded, "attempt") != self.attempt:
            return ()
        resources = (
            ChosenResource(text(row, "name"), key, text(row, key), text(row, f"{key}Why"))
            for row in items(recorded, "roles")
            for key in ("cpu", "memory")
        )
        return tuple(resource for resource in resources if resource.value)

    @cached_property
    def terms(self) -> Terms | Refused:
        """The terms of the spec, or its refusal."""
        terms = accept.terms(self.source, self.settings)
        # The pod policy is not held against an attempt that runs, nor against a job that has ended.
        if isinstance(terms, Refused) or self.finished or self._runs(terms):
            return terms
        return accept.forbidden(self.source, self.settings) or terms

    @property
    def live(self) -> accept.Live:
        """The fields of the spec that the operator applies at once."""
        return accept.live(self.source)

    def _runs(self, terms: Terms) -> bool:
        """Whether an attempt of this very spec has its RayCluster: the pod policy was checked when it was made."""
        return self.cluster is not None and text(self.old, "attemptSpecHash") == terms.hash

    @property
    def invalid(self) -> Refused | None:
        """Why the spec keeps the job from running; None while an attempt runs: it keeps the spec it began with."""
        unknown = self.ray_job is not None and self.ray_job.status == "MISSING" and not self.has_reported
        idle = not self.submitted or unknown
        return self.terms if idle and isinstance(self.terms, Refused) else None

    @property
    def owner(self) -> dict[str, Any]:
        """The ownerReference that all children get."""
        return {
            "apiVersion": accept.API_VERSION,
            "kind": "DLJob",
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }

    def owns(self, child: Object) -> bool:
        """Whether this job is the controller of an object."""
        owners = items(child, "metadata", "ownerReferences")
        return any(owner.get("uid") == self.uid and bool(owner.get("controller")) for owner in owners)

    @cached_property
    def ref(self) -> str:
        """The name of the RayCluster in spec.rayClusterRef; empty: each attempt makes its own."""
        return text(self.observed.job, "spec", "rayClusterRef", "name")

    @property
    def has_finalizer(self) -> bool:
        """Whether the DLJob has our finalizer."""
        return names.FINALIZER in (self.meta.get("finalizers") or ())

    # -- suspension

    @property
    def should_run(self) -> bool:
        """Whether spec.suspend wants the job to run. It has no effect on a job with rayClusterRef."""
        return bool(self.ref) or field(self.observed.job, "spec", "suspend") is not True

    @property
    def halt(self) -> str:
        """The stage of a suspension: Suspending, JobSuspended, or empty without one."""
        if self.holds("Suspended"):
            return reasons.JOB_SUSPENDED
        condition = self.conditions.get("Suspended")
        return reasons.SUSPENDING if condition is not None and condition.reason == reasons.SUSPENDING else ""

    # -- the attempt

    @property
    def attempt(self) -> int:
        """The number of this attempt, counted from 1."""
        return number(self.old, "attempt") or 1

    @cached_property
    def cluster_name(self) -> str:
        """The name of this attempt's RayCluster."""
        return self.ref or names.cluster_name(self.name, self.uid, self.attempt)

    @cached_property
    def submission(self) -> str:
        """The id of this attempt at Ray's Job API."""
        return names.submission_id(self.name, self.uid, self.attempt, self.resubmissions)

    @cached_property
    def resubmissions(self) -> int:
        """Number of times that the launcher of this attempt was lost with its head and ordered again."""
        first = names.submission_id(self.name, self.uid, self.attempt)
        count = text(self.old, "submissionId").removeprefix(f"{first}-r")
        return int(count) if count.isascii() and count.isdigit() else 0

    @property
    def submitted(self) -> bool:
        """Whether the submission of this attempt is ordered. The status says so before the launcher is posted."""
        return self.old.get("submissionId") == self.submission

    @property
    def restarted(self) -> int:
        """Number of earlier attempts that count towards faultTolerance.maxClusterRestarts."""
        return number(self.old, "restarts", "cluster")

    # -- the RayCluster

    @cached_property
    def recorded(self) -> Mapping[str, str]:
        """The status fields about the RayCluster: name, uid and the like."""
        return part(self.old, "rayCluster")

    @property
    def replaced(self) -> bool:
        """Whether the status still names the RayCluster of an earlier attempt, which goes before this one begins."""
        return self.recorded.get("name", self.cluster_name) != self.cluster_name

    @cached_property
    def leftover(self) -> Object | None:
        """The RayCluster of an earlier attempt, while it exists.

        Or one of this attempt while the job is suspended: an operator made it and died before the status named it.
        """
        cluster = self.observed.cluster
        if not self.replaced or cluster is None or not self.owns(cluster):
            return None
        return cluster if self.halt or cluster["metadata"]["name"] != self.cluster_name else None

    @cached_property
    def cluster(self) -> Object | None:
        """The RayCluster of this attempt; None while there is none that the job may use."""
        cluster = self.observed.cluster
        if cluster is None or cluster["metadata"]["name"] != self.cluster_name:
            return None
        return cluster if self.ref or self.owns(cluster) else None

    @cached_property
    def foreign(self) -> Object | None:
        """A RayCluster with this attempt's name that another owner controls."""
        cluster = self.observed.cluster
        if cluster is None or self.ref or self.replaced or self.owns(cluster):
            return None
        return cluster

    @cached_property
    def cluster_conditions(self) -> Mapping[str, Object]:
        """KubeRay's conditions of the RayCluster, by type."""
        return {text(condition, "type"): condition for condition in items(self.cluster, "status", "conditions")}

    def condition_is_true(self, condition: str) -> bool:
        """Whether a condition of KubeRay's is True."""
        return text(self.cluster_conditions, condition, "status") == "True"

    @property
    def leaving(self) -> bool:
        """Whether the RayCluster of this attempt is being deleted."""
        return bool(text(self.cluster, "metadata", "deletionTimestamp"))

    @property
    def suspended(self) -> bool:
        """Whether the RayCluster is suspended, by a queue or by somebody else."""
        return bool(part(self.cluster, "spec").get("suspend"))

    @property
    def on_hold(self) -> bool:
        """Whether the RayCluster was suspended when the head was last seen not ready."""
        condition = self.conditions.get("ClusterReady")
        return condition is not None and condition.reason in (reasons.CLUSTER_SUSPENDED, reasons.WAITS_IN_QUEUE)

    @property
    def queued(self) -> bool:
        """Whether a queue decides when the RayCluster may run."""
        if self.cluster is not None:
            return accept.QUEUE in part(self.cluster, "metadata", "labels")
        return isinstance(self.terms, Terms) and self.terms.queued

    @property
    def head_ready(self) -> bool:
        """Whether the head is ready and the operator knows its token, so that it can submit."""
        is_reachable = (
            self.condition_is_true("HeadPodReady") and bool(self.address) and not self.leaving and not self.suspended
        )
        return is_reachable and not self.observed.locked

    @cached_property
    def address(self) -> str:
        """The head's IP address; empty while it has none."""
        return text(self.cluster, "status", "head", "podIP")

    @cached_property
    def service(self) -> str:
        """The head's Service; empty while KubeRay names none."""
        return text(self.cluster, "status", "head", "serviceName")

    @cached_property
    def dashboard(self) -> str:
        """The URL of Ray's dashboard inside the Kubernetes cluster; empty while it is unknown."""
        host = f"{self.service}.{self.meta['namespace']}.svc" if self.service else self.address
        return f"http://{host}:{DASHBOARD_PORT}" if host else ""

    @property
    def growing(self) -> bool:
        """Whether worker pods of the job's own RayCluster still start, so that missing room may yet appear."""
        desired, ready = (number(self.cluster, "status", f"{kind}WorkerReplicas") for kind in ("desired", "ready"))
        stuck = any(pod.trouble and not pod.ready and not pod.leaving for pod in self.observed.pods)
        return ready < desired and not stuck

    @property
    def lacks_room(self) -> bool:
        """Whether PrimeMaster waits for nodes with room."""
        return text(self.snapshot, "reason") in (NO_ROOM, NEVER_FITS)

    @property
    def keeps_state(self) -> bool:
        """Whether Ray's state survives the head (GCS fault tolerance), and the status has Ray's session to prove it."""
        survives = text(self.cluster, "metadata", "annotations", names.SURVIVES)
        return bool(survives and self.recorded.get("sessionName"))

    @property
    def moved(self) -> bool:
        """Whether the head is another process than the one that received the submission."""
        head, known = self.head, self.recorded
        if head is None:
            return False
        another = bool(known.get("headContainer")) and head.container not in ("", known.get("headContainer"))
        return another or known.get("headPodUID", head.uid) != head.uid

    @cached_property
    def head(self) -> Pod | None:
        """The head's pod, unless it is being deleted."""
        return next((pod for pod in self.observed.pods if pod.head and not pod.leaving), None)

    # -- what Ray and PrimeMaster say

    @cached_property
    def ray_job(self) -> RayJobView | None:
        """The state of this attempt's submission at Ray's Job API; None: not asked yet."""
        view = self.observed.ray_job
        return view if view is not None and self.submitted and view.id == self.submission else None

    @cached_property
    def snapshot(self) -> Object:
        """PrimeMaster's last report in this attempt; empty: none since this operator became the leader."""
        master, ray_job = self.observed.master, self.observed.ray_job
        # The poller may still hold the report of an earlier submission, or attempt.
        late = ray_job is not None and ray_job.id != self.submission
        if master is None or late or not self.submitted:
            return {}
        return master.snapshot if master.snapshot.get("attempt") == self.attempt else {}

    @property
    def has_reported(self) -> bool:
        """Whether PrimeMaster has reported in this attempt, to this operator or to an earlier one."""
        return bool(self.snapshot) or (self.submitted and bool(text(self.old, "master", "state")))

    @property
    def is_submitted(self) -> bool:
        """Whether the launcher of this attempt was started, as PrimeMaster or Ray has reported."""
        known = self.ray_job is not None and self.ray_job.status not in ("", "MISSING")
        return known or (self.has_reported and not self.resubmissions)

    @property
    def silent(self) -> bool:
        """Whether PrimeMaster has not answered for longer than its start or restart takes."""
        master = self.observed.master
        patience = PATIENCE_SECONDS if self.has_reported else START_SECONDS
        return self.submitted and master is not None and bool(master.error) and master.age >= patience

    @property
    def reachable(self) -> bool:
        """Whether PrimeMaster answered the last request, so that it takes commands."""
        master = self.observed.master
        return bool(self.snapshot) and master is not None and not master.error and bool(self.address)

    # -- memory of the status

    @cached_property
    def conditions(self) -> Mapping[str, ConditionState]:
        """The conditions in the status, by type; one without a status is skipped."""
        return {
            text(row, "type"): ConditionState(
                status=text(row, "status"),
                reason=text(row, "reason") or "Unknown",
                message=text(row, "message"),
                generation=number(row, "observedGeneration"),
                since=text(row, "lastTransitionTime") or stamp(self.now),
            )
            for row in items(self.old, "conditions")
            if text(row, "status")
        }

    def holds(self, condition: str) -> bool:
        """Whether one of the DLJob's own conditions is True."""
        return condition in self.conditions and self.conditions[condition].status == "True"

    def since(self, condition: str) -> float:
        """Return when a condition of the DLJob last changed its status, in unix seconds; now, if there is none."""
        state = self.conditions.get(condition)
        return (seconds(state.since) if state else None) or self.now

    @property
    def finished(self) -> bool:
        """Whether a terminal condition is True."""
        return any(self.holds(kind) for kind in ENDINGS)

    @property
    def stopping(self) -> tuple[Ending, ConditionState] | None:
        """The terminal condition that an ordered stop leads to, with its state until then; None: no stop is ordered.

        Operators before the condition Stopped wrote Failed=False for a stop as well.
        """
        if state := self.conditions.get("Stopped"):
            return "Stopped", state
        state = self.conditions.get("Failed")
        return None if state is None else (ending(state.reason), state)

    def trouble(self, prefix: str) -> Trouble | None:
        """Return the first failure whose action begins with `prefix`; None: no such action fails."""
        return next((trouble for trouble in self.observed.troubles if trouble.action.startswith(prefix)), None)


def stamp(at: float) -> str:
    """Return an RFC 3339 time in UTC with whole seconds, as Kubernetes writes times."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(time: str) -> float | None:
    """Return the unix seconds of an RFC 3339 time; None for an empty text or anything else."""
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        return None
