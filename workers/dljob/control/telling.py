"""Events: what turned between two states of the status, told once."""

from __future__ import annotations

from collections.abc import Iterator

from dljob.control import reasons
from dljob.control.fields import items, number, part, text
from dljob.control.model import Event, Object

QUIET = frozenset({reasons.WAITS_FOR_HEAD, reasons.WAITS_FOR_MASTER, reasons.JOB_ENDED, reasons.CLUSTER_MISSING})
"""Reasons of conditions that say nothing a user needs an Event for."""
PASSED_ON = ("ClusterReady", "PlacementReady")
"""Conditions whose reason may be the kubelet's, the scheduler's, KubeRay's or PrimeMaster's."""
FATAL = "Fail"
"""The level of a fault that ends the job."""
ORDERED = "Requested"
"""PrimeMaster's reason of a restart that somebody ordered: no fault."""


def events(old: Object, new: Object) -> tuple[Event, ...]:
    """An Event for each condition whose status or reason is another one now, and for a new fault."""
    return (*_faults(old, new), *_new_attempt(old, new), *_cluster(old, new), *_conditions(old, new))


def _faults(old: Object, new: Object) -> Iterator[Event]:
    known = {_key(fault) for fault in items(old, "recentFaults")}
    for fault in items(new, "recentFaults"):
        if _key(fault) not in known:
            level = text(fault, "level")
            then = "the job ends" if level == FATAL else f"restarted at level {level}"
            message = f"{text(fault, 'target')}: {text(fault, 'firstCause')}; {then}"
            kind = "Normal" if text(fault, "reason") == ORDERED else "Warning"
            yield Event(kind, text(fault, "reason"), message, "Recovering")


def _new_attempt(old: Object, new: Object) -> Iterator[Event]:
    """A new attempt that no fault explains."""
    if _begins(old, new) and part(old, "lastFault") == part(new, "lastFault"):
        yield Event("Normal", text(new, "reason"), text(new, "message"), "NewAttempt")


def _cluster(old: Object, new: Object) -> Iterator[Event]:
    """A RayCluster that is seen for the first time."""
    uid = text(new, "rayCluster", "uid")
    if uid and uid != text(old, "rayCluster", "uid"):
        message = f"attempt {number(new, 'attempt')} has RayCluster {text(new, 'rayCluster', 'name')}"
        yield Event("Normal", reasons.CLUSTER_CREATED, message, "CreateCluster")


def _begins(old: Object, new: Object) -> bool:
    return number(new, "attempt") > max(number(old, "attempt"), 1)


def _key(fault: Object) -> tuple[str, str]:
    return text(fault, "detectedAt"), text(fault, "target")


def _conditions(old: Object, new: Object) -> Iterator[Event]:
    before = {text(one, "type"): one for one in items(old, "conditions")}
    lost = _begins(old, new)
    for one in items(new, "conditions"):
        was = part(before, one["type"])
        if (text(was, "status"), text(was, "reason")) == (one["status"], one["reason"]) or one["reason"] in QUIET:
            continue
        # A fault's own Event says why something is recovering, or why the attempt is lost.
        if (one["type"], one["status"]) == ("Recovering", "True") or (lost and one["reason"] == new["reason"]):
            continue
        yield _event(one)


def _event(condition: Object) -> Event:
    kind, status, reason = condition["type"], condition["status"], condition["reason"]
    failed = kind == "Failed" and status == "True" and reason != reasons.STOPPED
    # What others say of a cluster or a placement that is not ready is a trouble; what is usual has our own reasons.
    trouble = kind in PASSED_ON and status == "False" and reason not in reasons.ALL
    bad = reason in reasons.WARNINGS or failed or trouble
    return Event("Warning" if bad else "Normal", reason, condition["message"] or f"{kind} is {status}", kind)
