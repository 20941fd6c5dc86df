"""One job at one moment, as the policies see it: what was observed, beside what the status remembers."""

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

PATIENCE_SECONDS = 10.0
"""PrimeMaster and its gateway may be silent for so long before a condition says so: a restart of theirs is shorter."""

DASHBOARD_PORT = 8265

START_SECONDS = 60.0
"""The first word may take so long: a runtime environment is made, and the launcher starts."""


@dataclass(frozen=True, slots=True)
class ConditionState:
    """A condition as the status has it."""

    status: str
    reason: str
    message: str
    generation: int
    since: str
    """When its status last flipped, RFC 3339."""


@dataclass(frozen=True)
class ReconcileContext:
    """What the policies decide from. Everything is derived from three values, and computed when first asked for."""

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
        """The status as it is."""
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
        """Of the spec."""
        return number(self.meta, "generation") or 1

    @property
    def annotations(self) -> Mapping[str, str]:
        """The DLJob's own."""
        return part(self.meta, "annotations")

    @cached_property
    def source(self) -> str:
        """What the plan depends on."""
        return accept.source(self.observed.job)

    @cached_property
    def terms(self) -> Terms | Refused:
        """What the spec says, or why it cannot be accepted."""
        terms = accept.terms(self.source, self.settings)
        if isinstance(terms, Refused) or self.finished or self._runs(terms):
            return terms
        return accept.forbidden(self.source, self.settings) or terms

    @property
    def live(self) -> accept.Live:
        """What the operator obeys itself, at once."""
        return accept.live(self.source)

    def _runs(self, terms: Terms) -> bool:
        """Whether an attempt of this very spec has its RayCluster: the policy for pods was asked when it was made."""
        return self.cluster is not None and text(self.old, "attemptSpecHash") == terms.hash

    @property
    def invalid(self) -> Refused | None:
        """Why the spec keeps the job from running; None while an attempt runs, which goes on with the spec it has."""
        unknown = self.ray_job is not None and self.ray_job.status == "MISSING" and not self.told
        idle = not self.submitted or unknown
        return self.terms if idle and isinstance(self.terms, Refused) else None

    @property
    def owner(self) -> dict[str, Any]:
        """The ownerReference of all children."""
        return {
            "apiVersion": accept.API_VERSION,
            "kind": "DLJob",
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }

    def owns(self, child: Object) -> bool:
        """Whether this very job controls an object."""
        owners = items(child, "metadata", "ownerReferences")
        return any(owner.get("uid") == self.uid and bool(owner.get("controller")) for owner in owners)

    @cached_property
    def ref(self) -> str:
        """The RayCluster that is there already, to run on; empty: each attempt has one of its own."""
        return text(self.observed.job, "spec", "rayClusterRef", "name")

    @property
    def held(self) -> bool:
        """Whether our finalizer holds the DLJob."""
        return names.FINALIZER in (self.meta.get("finalizers") or ())

    # -- suspension

    @property
    def wanted(self) -> bool:
        """Whether the job is to run, as spec.suspend says; a RayCluster that is there is not given back."""
        return bool(self.ref) or field(self.observed.job, "spec", "suspend") is not True

    @property
    def halt(self) -> str:
        """How far a suspension is: Suspending, JobSuspended, or empty without one."""
        if self.holds("Suspended"):
            return reasons.JOB_SUSPENDED
        held = self.conditions.get("Suspended")
        return reasons.SUSPENDING if held is not None and held.reason == reasons.SUSPENDING else ""

    # -- the attempt

    @property
    def attempt(self) -> int:
        """Counts from 1."""
        return number(self.old, "attempt") or 1

    @cached_property
    def cluster_name(self) -> str:
        """Of the RayCluster of this attempt."""
        return self.ref or names.cluster_name(self.name, self.uid, self.attempt)

    @cached_property
    def submission(self) -> str:
        """The id of this attempt at Ray's Job API."""
        return names.submission_id(self.name, self.uid, self.attempt, self.again)

    @cached_property
    def again(self) -> int:
        """How often the launcher of this attempt was lost with its head, and ordered again."""
        first = names.submission_id(self.name, self.uid, self.attempt)
        count = text(self.old, "submissionId").removeprefix(f"{first}-r")
        return int(count) if count.isascii() and count.isdigit() else 0

    @property
    def submitted(self) -> bool:
        """Whether the status says that this attempt is to be submitted, which holds from before the submission on."""
        return self.old.get("submissionId") == self.submission

    @property
    def restarted(self) -> int:
        """How many attempts before this one count towards maxClusterRestarts."""
        return number(self.old, "restarts", "cluster")

    # -- the RayCluster

    @cached_property
    def recorded(self) -> Mapping[str, str]:
        """What the status remembers of the RayCluster."""
        return part(self.old, "rayCluster")

    @property
    def replaced(self) -> bool:
        """Whether the status still names the RayCluster of an earlier attempt."""
        return self.recorded.get("name", self.cluster_name) != self.cluster_name

    @cached_property
    def leftover(self) -> Object | None:
        """The RayCluster of an earlier attempt, while it is there.

        Also one of this attempt that is not to begin yet: whoever made it died before the status named it.
        """
        cluster = self.observed.cluster
        if not self.replaced or cluster is None or not self.owns(cluster):
            return None
        return cluster if self.halt or cluster["metadata"]["name"] != self.cluster_name else None

    @cached_property
    def cluster(self) -> Object | None:
        """The RayCluster of this attempt."""
        cluster = self.observed.cluster
        if cluster is None or cluster["metadata"]["name"] != self.cluster_name:
            return None
        return cluster if self.ref or self.owns(cluster) else None

    @cached_property
    def foreign(self) -> Object | None:
        """An object of the RayCluster's name that is not ours."""
        cluster = self.observed.cluster
        if cluster is None or self.ref or self.replaced or self.owns(cluster):
            return None
        return cluster

    @cached_property
    def cluster_conditions(self) -> Mapping[str, Object]:
        """KubeRay's conditions by type."""
        return {text(condition, "type"): condition for condition in items(self.cluster, "status", "conditions")}

    def says(self, condition: str) -> bool:
        """Whether a condition of KubeRay's is True."""
        return text(self.cluster_conditions, condition, "status") == "True"

    @property
    def leaving(self) -> bool:
        """Whether the RayCluster of this attempt is being deleted."""
        return bool(text(self.cluster, "metadata", "deletionTimestamp"))

    @property
    def suspended(self) -> bool:
        """Whether somebody holds the RayCluster back."""
        return bool(part(self.cluster, "spec").get("suspend"))

    @property
    def on_hold(self) -> bool:
        """Whether the RayCluster was suspended when it was last seen without a head that is ready."""
        held = self.conditions.get("ClusterReady")
        return held is not None and held.reason in (reasons.CLUSTER_SUSPENDED, reasons.WAITS_IN_QUEUE)

    @property
    def queued(self) -> bool:
        """Whether a queue decides when the RayCluster may run."""
        if self.cluster is not None:
            return accept.QUEUE in part(self.cluster, "metadata", "labels")
        return isinstance(self.terms, Terms) and self.terms.queued

    @property
    def head_ready(self) -> bool:
        """Whether the head takes submissions, of us too."""
        there = self.says("HeadPodReady") and bool(self.address) and not self.leaving and not self.suspended
        return there and not self.observed.locked

    @cached_property
    def address(self) -> str:
        """The head's IP address; empty while it has none."""
        return text(self.cluster, "status", "head", "podIP")

    @cached_property
    def service(self) -> str:
        """The Service of the head; empty while KubeRay names none."""
        return text(self.cluster, "status", "head", "serviceName")

    @cached_property
    def dashboard(self) -> str:
        """Where Ray's dashboard is, inside the Kubernetes cluster; empty while nobody knows."""
        host = f"{self.service}.{self.meta['namespace']}.svc" if self.service else self.address
        return f"http://{host}:{DASHBOARD_PORT}" if host else ""

    @property
    def growing(self) -> bool:
        """Whether worker pods of the job's RayCluster still start: a place that is missing now may be on the way."""
        desired, ready = (number(self.cluster, "status", f"{each}WorkerReplicas") for each in ("desired", "ready"))
        stuck = any(pod.trouble and not pod.ready and not pod.leaving for pod in self.observed.pods)
        return not self.ref and ready < desired and not stuck

    @property
    def kept(self) -> bool:
        """Whether what Ray knows outlives its head, and the session is known by which that is seen."""
        kept = text(self.cluster, "metadata", "annotations", names.SURVIVES)
        return bool(kept and self.recorded.get("sessionName"))

    @property
    def moved(self) -> bool:
        """Whether the head is another process than the one that the submission was made to."""
        head, known = self.head, self.recorded
        if head is None:
            return False
        another = bool(known.get("headContainer")) and head.container not in ("", known.get("headContainer"))
        return another or known.get("headPodUID", head.uid) != head.uid

    @cached_property
    def head(self) -> Pod | None:
        """The head's pod, unless it is leaving."""
        return next((pod for pod in self.observed.pods if pod.head and not pod.leaving), None)

    # -- what Ray and PrimeMaster say

    @cached_property
    def ray_job(self) -> RayJobView | None:
        """Ray's word on this attempt's submission; None: not asked yet."""
        view = self.observed.ray_job
        return view if view is not None and self.submitted and view.id == self.submission else None

    @cached_property
    def snapshot(self) -> Object:
        """PrimeMaster's last word in this attempt; empty: none in this life of the operator."""
        master, ray_job = self.observed.master, self.observed.ray_job
        late = ray_job is not None and ray_job.id != self.submission
        return {} if master is None or late or not self.submitted else master.snapshot

    @property
    def told(self) -> bool:
        """Whether PrimeMaster has spoken in this attempt, in whatever life of the operator."""
        return bool(self.snapshot) or (self.submitted and bool(text(self.old, "master", "state")))

    @property
    def taken(self) -> bool:
        """Whether this attempt's submission runs, as far as PrimeMaster or Ray has said."""
        known = self.ray_job is not None and self.ray_job.status not in ("", "MISSING")
        return known or (self.told and not self.again)

    @property
    def silent(self) -> bool:
        """Whether PrimeMaster has been asked in vain for longer than it may take."""
        master = self.observed.master
        patience = PATIENCE_SECONDS if self.told else START_SECONDS
        return self.submitted and master is not None and bool(master.error) and master.age >= patience

    @property
    def reachable(self) -> bool:
        """Whether PrimeMaster answered the last question, so that it takes commands."""
        master = self.observed.master
        return bool(self.snapshot) and master is not None and not master.error and bool(self.address)

    # -- memory of the status

    @cached_property
    def conditions(self) -> Mapping[str, ConditionState]:
        """The conditions of the status as it is, by type; one that says nothing is none."""
        return {
            text(one, "type"): ConditionState(
                status=text(one, "status"),
                reason=text(one, "reason") or "Unknown",
                message=text(one, "message"),
                generation=number(one, "observedGeneration"),
                since=text(one, "lastTransitionTime") or stamp(self.now),
            )
            for one in items(self.old, "conditions")
            if text(one, "status")
        }

    def holds(self, condition: str) -> bool:
        """Whether a condition of ours is True."""
        return condition in self.conditions and self.conditions[condition].status == "True"

    def since(self, condition: str) -> float:
        """When a condition of ours last flipped; now when it is not there."""
        held = self.conditions.get(condition)
        return (seconds(held.since) if held else None) or self.now

    @property
    def finished(self) -> bool:
        """Whether the status has the verdict."""
        return any(self.holds(kind) for kind in ENDINGS)

    @property
    def stopping(self) -> tuple[Ending, ConditionState] | None:
        """The terminal condition that a stop leads to, and the one that is False until then; None: nobody stops it.

        An operator of an earlier version wrote Failed=False for an ordered stop as well.
        """
        if held := self.conditions.get("Stopped"):
            return "Stopped", held
        held = self.conditions.get("Failed")
        return None if held is None else (ending(held.reason), held)

    def trouble(self, prefix: str) -> Trouble | None:
        """The first failure of actions of a kind."""
        return next((trouble for trouble in self.observed.troubles if trouble.action.startswith(prefix)), None)


def stamp(at: float) -> str:
    """RFC 3339 in UTC, to the second, as Kubernetes writes times."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(time: str) -> float | None:
    """Unix seconds of an RFC 3339 time; None for none and for what is not one."""
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        return None
