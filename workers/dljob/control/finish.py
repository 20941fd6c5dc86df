"""How a job ends, and what is done after: logs kept, RayCluster deleted or kept, the DLJob deleted in time."""

from __future__ import annotations

from dljob.control import names, reasons
from dljob.control.accept import Refused
from dljob.control.attempts import ENDED, ORPHAN_SECONDS
from dljob.control.case import Case, seconds
from dljob.control.children import labels
from dljob.control.fields import text
from dljob.control.model import Delete, Event, SaveLogs
from dljob.control.steps import Step, Verdict

NO_DLJOB = ("No module named 'dljob'", "No module named 'dljob.", "No module named dljob")
"""What Python says in an image without dljob, and with one that has no launcher. Source: CPython, Lib/runpy.py."""
ANEW = "then delete this job and apply it again"
LOGS_SECONDS = 60.0
"""The RayCluster waits for its logs to be saved for so long after the operator learned of the end."""
LOGS_TRIES = 5


def verdict(case: Case) -> Step | None:
    """The end, when PrimeMaster has said it, the launcher refused, or nobody but the launcher can say."""
    found = _masters(case) or _launchers(case)
    return None if found is None else Step(f"the job is over: {found.reason}", change=found)


def after(case: Case) -> Step:
    """What a job that is over still needs, one thing a pass."""
    return logs(case, _learned(case)) or _cluster(case) or _ttl(case)


def _masters(case: Case) -> Verdict | None:
    phase, stopped = case.snapshot.get("phase"), case.conditions.get("Failed")
    if phase not in ("Succeeded", "Failed") and not (phase == "Suspended" and stopped is not None):
        return None
    success = phase == "Succeeded"
    at = seconds(text(case.snapshot, "completionTime")) or case.now
    if stopped is not None and not success:
        return Verdict(success, stopped.reason, stopped.message, at)
    reason = text(case.snapshot, "reason") or (reasons.COMPLETED if success else reasons.JOB_FAILED)
    return Verdict(success, reason, text(case.snapshot, "message"), at)


def _launchers(case: Case) -> Verdict | None:
    view = case.ray_job
    if view is None or view.status not in ENDED:
        return None
    if view.refusal:
        message, hint = view.refusal.get("message", ""), view.refusal.get("hint")
        message = f"{message}; {hint}; {ANEW}" if hint else message
        return Verdict(
            success=False, reason=view.refusal.get("reason", reasons.JOB_FAILED), message=message, at=case.now
        )
    if not case.told and any(words in view.tail + view.message for words in NO_DLJOB):
        image = text(case.old, "effective", "image")
        message = f"image {image} has no dljob; install it there, or let the operator bring it (--init-image)"
        if case.ref:
            message = (
                f"RayCluster {case.ref} has pods without dljob: install dljob=={case.settings.version} in its image"
            )
        return Verdict(success=False, reason=reasons.IMAGE_WITHOUT_DLJOB, message=f"{message}; {ANEW}", at=case.now)
    master = case.observed.master
    if master is None or not master.error or master.age < ORPHAN_SECONDS:
        return None
    said = "PrimeMaster does not answer any more, so its launcher's word counts"
    if view.status == "SUCCEEDED":
        return Verdict(success=True, reason=reasons.COMPLETED, message=said, at=case.now)
    if view.exit_code == 1:
        message = f"{view.message or view.tail or 'no reason given'}; {said}"
        return Verdict(success=False, reason=reasons.JOB_FAILED, message=message, at=case.now)
    return None


def logs(case: Case, since: float) -> Step | None:
    """Keep the tails of the ranks' logs, while the head can give them. `since`: when that could begin."""
    if case.observed.logs_saved or not case.told or case.cluster is None or case.leaving:
        return None
    trouble = case.trouble("SaveLogs")
    left = since + LOGS_SECONDS - case.now
    if left <= 0 or (trouble is not None and trouble.count >= LOGS_TRIES):
        return None
    if not case.head_ready:
        return Step("the head is not ready to give the logs", requeue=left)
    name = names.logs_map(case.name)
    marks = {**labels(case), names.ATTEMPT: str(case.attempt)}
    action = SaveLogs(name, case.cluster_name, case.address, case.owner, marks)
    return Step("the logs are to be kept", (action,), requeue=left)


def _cluster(case: Case) -> Step | None:
    cluster = case.cluster or case.leftover
    if cluster is None or case.ref or (not isinstance(case.terms, Refused) and case.terms.retain):
        return None
    meta = cluster["metadata"]
    if meta.get("deletionTimestamp"):
        return Step("the ended job's RayCluster is leaving")
    action = Delete("RayCluster", meta["name"], meta["uid"])
    events = (word_on_logs(case),) if case.told else ()
    return Step("the ended job's RayCluster gives its machines back", (action,), events=events)


def word_on_logs(case: Case) -> Event:
    """Whether the logs were kept, before their RayCluster goes."""
    if case.observed.logs_saved:
        message = f"ConfigMap {names.logs_map(case.name)} has the last lines of each rank's log"
        return Event("Normal", reasons.LOGS_SAVED, message, "SaveLogs")
    trouble = case.trouble("SaveLogs")
    why = f": {trouble.message}" if trouble else ""
    message = f"the last lines of the ranks' logs could not be had before the RayCluster goes{why}"
    return Event("Warning", reasons.LOGS_LOST, message, "SaveLogs")


def _ttl(case: Case) -> Step:
    ttl = None if isinstance(case.terms, Refused) else case.terms.ttl
    if ttl is None:
        return Step("the job is over")
    left = ended(case) + ttl - case.now
    if left > 0:
        return Step("the job is over; it is deleted in time", requeue=left)
    version = text(case.meta, "resourceVersion")  # whoever takes the field away to keep the job may not be heard yet
    return Step("ttlSecondsAfterFinished have passed", (Delete("DLJob", case.name, case.uid, version=version),))


def _learned(case: Case) -> float:
    """When the operator wrote the verdict: long after the end, when it was away meanwhile."""
    return case.since("Complete" if case.holds("Complete") else "Failed")


def ended(case: Case) -> float:
    """When the job ended."""
    return seconds(text(case.old, "completionTime")) or case.now
