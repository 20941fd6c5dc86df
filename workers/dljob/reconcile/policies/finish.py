"""The end of a job, and the cleanup after it: logs kept, RayCluster deleted or kept, DLJob deleted after its TTL."""

from __future__ import annotations

from dljob.reconcile.children.children import delete_spec_map, labels
from dljob.reconcile.policies.attempts import ENDED, LAUNCHER_REASONS, ORPHAN_SECONDS
from dljob.reconcile.policies.images import ANEW, misfit
from dljob.reconcile.state import names, reasons
from dljob.reconcile.state.context import ReconcileContext, seconds
from dljob.reconcile.state.fields import text
from dljob.reconcile.state.model import Delete, Event, SaveLogs
from dljob.reconcile.state.steps import ENDINGS, JobEnd, PolicyDecision, ending
from dljob.spec.status import TERMINAL

NO_DLJOB = ("No module named 'dljob'", "No module named 'dljob.", "No module named dljob")
"""Python's messages in an image without dljob, or with a dljob without launcher. Source: CPython, Lib/runpy.py."""
LOGS_SECONDS = 60.0
"""Seconds that the RayCluster stays for its logs to be saved, from when the operator learned of the end."""
LOGS_TRIES = 5
"""Failed fetches after which the RayCluster is deleted without its logs: they must not hold its machines."""


def verdict(case: ReconcileContext) -> PolicyDecision | None:
    """End the job when PrimeMaster reports its end, the launcher or an image refused it, or only the launcher tells."""
    end = _masters(case) or _launchers(case) or misfit(case)
    return None if end is None else PolicyDecision(f"the job is over: {end.reason}", change=end)


def after(case: ReconcileContext) -> PolicyDecision:
    """Return the next step of the cleanup: logs, then the RayCluster, then the DLJob."""
    return logs(case, _learned(case)) or _cluster(case) or _ttl(case)


def _masters(case: ReconcileContext) -> JobEnd | None:
    phase, stopping = case.snapshot.get("phase"), case.stopping
    if phase not in TERMINAL and not (phase == "Suspended" and stopping is not None):
        return None
    success = phase == "Succeeded"
    # Not later than now, whatever the head says: the DLJob's time to live counts from then.
    at = min(seconds(text(case.snapshot, "completionTime")) or case.now, case.now)
    # The reason of an ordered stop is the user's or the deadline's. A job that succeeded meanwhile is Complete anyway.
    if stopping is not None and not success:
        condition, ordered = stopping
        return JobEnd(condition, ordered.reason, ordered.message, at)
    reason = text(case.snapshot, "reason") or (reasons.COMPLETED if success else reasons.JOB_FAILED)
    # A PrimeMaster before the phase Stopped reports Failed for a job that somebody stopped.
    return JobEnd("Complete" if success else ending(reason), reason, text(case.snapshot, "message"), at)


def _launchers(case: ReconcileContext) -> JobEnd | None:
    view = case.ray_job
    if view is None or view.status not in ENDED:
        return None
    # The launcher refused the job, with a record of why.
    if view.refusal:
        message, hint = view.refusal.get("message", ""), view.refusal.get("hint")
        message = f"{message}; {hint}; {ANEW}" if hint else message
        return JobEnd("Failed", view.refusal.get("reason", reasons.JOB_FAILED), message, case.now)
    # The launcher did not even start, since Python found no dljob.
    if not case.has_reported and any(words in view.tail + view.message for words in NO_DLJOB):
        image = text(case.old, "effective", "image")
        message = f"image {image} has no dljob; install it there, or let the operator bring it (--init-image)"
        if case.ref:
            message = (
                f"RayCluster {case.ref} has pods without dljob: install dljob=={case.settings.version} in its image"
            )
        return JobEnd("Failed", reasons.IMAGE_WITHOUT_DLJOB, f"{message}; {ANEW}", case.now)
    # While PrimeMaster answers its own report counts. The launcher's exit code is the last resort.
    master = case.observed.master
    if master is None or not master.error or master.age < ORPHAN_SECONDS:
        return None
    fallback = "PrimeMaster does not answer any more, so the exit code of its launcher counts"
    if view.status == "SUCCEEDED":
        return JobEnd("Complete", reasons.COMPLETED, fallback, case.now)
    if view.exit_code in LAUNCHER_REASONS:
        message = f"{view.message or view.tail or 'no reason given'}; {fallback}"
        reason = LAUNCHER_REASONS[view.exit_code]
        return JobEnd(ending(reason), reason, message, case.now)
    return None


def logs(case: ReconcileContext, since: float) -> PolicyDecision | None:
    """Save the tails of the ranks' logs while the head can still deliver them. `since`: when that became possible."""
    if case.observed.logs_saved or not case.has_reported or case.cluster is None or case.leaving:
        return None
    trouble = case.trouble("SaveLogs")
    seconds_left = since + LOGS_SECONDS - case.now
    if seconds_left <= 0 or (trouble is not None and trouble.count >= LOGS_TRIES):
        return None
    # A head that restarts may be ready again within the limit.
    if not case.head_ready:
        return PolicyDecision("the head is not ready to deliver the logs", requeue=seconds_left)
    name = names.logs_map(case.name)
    marks = {**labels(case), names.ATTEMPT: str(case.attempt)}
    action = SaveLogs(name, case.cluster_name, case.address, case.owner, marks)
    return PolicyDecision("the tails of the logs are saved", (action,), requeue=seconds_left)


def _cluster(case: ReconcileContext) -> PolicyDecision | None:
    cluster = case.cluster or case.leftover
    if cluster is None or case.ref or case.live.retain:
        return None
    meta = cluster["metadata"]
    if meta.get("deletionTimestamp"):
        return PolicyDecision("the ended job's RayCluster is being deleted")
    action = Delete("RayCluster", meta["name"], meta["uid"])
    events = (word_on_logs(case),) if case.has_reported else ()
    # The RayCluster comes last: a pass after a crash in between finds it and repeats both.
    actions = (*delete_spec_map(case, case.attempt), action)
    return PolicyDecision("the job has ended: its RayCluster is deleted", actions, events=events)


def word_on_logs(case: ReconcileContext) -> Event:
    """Return an Event that tells, before the RayCluster goes, whether the logs were saved."""
    if case.observed.logs_saved:
        message = f"ConfigMap {names.logs_map(case.name)} has the last lines of each rank's log"
        return Event("Normal", reasons.LOGS_SAVED, message, "SaveLogs")
    trouble = case.trouble("SaveLogs")
    detail = f": {trouble.message}" if trouble else ""
    message = f"the last lines of the ranks' logs could not be fetched before the RayCluster is deleted{detail}"
    return Event("Warning", reasons.LOGS_LOST, message, "SaveLogs")


def _ttl(case: ReconcileContext) -> PolicyDecision:
    if case.live.ttl is None:
        return PolicyDecision("the job is over")
    wait_s = ended(case) + case.live.ttl - case.now
    if wait_s > 0:
        return PolicyDecision("the job is over; its DLJob is deleted after ttlSecondsAfterFinished", requeue=wait_s)
    version = text(case.meta, "resourceVersion")  # a user may just have removed the TTL to keep the job
    return PolicyDecision(
        "ttlSecondsAfterFinished has passed: the DLJob is deleted",
        (Delete("DLJob", case.name, case.uid, version=version),),
    )


def _learned(case: ReconcileContext) -> float:
    """Return when the operator wrote the end of the job, which may be long after the end itself."""
    return case.since(next(kind for kind in ENDINGS if case.holds(kind)))


def ended(case: ReconcileContext) -> float:
    """Return when the job ended, in unix seconds."""
    return seconds(text(case.old, "completionTime")) or case.now
