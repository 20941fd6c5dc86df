"""Attempts: when one is lost, what that costs, and what must be gone before the next begins.

A new attempt is written to the status before any action: `attempt` is counted up while `rayCluster` still names the old
RayCluster. That one is deleted first; only then are the children of the new attempt created.
"""

from __future__ import annotations

from dljob.reconcile.state import names, reasons
from dljob.reconcile.state.accept import Refused
from dljob.reconcile.state.context import PATIENCE_SECONDS, ReconcileContext, seconds
from dljob.reconcile.state.fields import part, text
from dljob.reconcile.state.model import Delete, Object, Pod
from dljob.reconcile.state.steps import JobEnd, NewAttempt, PolicyDecision

CLUSTER = "Cluster"
"""The level of a fault that cost the whole attempt. PrimeMaster does not know such faults: it died with them."""
TOO_OFTEN, TOO_LONG_SECONDS = 20, 60.0
"""Consecutive refusals, and the seconds that they must span, after which a submission counts as failed.

Both must hold: each change of the job repeats the submission without a pause, so the count alone is reached too soon.
"""
ORPHAN_SECONDS = 60.0
"""Seconds that PrimeMaster may be silent after its launcher ended, before it counts as lost."""
DEFAULT_LEASE = 30
GRACE_SECONDS = 30.0
"""The kubelet's default grace for a deleted pod. Source: kubernetes.io, Termination of Pods."""
COLLECTED_SECONDS = 5.0
"""Seconds between looks at pods that the garbage collector has yet to delete."""
CLOCKS_SECONDS = 5.0
"""Allowance for the clocks of two operators' machines, and for times in the status having whole seconds."""
ENDED = ("FAILED", "STOPPED", "SUCCEEDED")
LAUNCHER_REASONS = {1: reasons.JOB_FAILED, 6: reasons.STOPPED}
"""Exit code of a launcher that saw its job end -> the reason it stands for."""


def begin_attempt_if_lost(case: ReconcileContext) -> PolicyDecision | None:
    """Begin a new attempt when this one is lost, as long as faultTolerance.maxClusterRestarts allows."""
    if case.replaced or (case.ref and case.suspended):
        return None  # on a RayCluster that its owner suspended nothing runs, and no attempt can begin
    loss = _changed(case) or _upgraded(case) or broken(case)
    if loss is None:
        return None
    # This holds for a spec that is refused, too: the next attempt, if one is left, then waits for a better spec.
    limit = case.live.max_cluster_restarts
    if loss.counted and case.restarted >= limit:
        message = f"{loss.message}; faultTolerance.maxClusterRestarts of {limit} is used up"
        verdict = JobEnd("Failed", reasons.CLUSTER_RESTARTS_EXHAUSTED, message, case.now)
        return PolicyDecision(
            f"attempt {case.attempt} is lost, and maxClusterRestarts allows no other: {loss.reason}", change=verdict
        )
    return PolicyDecision(f"attempt {case.attempt} is lost: {loss.reason}", change=loss)


def broken(case: ReconcileContext) -> NewAttempt | None:
    """Return the loss that cost the attempt everything it had in memory; None: nothing is lost."""
    return _cluster_lost(case) or _head_lost(case) or _submission_lost(case)


def patience(case: ReconcileContext) -> float | None:
    """Return the seconds until PrimeMaster's silence leads to a condition or costs the attempt; None: it does not."""
    master = case.observed.master
    if not case.submitted or master is None or not master.error:
        return None
    waits = [limit - master.age for limit in (PATIENCE_SECONDS, ORPHAN_SECONDS) if limit > master.age]
    return min(waits) if waits else None


def leftover(case: ReconcileContext) -> PolicyDecision | None:
    """Delete the RayCluster of the last attempt, then wait until its pods cannot hold what the next one needs."""
    if case.ref:
        seconds_left = clearing(case)
        return (
            None
            if seconds_left is None
            else PolicyDecision("the last attempt's ranks may live until their lease is over", requeue=seconds_left)
        )
    if not case.replaced:
        return None
    old = case.leftover
    if old is not None and not old["metadata"].get("deletionTimestamp"):
        meta = old["metadata"]
        return PolicyDecision(
            "the last attempt's RayCluster is deleted first", (Delete("RayCluster", meta["name"], meta["uid"]),)
        )
    seconds_left = clearing(case)
    return (
        None
        if seconds_left is None
        else PolicyDecision("the last attempt's RayCluster and pods are being deleted", requeue=seconds_left)
    )


def strays(case: ReconcileContext) -> PolicyDecision | None:
    """Delete the RayClusters of earlier attempts that a late request made: no status names them."""
    metas = [cluster["metadata"] for cluster in case.observed.strays if case.owns(cluster)]
    actions = tuple(
        Delete("RayCluster", meta["name"], meta["uid"]) for meta in metas if "deletionTimestamp" not in meta
    )
    return PolicyDecision("RayClusters of earlier attempts came late: they are deleted", actions) if actions else None


def clearing(case: ReconcileContext) -> float | None:
    """Return the most seconds that the remains of the last attempt must still be waited for; None: there is no wait.

    Its ranks may write to the checkpoint path that the next attempt reads, until their lease is over.
    """
    if not (case.replaced or (case.ref and _between(case))):
        return None
    seconds_left = _ranks_until(case) - case.now
    # While the old RayCluster exists its pods do, too, even if the lease is over.
    if case.leftover is not None:
        return max(seconds_left, 1.0)
    if not case.ref:
        # This attempt's RayCluster exists, and only the status does not name it yet: the wait ended before it was made.
        pods = () if case.cluster is not None else case.observed.pods
        if not pods:
            return None
        # A RayCluster of this name that still exists belongs to another owner, and so do its pods.
        is_ours = case.observed.cluster is None
        # A head without a deletionTimestamp still renews the ranks' lease, so the lease alone says nothing yet.
        if is_ours and not _head_is_dead(case) and any(_untold(pod) for pod in pods):
            return max(seconds_left, COLLECTED_SECONDS)
    return seconds_left if seconds_left > 0 else None


def _ranks_until(case: ReconcileContext) -> float:
    """Return the latest end of the lease of the last attempt's ranks, in unix seconds.

    The head renewed the lease until it ended. The head of a deleted RayCluster lives until its pod's grace is over,
    which its deletionTimestamp tells: pods are deleted together, possibly long after the attempt was given up.
    """
    fault = _last_fault(case)
    # Without a fault the attempt ended in order, when MasterReady became False.
    ended = seconds(text(fault, "detectedAt")) or case.since("MasterReady")
    if not _head_is_dead(case):
        graces = [pod.ends for pod in case.observed.pods if pod.ends is not None]
        ended = max([ended + GRACE_SECONDS if fault else ended, *graces])
    return ended + lease_seconds(case) + CLOCKS_SECONDS


def lease_seconds(case: ReconcileContext) -> int:
    """Return the seconds that ranks may live without a head."""
    return DEFAULT_LEASE if isinstance(case.terms, Refused) else case.terms.lease_seconds


def _untold(pod: Pod) -> bool:
    """Whether a pod has no deletionTimestamp yet: the garbage collector has not reached it."""
    return not pod.leaving and pod.phase not in ("Succeeded", "Failed")


def _last_fault(case: ReconcileContext) -> Object:
    """Return the fault that cost the last attempt; empty: the attempt ended for another reason."""
    fault = part(case.old, "lastFault")
    whose = text(fault, "target") == case.recorded.get("name", case.cluster_name)
    return fault if whose and text(fault, "level") == CLUSTER else {}


def _head_is_dead(case: ReconcileContext) -> bool:
    """Whether the last attempt's head, and PrimeMaster with it, had ended when the attempt was given up."""
    reason = text(_last_fault(case), "reason")
    return reason != reasons.CLUSTER_GONE if case.ref else reason == reasons.HEAD_LOST


def lingering(case: ReconcileContext) -> float | None:
    """Return the seconds that the head with the submission may outlive its RayCluster; None: it is dead.

    A deleted pod runs until its grace is over, and PrimeMaster in it.
    """
    if not case.ref or (case.cluster is not None and not case.suspended and not _another(case)):
        return None
    uid = case.recorded.get("headPodUID")
    head = next((pod for pod in case.observed.pods if pod.uid == uid), None)
    if head is None or head.phase in ("Succeeded", "Failed"):
        return None
    if head.ends is None:
        # Not deleted, or not yet: who deletes a RayCluster may orphan its pods (kubectl delete --cascade=orphan).
        late = case.finished and case.now >= case.since("Failed") + ORPHAN_SECONDS
        return None if late else COLLECTED_SECONDS
    seconds_left = head.ends + CLOCKS_SECONDS - case.now
    return seconds_left if seconds_left > 0 else None


def _another(case: ReconcileContext) -> bool:
    """Whether the RayCluster has another uid than the status remembers: it was deleted and created anew."""
    return case.cluster is not None and case.cluster["metadata"]["uid"] != case.recorded.get("uid")


def _between(case: ReconcileContext) -> bool:
    """Whether an attempt failed and the next has not begun, on a RayCluster that stays (spec.rayClusterRef)."""
    return case.attempt > 1 and not case.submitted and case.holds("Recovering")


def _changed(case: ReconcileContext) -> NewAttempt | None:
    """Begin a new attempt for a spec that was edited before anything ran, so that the job need not be created again.

    A new attempt is needed since children have fixed names, and the ConfigMap with the old spec is immutable.
    """
    made_of = text(case.old, "attemptSpecHash")
    if not made_of or isinstance(case.terms, Refused) or case.terms.hash == made_of:
        return None
    if not _unused(case):
        return None
    message = "the spec was changed before anything ran"
    return NewAttempt(reasons.SPEC_CHANGED, message, counted=False, fault=False)


def _unused(case: ReconcileContext) -> bool:
    """Whether nothing of the attempt runs, and nothing will without another pass."""
    # Once the submission is ordered, only Ray can tell that it was not posted. On an existing RayCluster the spec
    # travels with the submission, so an edited one is simply posted.
    missing = case.ray_job is not None and case.ray_job.status == "MISSING" and not case.has_reported and not case.ref
    return not case.submitted or missing


def outdated(case: ReconcileContext) -> bool:
    """Whether the pods have dljob of another minor version, whose launcher refuses this operator's submission."""
    version = made_by(case)
    return not case.ref and version != "" and _minor(version) != _minor(case.settings.version)


def made_by(case: ReconcileContext) -> str:
    """Return the version of the operator that made the RayCluster; empty: no operator made it."""
    return text(case.cluster, "metadata", "annotations", names.MADE_BY)


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _upgraded(case: ReconcileContext) -> NewAttempt | None:
    """Begin a new attempt for a job that waited, for a queue or its images, while the operator was upgraded."""
    if isinstance(case.terms, Refused) or not outdated(case) or not _unused(case):
        return None
    message = f"RayCluster {case.cluster_name} was made for another version than {case.settings.version}; nothing ran"
    return NewAttempt(reasons.OPERATOR_UPGRADED, message, counted=False, fault=False)


def _cluster_lost(case: ReconcileContext) -> NewAttempt | None:
    if not case.recorded.get("uid"):
        return None
    if case.cluster is None or _another(case):
        return NewAttempt(reasons.CLUSTER_GONE, f"RayCluster {case.cluster_name} was deleted")
    # A queue that suspends a RayCluster deletes its pods. Before the submission nothing is lost by that.
    if case.suspended and case.queued and case.submitted and not case.ref:
        message = f"RayCluster {case.cluster_name} was suspended while the job ran"
        return NewAttempt(reasons.PREEMPTED, message, counted=False)
    return None


def _head_lost(case: ReconcileContext) -> NewAttempt | None:
    """Return the loss of a head with Ray's state.

    The state is in the head's process, so another pod or container means a loss. With GCS fault tolerance it survives
    these, and only another session of Ray means a loss.
    """
    if not case.submitted:
        return None
    uid = case.recorded.get("headPodUID")
    if uid and case.head is not None and case.head.uid != uid and not case.keeps_state:
        message = f"head pod {case.recorded.get('headPod')} was replaced by {case.head.name}"
        return _resumed(case) or NewAttempt(reasons.HEAD_LOST, message)
    session = case.recorded.get("sessionName")
    if session and case.ray_job is not None and case.ray_job.session not in ("", session):
        message = f"the head restarted: Ray's session is {case.ray_job.session} now{_describe_loss(case)}"
        return _resumed(case) or NewAttempt(reasons.HEAD_LOST, message)
    container = case.recorded.get("headContainer")
    if container and case.head is not None and case.head.container not in ("", container) and not case.keeps_state:
        message = f"the head restarted: the container of pod {case.head.name} is another one now{_describe_loss(case)}"
        return _resumed(case) or NewAttempt(reasons.HEAD_LOST, message)
    return None


def _describe_loss(case: ReconcileContext) -> str:
    """Return the kubelet's report on the head, as a suffix of a message."""
    return f"; {case.head.trouble}" if case.head is not None and case.head.trouble else ""


def _resumed(case: ReconcileContext) -> NewAttempt | None:
    """Return the uncounted attempt after the owner of an existing RayCluster suspended and resumed it."""
    if not (case.ref and case.on_hold):
        return None
    message = f"RayCluster {case.ref} was suspended while the job ran, and is back"
    return NewAttempt(reasons.PREEMPTED, message, counted=False)


def _submission_lost(case: ReconcileContext) -> NewAttempt | None:
    trouble, view = case.trouble("Submit"), case.ray_job
    tried = trouble is not None and trouble.count >= TOO_OFTEN and case.now >= trouble.since + TOO_LONG_SECONDS
    if trouble is not None and tried and not case.has_reported and not case.is_submitted:
        return NewAttempt(reasons.SUBMISSION_FAILED, f"{trouble.count} submissions in a row failed: {trouble.message}")
    if view is None or (case.keeps_state and (case.head is None or case.moved or not case.head_ready)):
        return None  # Ray's answer is about a head that is gone, and PrimeMaster may well live on its worker
    # Exit codes in TOLD are the end of the job itself, which `finish` records.
    if view.status in ENDED:
        message = f"the launcher ended as {view.status}: {view.message or view.tail or 'no reason given'}"
        if not case.has_reported and view.status != "SUCCEEDED" and view.exit_code not in LAUNCHER_REASONS:
            return NewAttempt(reasons.SUBMISSION_FAILED, message)
    elif view.status == "MISSING" and case.has_reported:
        message = "Ray does not know the submission any more"
    else:
        return None
    # Only a dead launcher beside a silent PrimeMaster costs the attempt: silence alone is no loss.
    master = case.observed.master
    if master is not None and master.error and master.age >= ORPHAN_SECONDS:
        return NewAttempt(reasons.MASTER_LOST, f"{message}; PrimeMaster does not answer: {master.error}")
    return None
