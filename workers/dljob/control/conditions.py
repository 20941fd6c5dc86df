"""The conditions: what programs wait for, each with a reason, a message, and the time of its last flip.

In this order: Accepted, QuotaReserved, ClusterReady, MasterReady, PlacementReady, RolesReady, Recovering, Suspended,
Complete and Failed. The last two are terminal: exactly one of them is True in the end. Failed=False says that the job
is being stopped, and why.
"""

from __future__ import annotations

from typing import Any, Literal

from dljob.control import cluster, reasons, suspending
from dljob.control.accept import Refused
from dljob.control.attempts import made_by, outdated
from dljob.control.case import Case, Held, stamp
from dljob.control.fields import bounded, items, number, part, text
from dljob.control.hints import advised
from dljob.control.model import Object
from dljob.control.steps import Change, Halt, Intent, NewAttempt, Order, Said, Verdict
from dljob.plan.pods import GATEWAY_PORT
from dljob.telemetry.reasons import NO_ROOM, PLACEMENT_PENDING

TRIES = 3
"""So often a head that is ready may not answer yet: its dashboard comes a moment later."""
ORDER = (
    *("Accepted", "QuotaReserved", "ClusterReady", "MasterReady", "PlacementReady", "RolesReady"),
    *("Recovering", "Suspended", "Complete", "Failed"),
)


def conditions(case: Case, change: Change | None) -> list[dict[str, Any]]:
    """The conditions after a change: those that something is said of, and the rest as they are."""
    said = {one.type: one for one in _said(case, change)}
    kept = {kind: held for kind, held in case.conditions.items() if not _dropped(kind, change)}
    return [
        _written(case, said[kind], kept.get(kind)) if kind in said else _kept(kind, kept[kind])
        for kind in ORDER
        if kind in said or kind in kept
    ]


def _dropped(kind: str, change: Change | None) -> bool:
    """A job that completes was not stopped after all, and one that has ended is not suspended."""
    over = isinstance(change, Verdict)
    return over and (kind == "Suspended" or (kind == "Failed" and change.success))


def _kept(kind: str, held: Held) -> dict[str, Any]:
    return {
        "type": kind,
        "status": held.status,
        "reason": held.reason,
        "message": held.message,
        "observedGeneration": held.generation,
        "lastTransitionTime": held.since,
    }


def _written(case: Case, said: Said, held: Held | None) -> dict[str, Any]:
    same = held is not None and held.status == said.status
    if said.type == "Suspended":
        same = same and held is not None and held.reason == said.reason  # False before and after: each has its time
    since = held.since if held and same else stamp(case.now)
    return _kept(said.type, Held(said.status, said.reason, bounded(said.message), case.generation, since))


def _said(case: Case, change: Change | None) -> list[Said]:
    if case.finished:
        return _first(case)
    match change:
        case Verdict():
            return _ended(case, change)
        case NewAttempt():
            return _lost(case, change)
        case Intent():
            return [*_standing(case), Said("Failed", "False", change.reason, change.message)]
        case Halt():
            return [*_halted(case, change), Said("Suspended", _held(change.reason), change.reason, change.message)]
        case Order():
            return [*_standing(case), _ordered(case)]
        case _:
            return _standing(case)


def _ended(case: Case, verdict: Verdict) -> list[Said]:
    kinds = (
        "MasterReady",
        "PlacementReady",
        "RolesReady",
        *(("Recovering",) if "Recovering" in case.conditions else ()),
    )
    gone = [Said(kind, "False", reasons.JOB_ENDED, "the job is over") for kind in kinds]
    kind = "Complete" if verdict.success else "Failed"
    return [*_first(case), *gone, Said(kind, "True", verdict.reason, verdict.message)]


def _lost(case: Case, change: NewAttempt) -> list[Said]:
    kinds = ("ClusterReady", "MasterReady", "PlacementReady", "RolesReady")
    recovering = [Said("Recovering", "True", change.reason, change.message)] if change.fault else []
    if change.reason == reasons.SUSPENDING:
        recovering = [Said("Suspended", "False", change.reason, change.message), *_not_recovering(case)]
    return [
        accepted(case, running=False),
        # The quota goes with the RayCluster; the next one stands in the queue again.
        *([Said("QuotaReserved", "False", change.reason, change.message)] if case.queued else []),
        *(Said(kind, "False", change.reason, change.message) for kind in kinds),
        *recovering,
    ]


def _halted(case: Case, change: Halt) -> list[Said]:
    """What is said beside the condition Suspended itself."""
    if change.reason == reasons.SUSPENDING:
        return _standing(case)
    if change.reason == reasons.JOB_RESUMED:
        return [accepted(case, running=False)]
    return _at_rest(case)


def _held(reason: str) -> Literal["True", "False"]:
    return "True" if reason == reasons.JOB_SUSPENDED else "False"


def _at_rest(case: Case) -> list[Said]:
    """While the job is suspended: there is nothing that could be ready."""
    kinds = ("ClusterReady", "MasterReady", "PlacementReady", "RolesReady")
    quota = ("QuotaReserved",) if case.queued else ()
    message = "the job is suspended"
    return [
        accepted(case, running=False),
        *(Said(kind, "False", reasons.JOB_SUSPENDED, message) for kind in (*quota, *kinds)),
        *_not_recovering(case),
    ]


def _not_recovering(case: Case) -> list[Said]:
    if "Recovering" not in case.conditions:
        return []
    return [Said("Recovering", "False", reasons.SUSPENDING, "nothing is restarted while the job is suspended")]


def _standing(case: Case) -> list[Said]:
    if case.halt == reasons.JOB_SUSPENDED:
        return _at_rest(case)
    if case.halt and case.replaced:
        said = Said("Suspended", "False", reasons.SUSPENDING, suspending.words(case))
        return [accepted(case, running=False), said, *cluster.ready(case)]
    snapshot = case.snapshot
    said = [*_first(case), *_master(case)]
    if snapshot:
        said += [_placement(case, snapshot), _roles(snapshot)]
        said += _recovering(case, snapshot)
    elif not case.told and not case.replaced:
        unknown = (reasons.WAITS_FOR_MASTER, "PrimeMaster has not spoken yet")
        said += [Said(kind, "False", *unknown) for kind in ("PlacementReady", "RolesReady")]
    return said


def _first(case: Case) -> list[Said]:
    """What holds before, while and after the job runs."""
    quota = [_quota(case)] if case.queued and not case.finished else []
    return [accepted(case, running=case.taken and not case.finished), *quota, *cluster.ready(case)]


def accepted(case: Case, *, running: bool) -> Said:
    """Whether the spec is good, and whether it is the one that runs, if one does."""
    terms = case.terms
    if isinstance(terms, Refused):
        return Said("Accepted", "False", terms.reason, terms.message)
    if running and text(case.old, "attemptSpecHash") != terms.hash:
        message = f"attempt {case.attempt} goes on with the spec it began with; the change waits for the next attempt"
        if case.halt:
            message += ", which begins when the job is resumed"
        elif not case.ref:
            message += f", which begins when the job is suspended and resumed (dljob suspend {case.name})"
        return Said("Accepted", "True", reasons.CHANGE_WAITS, message)
    if running and outdated(case):
        return Said("Accepted", "True", reasons.PLAN_SKEW, _skew(case))
    ranks = sum(replicas for _, replicas in terms.roles)
    return Said("Accepted", "True", reasons.SPEC_ACCEPTED, f"roles: {len(terms.roles)}, ranks: {ranks}")


def _skew(case: Case) -> str:
    """An operator that was upgraded under a running attempt: PrimeMaster's plan counts, and its pods are left alone."""
    theirs, ours = made_by(case), case.settings.version
    message = f"attempt {case.attempt} goes on with dljob {theirs}, which its pods have; the operator is {ours}"
    follows = f"its next attempt (dljob suspend {case.name}, then resume)"
    return f"{message}, and so is {follows}; an image that brings its own dljob is to be built anew before"


def _quota(case: Case) -> Said:
    if case.cluster is not None and not case.suspended:
        return Said("QuotaReserved", "True", reasons.QUOTA_RESERVED)
    return Said("QuotaReserved", "False", reasons.WAITS_IN_QUEUE)


def _master(case: Case) -> list[Said]:
    view = case.observed.master
    if case.silent and view is not None:
        return [Said("MasterReady", "Unknown", reasons.MASTER_UNREACHABLE, f"{_advised(case, view.error)}{_way(case)}")]
    if case.snapshot:
        return [Said("MasterReady", "True", reasons.MASTER_READY, f"epoch {number(case.snapshot, 'epoch')}")]
    if case.told:
        return []
    trouble = case.trouble("Submit")
    if trouble is not None and (trouble.code or trouble.count > TRIES) and not case.taken:
        return [Said("MasterReady", "False", reasons.SUBMISSION_REFUSED, _advised(case, trouble.message))]
    waits = Said("MasterReady", "False", reasons.WAITS_FOR_HEAD, "it is submitted as soon as the head is ready")
    return [_ordered(case) if case.submitted else waits]


def _advised(case: Case, words: str) -> str:
    """What a head says, and what to do next; the token of a RayCluster that is there is not the operator's to give."""
    return words if case.ref else advised("", words)


def _way(case: Case) -> str:
    """What may be in the way on a RayCluster that was not made for jobs."""
    if not case.ref or case.told:
        return ""
    port = f"port {GATEWAY_PORT} of pod {case.head.name if case.head else 'the head'}"
    return f"; a NetworkPolicy must let the operator reach {port}, and no other process may hold it"


def _ordered(case: Case) -> Said:
    return Said("MasterReady", "False", reasons.SUBMITTED, f"submission {case.submission}")


def _placement(case: Case, snapshot: Object) -> Said:
    if text(snapshot, "reason") == PLACEMENT_PENDING:
        return Said("PlacementReady", "False", PLACEMENT_PENDING, text(snapshot, "message"))
    units, ready = number(snapshot, "placement", "units"), number(snapshot, "placement", "ready")
    if units and units == ready:
        return Said("PlacementReady", "True", reasons.UNITS_HELD, f"{ready} of {units} units")
    waiting = items(snapshot, "placement", "notReady")
    whys = [f"{text(unit, 'name')}: {text(unit, 'why')}" for unit in waiting[:3] if text(unit, "why")]
    nowhere = [
        advised("Unschedulable", f"pod {pod.name}: {pod.trouble}")
        for pod in case.observed.pods
        if pod.trouble_reason == "Unschedulable"
    ]
    no_room = text(snapshot, "reason") == NO_ROOM
    reason = "Unschedulable" if nowhere else NO_ROOM if no_room else reasons.UNITS_PENDING
    words = [*whys, *nowhere[:1]]
    said = text(snapshot, "message")
    words += [said] if no_room and not any(said in word for word in words) else []
    return Said("PlacementReady", "False", reason, "; ".join([f"{ready} of {units} units", *words]))


def _roles(snapshot: Object) -> Said:
    counts = [
        (text(role, "name"), number(role, "ready") + number(role, "succeeded"), number(role, "desired"))
        for role in items(snapshot, "roles")
    ]
    waiting = [(name, ready, desired) for name, ready, desired in counts if ready < desired]
    if not waiting:
        return Said("RolesReady", "True", reasons.ROLES_READY, "every rank is set up or has ended well")
    message = ", ".join(f"{name} {ready}/{desired}" for name, ready, desired in waiting)
    return Said("RolesReady", "False", reasons.RANKS_PENDING, f"ready: {message}")


def _recovering(case: Case, snapshot: Object) -> list[Said]:
    if snapshot.get("phase") == "Recovering":
        fault = part(snapshot, "lastFault")
        reason = text(fault, "reason") or reasons.RECOVERING
        message = ": ".join(part for part in (text(fault, "target"), text(fault, "firstCause")) if part)
        return [Said("Recovering", "True", reason, message)]
    if "Recovering" in case.conditions and snapshot.get("phase") == "Running":
        return [Said("Recovering", "False", reasons.STEADY, "nothing is being restarted")]
    return []
