"""Stopping a job before its end: by the annotation `dljob.io/stop`, or by a deadline.

The intent is written first, as the condition Stopped=False, or Failed=False for a deadline, with its reason. Then
PrimeMaster is asked to stop. The condition becomes True when it has stopped, cannot stop, takes too long, or is lost; a
job that ended well in the meantime is Complete instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from dljob.reconcile.policies import commands
from dljob.reconcile.policies.attempts import ENDED, broken, lingering
from dljob.reconcile.policies.submit import watch
from dljob.reconcile.state import names, reasons
from dljob.reconcile.state.context import PATIENCE_SECONDS, ConditionState, ReconcileContext, seconds
from dljob.reconcile.state.fields import bounded, number, text
from dljob.reconcile.state.model import Command
from dljob.reconcile.state.steps import Ending, Intent, JobEnd, PolicyDecision
from dljob.telemetry.reasons import NEVER_FITS
from dljob.telemetry.wording import counted

AGAIN_SECONDS = 5.0
NODES_SECONDS = 10.0
"""Seconds from a RayCluster's last ready worker to the end of a job that it could never hold.

PrimeMaster sees the worker's node within one or two.
"""
# Phases before the job ran, to which preRunningDeadlineSeconds applies.
BEFORE_RUNNING = ("", "Invalid", "Pending", "Provisioning", "Scheduling")


def stop(case: ReconcileContext) -> PolicyDecision | None:
    """Stop a job that a user or a deadline ends."""
    if case.stopping is not None:
        return _carry_out(case, *case.stopping)
    intent = _annotated(case) or _overdue(case)
    if intent is None:
        return None
    # Before the submission no process of the job exists, so the end needs no intermediate step.
    if not case.submitted or case.cluster is None:
        verdict = JobEnd(intent.condition, intent.reason, intent.message, case.now)
        return PolicyDecision(f"nothing runs that could be stopped: {intent.reason}", change=verdict)
    return PolicyDecision(f"the job is to be stopped: {intent.reason}", change=intent)


def wait(case: ReconcileContext) -> float | None:
    """Return the seconds until the next deadline; None without one."""
    waits = [at - case.now for at, _ in _deadlines(case) if at > case.now]
    return min(waits) if waits else None


def command_id(case: ReconcileContext) -> str:
    """Return the id of the stop order in this attempt."""
    return f"stop/{case.attempt}"


def _annotated(case: ReconcileContext) -> Intent | None:
    value = case.annotations.get(names.STOP)
    if not value:
        return None
    entry = commands.entry(case, "stop", "job", value, "Sent", "the job is being stopped")
    return Intent(reasons.STOPPED, f"annotation {names.STOP}: {bounded(value, 64)}", (entry,))


def _overdue(case: ReconcileContext) -> Intent | None:
    return next((intent for at, intent in _deadlines(case) if at <= case.now), None)


def _deadlines(case: ReconcileContext) -> Iterator[tuple[float, Intent]]:
    """Yield (unix seconds, what happens then) for each deadline that runs."""
    start = seconds(text(case.old, "startTime"))
    # No deadline runs while the job cannot run (suspended, or invalid before its first attempt) or only saves.
    if start is None or _waits_for_a_better_spec(case) or case.halt or not case.should_run or _ended_well(case):
        return
    if case.ref and text(case.snapshot, "reason") == NEVER_FITS and not case.growing:
        yield _fits_never(case)
    active, before = case.live.active_deadline, case.live.pre_running_deadline
    if active is not None:
        message = f"activeDeadlineSeconds of {active} passed since {text(case.old, 'startTime')}"
        yield start + active, Intent(reasons.DEADLINE_EXCEEDED, message)
    if before is None and (default := _default_deadline(case)):
        yield default
    if before is not None and _never_ran(case):
        detail = text(case.old, "message") or text(case.old, "reason")
        message = f"not running after preRunningDeadlineSeconds of {before}: {detail}"
        yield start + before, Intent(reasons.PRE_RUNNING_DEADLINE, message)


def _default_deadline(case: ReconcileContext) -> tuple[float, Intent] | None:
    """Return when a job without preRunningDeadlineSeconds fails, whose pods cannot start without help; else None.

    What may end by itself is waited for: room on machines that others use, a queue, KubeRay's return.
    """
    limit, cluster_ready = case.settings.pre_running_deadline, case.conditions.get("ClusterReady")
    if not limit or case.has_reported or cluster_ready is None or not _needs_help(cluster_ready):
        return None
    message = f"not running {limit} s after its RayCluster was due, the operator's default: {cluster_ready.message}"
    return case.since("ClusterReady") + limit, Intent(reasons.PRE_RUNNING_DEADLINE, message)


def _needs_help(cluster_ready: ConditionState) -> bool:
    """Whether ClusterReady names a trouble of the kubelet's, scheduler's, KubeRay's or API server's that lasts."""
    foreign = cluster_ready.reason not in reasons.ALL or cluster_ready.reason in reasons.OF_CREATION
    return foreign and "Insufficient" not in cluster_ready.message


def _fits_never(case: ReconcileContext) -> tuple[float, Intent]:
    """Return when a job ends that PrimeMaster has no room for, on a RayCluster whose workers are all ready.

    The last worker may be ready a moment before PrimeMaster sees its node.
    """
    cluster_ready = case.conditions.get("ClusterReady")
    complete_since = case.since("ClusterReady") if cluster_ready and cluster_ready.status == "True" else case.now
    ready = number(case.cluster, "status", "readyWorkerReplicas")
    message = (
        f"{text(case.snapshot, 'message')}; RayCluster {case.ref} wants no more than its {counted(ready, 'worker')}"
    )
    return complete_since + NODES_SECONDS, Intent(NEVER_FITS, message)


def _ended_well(case: ReconcileContext) -> bool:
    """Whether PrimeMaster reported success and only saves now. The status remembers it while PrimeMaster is silent."""
    return text(case.snapshot or case.old, "reason") == reasons.COMPLETED


def _waits_for_a_better_spec(case: ReconcileContext) -> bool:
    """Whether the job has not begun and its spec keeps it from that, so that no deadline runs.

    A job that lost an attempt has begun.
    """
    return case.invalid is not None and not case.holds("Recovering")


def _never_ran(case: ReconcileContext) -> bool:
    """Whether the job has not run yet. An operator that was away waits for PrimeMaster's report before it says so."""
    if text(case.old, "phase") not in BEFORE_RUNNING or (case.invalid is not None and case.holds("Recovering")):
        return False
    if case.snapshot:
        return text(case.snapshot, "phase") in BEFORE_RUNNING
    master = case.observed.master
    patient = master is None or master.age < PATIENCE_SECONDS
    return not (case.submitted and patient and watch(case))


def _carry_out(case: ReconcileContext, condition: Ending, ordered: ConditionState) -> PolicyDecision:
    verdict = JobEnd(condition, ordered.reason, ordered.message, case.now)
    seconds_left = (seconds(ordered.since) or case.now) + commands.limit(case) - case.now
    # The launcher failed before PrimeMaster ever reported: there is nothing to stop. One that succeeded proves that the
    # job did: an operator that was away may see it before PrimeMaster's report, and waits for that (`finish.verdict`).
    over = case.ray_job is not None and case.ray_job.status in ENDED and case.ray_job.status != "SUCCEEDED"
    over = over and not case.has_reported
    id_ = command_id(case)
    # The time may pass while no operator runs: PrimeMaster is asked at least once before the job is given up.
    late = seconds_left <= 0 and commands.is_delivered(case, id_, PATIENCE_SECONDS)
    if late or over or _nothing_to_save(case):
        return PolicyDecision(f"the job counts as stopped: {verdict.reason}", change=verdict)
    seconds_left = seconds_left if seconds_left > 0 else AGAIN_SECONDS
    if case.reachable and id_ not in case.observed.commands:
        action = Command(id_, case.cluster_name, case.address, "stop", "job", _requester(verdict.reason))
        return PolicyDecision("PrimeMaster is asked to stop the job", (action,), requeue=seconds_left)
    return PolicyDecision("PrimeMaster is stopping the job", requeue=seconds_left)


def _nothing_to_save(case: ReconcileContext) -> bool:
    """Whether the attempt is lost, so that no process is left to stop, and none that could save."""
    # Who suspends a RayCluster that stays may resume it before KubeRay has deleted a pod: PrimeMaster runs on then.
    is_held = case.suspended and lingering(case) is None
    return case.cluster is None or is_held or broken(case) is not None


def _requester(reason: str) -> str:
    return "annotation" if reason == reasons.STOPPED else reason
