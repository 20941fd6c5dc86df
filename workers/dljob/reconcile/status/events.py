"""Events: the changes between two statuses, each told once."""

from __future__ import annotations

from collections.abc import Iterator

from dljob.reconcile.state import exclusions, reasons
from dljob.reconcile.state.fields import items, number, part, text
from dljob.reconcile.state.model import Event, Object
from dljob.telemetry.wording import counted

QUIET = frozenset({reasons.WAITS_FOR_HEAD, reasons.WAITS_FOR_MASTER, reasons.JOB_ENDED, reasons.CLUSTER_MISSING})
"""Reasons of conditions that need no Event."""
PASSED_ON = ("ClusterReady", "PlacementReady")
"""Conditions whose reason may come from the kubelet, the scheduler, KubeRay or PrimeMaster."""
SAID_BY_OTHERS = ("Ready", "Reconciling", "Stalled")
"""Conditions for tools, whose reasons are those of others."""
FATAL = "Fail"
"""The level of a fault that ends the job."""
ORDERED = "Requested"
"""PrimeMaster's reason for a restart that somebody ordered, which is no fault."""
RESIZED = "Resized"
"""PrimeMaster's reason for a restart with another number of ranks, which is no fault either."""


def events(old: Object, new: Object) -> tuple[Event, ...]:
    """Return an Event for each condition with a new status or reason, for each new fault, and for each other change."""
    children = (*_cluster(old, new), *_head(old, new), *_nodes(old, new))
    return (*_faults(old, new), *_sizes(old, new), *_new_attempt(old, new), *children, *_conditions(old, new))


def _nodes(old: Object, new: Object) -> Iterator[Event]:
    """Yield an Event for each Kubernetes node that becomes excluded or usable again."""
    for kind, reason, message in exclusions.changes(part(old, "nodes"), part(new, "nodes")):
        yield Event("Warning" if kind == "Warning" else "Normal", reason, message, "ExcludeNode")


def _faults(old: Object, new: Object) -> Iterator[Event]:
    for fault in _fresh(old, new):
        done = {FATAL: "the job ends", "Wait": "it is waited for"}
        then = done.get(text(fault, "level"), f"restarted at level {text(fault, 'level')}")
        kind = "Normal" if text(fault, "reason") in (ORDERED, RESIZED) else "Warning"
        yield Event(kind, text(fault, "reason"), f"{_cause(fault)}; {then}", "Recovering")
    yield from _known_later(old, new)


def _known_later(old: Object, new: Object) -> Iterator[Event]:
    """Yield Events for faults with a new cause: the kernel's or the pod's evidence came during the restart."""
    # A fault is identified by time and target: its reason and cause are what evidence may change.
    before: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for fault in items(old, "recentFaults"):
        before.setdefault(_key(fault), []).append((text(fault, "reason"), text(fault, "firstCause")))
    for fault in items(new, "recentFaults"):
        reason, cause = text(fault, "reason"), text(fault, "firstCause")
        reported = before.get(_key(fault), [])
        if reported and (reason, cause) not in reported:
            then = f"reported as {reported[0][0]} before" if reason not in dict(reported) else "with more detail now"
            yield Event("Warning", reason, f"{_cause(fault)}; {then}", "Recovering")


def _cause(fault: Object) -> str:
    """Return whom a fault concerns and why; PrimeMaster's cause often begins with the target already."""
    target, cause = text(fault, "target"), text(fault, "firstCause")
    return cause if cause.startswith(f"{target}: ") else f"{target}: {cause}"


def _fresh(old: Object, new: Object) -> Iterator[Object]:
    known = {_key(fault) for fault in items(old, "recentFaults")}
    return (fault for fault in items(new, "recentFaults") if _key(fault) not in known)


def _sizes(old: Object, new: Object) -> Iterator[Event]:
    """Yield an Event for a role with another number of ranks that no restart of its own explains: it lost some."""
    # A resize by a restart has its own fault entry, and each attempt begins with sizes of its own.
    is_explained = any(text(fault, "reason") == RESIZED for fault in _fresh(old, new))
    if is_explained or number(old, "attempt") != number(new, "attempt"):
        return
    before = {text(role, "name"): number(role, "desired") for role in items(old, "roles")}
    for role in items(new, "roles"):
        name, have = text(role, "name"), number(role, "desired")
        if have != (had := before.get(name, have)):
            yield Event("Normal", RESIZED, f"{name} has {counted(have, 'rank')} instead of {had}", "Resize")


def _new_attempt(old: Object, new: Object) -> Iterator[Event]:
    """Yield an Event for a new attempt that no fault explains."""
    if _begins(old, new) and part(old, "lastFault") == part(new, "lastFault"):
        yield Event("Normal", text(new, "reason"), text(new, "message"), "NewAttempt")


def _cluster(old: Object, new: Object) -> Iterator[Event]:
    """Yield an Event when an attempt's RayCluster is first seen."""
    uid = text(new, "rayCluster", "uid")
    if uid and uid != text(old, "rayCluster", "uid"):
        message = f"attempt {number(new, 'attempt')} has RayCluster {text(new, 'rayCluster', 'name')}"
        yield Event("Normal", reasons.CLUSTER_CREATED, message, "CreateCluster")


def _head(old: Object, new: Object) -> Iterator[Event]:
    """Yield an Event for a head that has the Ray state of the one before it."""
    before, sent = text(old, "submissionId"), text(new, "submissionId")
    if before and sent.startswith(f"{before.rpartition('-r')[0] or before}-r") and sent != before:
        lost, back = text(old, "rayCluster", "headPod"), text(new, "rayCluster", "headPod")
        which = f"head pod {lost} was replaced by {back}" if lost != back else f"the head restarted in pod {back}"
        message = f"{which}, which has its Ray state: the job goes on, and a launcher is ordered again as {sent}"
        yield Event("Warning", reasons.HEAD_REPLACED, message, "Submit")


def _begins(old: Object, new: Object) -> bool:
    return number(new, "attempt") > max(number(old, "attempt"), 1)


def _key(fault: Object) -> tuple[str, str]:
    return text(fault, "detectedAt"), text(fault, "target")


def _conditions(old: Object, new: Object) -> Iterator[Event]:
    before = {text(row, "type"): row for row in items(old, "conditions")}
    lost = _begins(old, new)
    for row in items(new, "conditions"):
        last = part(before, row["type"])
        if (text(last, "status"), text(last, "reason")) == (row["status"], row["reason"]) or row["reason"] in QUIET:
            continue
        if row["type"] in SAID_BY_OTHERS:
            continue
        if row["reason"] == reasons.JOB_SUSPENDED and row["type"] != "Suspended":
            continue  # it says so itself
        # A fault's own Event says why something is recovering, or why the attempt is lost.
        if (row["type"], row["status"]) == ("Recovering", "True") or (lost and row["reason"] == new["reason"]):
            continue
        yield _event(row)


def _event(condition: Object) -> Event:
    kind, status, reason = condition["type"], condition["status"], condition["reason"]
    failed = kind == "Failed" and status == "True"
    # A foreign reason for a missing cluster or placement is a trouble; the usual waits have reasons of the operator.
    trouble = kind in PASSED_ON and status == "False" and reason not in reasons.ALL
    bad = reason in reasons.WARNINGS or failed or trouble
    return Event("Warning" if bad else "Normal", reason, condition["message"] or f"{kind} is {status}", kind)
