"""The conditions, which are what programs wait for: each has a reason, a message, and the time of its last change.

In this order: Ready, Reconciling, Stalled, Accepted, QuotaReserved, ClusterReady, MasterReady, PlacementReady,
RolesReady, Recovering, RanksStalled, Hung, Suspended, Complete, Failed, Stopped. The first three are those of kstatus,
by which Flux, kpt and others know whether an object is as its spec wants it; they follow from the phase. The last three
are terminal: at the end exactly one of them is True. Until then Stopped=False says that somebody ordered the job to
stop, Failed=False that a deadline passed; the reason and the message say which.
"""

from __future__ import annotations

from typing import Any, Literal

from dljob.raycluster.pods import GATEWAY_PORT
from dljob.reconcile.policies import suspending
from dljob.reconcile.policies.attempts import made_by, outdated
from dljob.reconcile.state import reasons
from dljob.reconcile.state.accept import Refused
from dljob.reconcile.state.context import ConditionState, ReconcileContext, stamp
from dljob.reconcile.state.fields import bounded, items, number, part, text
from dljob.reconcile.state.hints import advised
from dljob.reconcile.state.model import MasterView, Object
from dljob.reconcile.state.steps import ENDINGS, Change, Halt, Intent, JobEnd, NewAttempt, Said, SubmitOrder
from dljob.reconcile.status import cluster
from dljob.reconcile.status.phases import PhaseReason
from dljob.telemetry.reasons import HANG_FOUND, PLACEMENT_PENDING, STALL_FOUND

TRIES = 3
"""Number of refused submissions that is normal: the head's dashboard comes up a moment after its pod is ready."""
AT_REST = ("Running", "Succeeded", "Suspended", "Stopped")
"""Phases in which a job is as its spec, or somebody's order, wants it."""
FOR_A_USER = ("Failed", "Invalid")
"""Phases that a job does not leave by itself."""
ORDER = (
    *("Ready", "Reconciling", "Stalled"),
    *("Accepted", "QuotaReserved", "ClusterReady", "MasterReady", "PlacementReady", "RolesReady"),
    *("Recovering", "RanksStalled", "Hung", "Suspended", *ENDINGS),
)


def conditions(case: ReconcileContext, change: Change | None, place: PhaseReason | None) -> list[dict[str, Any]]:
    """Return the conditions after a change: a condition that this pass says nothing about keeps its state.

    `place` is the phase after the change; None: the job has ended before, and keeps it.
    """
    # The others stay as they are: an operator that has just started has no report of PrimeMaster yet.
    stated = {row.type: row for row in (*_stated(case, change), *(_of_kstatus(place) if place else ()))}
    earlier = {kind: state for kind, state in case.conditions.items() if not _dropped(kind, change)}
    return [
        _written(case, stated[kind], earlier.get(kind)) if kind in stated else _as_dict(kind, earlier[kind])
        for kind in ORDER
        if kind in stated or kind in earlier
    ]


def _of_kstatus(place: PhaseReason) -> list[Said]:
    """Return whether the job is as it should be, is on the way there by itself, or needs somebody."""
    kinds = {"Ready": place.phase in AT_REST, "Stalled": place.phase in FOR_A_USER}
    kinds["Reconciling"] = not any(kinds.values())
    reason = place.reason or place.phase
    return [
        Said(kind, "True" if holds else "False", reason, place.message if holds or kind == "Ready" else "")
        for kind, holds in kinds.items()
    ]


def _dropped(kind: str, change: Change | None) -> bool:
    """Whether a condition disappears at the end, where an ended job has one terminal one, or when the job goes on."""
    if isinstance(change, NewAttempt) and change.reason == reasons.JOB_RESUMED:
        return kind in ENDINGS
    return isinstance(change, JobEnd) and kind in {"Suspended", *ENDINGS} - {change.condition}


def _as_dict(kind: str, state: ConditionState) -> dict[str, Any]:
    return {
        "type": kind,
        "status": state.status,
        "reason": state.reason,
        "message": state.message,
        "observedGeneration": state.generation,
        "lastTransitionTime": state.since,
    }


def _written(case: ReconcileContext, new: Said, earlier: ConditionState | None) -> dict[str, Any]:
    same = earlier is not None and earlier.status == new.status
    if new.type == "Suspended":
        # Suspended is False while the job stops and after it was resumed. The time is that of the reason, since the
        # limit on stopping counts from it.
        same = same and earlier is not None and earlier.reason == new.reason
    since = earlier.since if earlier and same else stamp(case.now)
    return _as_dict(new.type, ConditionState(new.status, new.reason, bounded(new.message), case.generation, since))


def _stated(case: ReconcileContext, change: Change | None) -> list[Said]:
    match change:
        case NewAttempt():
            return _after_loss(case, change)
        case _ if case.finished:
            return _first(case)
        case JobEnd():
            return _ended(case, change)
        case Intent():
            return [*_standing(case), Said(change.condition, "False", change.reason, change.message)]
        case Halt():
            return [
                *_halted(case, change),
                Said("Suspended", _suspended_status(change.reason), change.reason, change.message),
            ]
        case SubmitOrder():
            return [*_standing(case), _ordered(case)]
        case _:
            return _standing(case)


def _ended(case: ReconcileContext, verdict: JobEnd) -> list[Said]:
    kinds = (
        "MasterReady",
        "PlacementReady",
        "RolesReady",
        *(kind for kind in ("Recovering", "RanksStalled", "Hung") if kind in case.conditions),
    )
    over = [Said(kind, "False", reasons.JOB_ENDED, "the job is over") for kind in kinds]
    return [*_first(case), *over, Said(verdict.condition, "True", verdict.reason, verdict.message)]


def _after_loss(case: ReconcileContext, change: NewAttempt) -> list[Said]:
    kinds = ("ClusterReady", "MasterReady", "PlacementReady", "RolesReady")
    recovering = [Said("Recovering", "True", change.reason, change.message)] if change.fault else []
    if change.reason == reasons.SUSPENDING:
        recovering = [Said("Suspended", "False", change.reason, change.message), *_not_recovering(case)]
    return [
        accepted(case, running=False),
        # The quota goes with the RayCluster; the next one stands in the queue again.
        *([Said("QuotaReserved", "False", change.reason, change.message)] if case.queued else []),
        *(Said(kind, "False", change.reason, change.message) for kind in kinds),
        *_go_on(case, change.reason, change.message),
        *recovering,
    ]


def _halted(case: ReconcileContext, change: Halt) -> list[Said]:
    """Return the conditions beside Suspended itself."""
    if change.reason == reasons.SUSPENDING:
        return _standing(case)
    if change.reason == reasons.JOB_RESUMED:
        return [accepted(case, running=False)]
    return _at_rest(case)


def _suspended_status(reason: str) -> Literal["True", "False"]:
    return "True" if reason == reasons.JOB_SUSPENDED else "False"


def _at_rest(case: ReconcileContext) -> list[Said]:
    """Return the conditions of a suspended job: nothing exists that could be ready."""
    kinds = ("ClusterReady", "MasterReady", "PlacementReady", "RolesReady")
    quota = ("QuotaReserved",) if case.queued else ()
    message = "the job is suspended"
    return [
        accepted(case, running=False),
        *(Said(kind, "False", reasons.JOB_SUSPENDED, message) for kind in (*quota, *kinds)),
        *_not_recovering(case),
        *_go_on(case, reasons.JOB_SUSPENDED, message),
    ]


def _go_on(case: ReconcileContext, reason: str, message: str) -> list[Said]:
    """Return that no rank stands still any more, for a job in which one did."""
    return [Said(kind, "False", reason, message) for kind in ("RanksStalled", "Hung") if kind in case.conditions]


def _not_recovering(case: ReconcileContext) -> list[Said]:
    if "Recovering" not in case.conditions:
        return []
    return [Said("Recovering", "False", reasons.SUSPENDING, "nothing is restarted while the job is suspended")]


def _standing(case: ReconcileContext) -> list[Said]:
    if case.halt == reasons.JOB_SUSPENDED:
        return _at_rest(case)
    if case.halt and case.replaced:
        stated = Said("Suspended", "False", reasons.SUSPENDING, suspending.describe_suspension(case))
        return [accepted(case, running=False), stated, *cluster.ready(case)]
    snapshot = case.snapshot
    stated = [*_first(case), *_master(case)]
    if snapshot:
        stated += [_placement(case, snapshot), _roles(snapshot)]
        stated += _recovering(case, snapshot)
        stated += _standing_still(case, snapshot)
    elif not case.has_reported and not case.replaced:
        unknown = (reasons.WAITS_FOR_MASTER, "PrimeMaster has not spoken yet")
        stated += [Said(kind, "False", *unknown) for kind in ("PlacementReady", "RolesReady")]
    return stated


def _first(case: ReconcileContext) -> list[Said]:
    """Return the conditions that exist before, while and after the job runs."""
    quota = [_quota(case)] if case.queued and not case.finished else []
    return [accepted(case, running=case.is_submitted and not case.finished), *quota, *cluster.ready(case)]


def accepted(case: ReconcileContext, *, running: bool) -> Said:
    """Return whether the spec is accepted, and whether it is the one that runs, if one runs."""
    terms = case.terms
    if isinstance(terms, Refused):
        return Said("Accepted", "False", terms.reason, terms.message)
    # The spec is valid, and the attempt runs with an older one: the user must learn that the edit has no effect yet.
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


def _skew(case: ReconcileContext) -> str:
    """Return the message for an operator that was upgraded under a running attempt, which it leaves alone."""
    pod_version, own_version = made_by(case), case.settings.version
    message = f"attempt {case.attempt} goes on with dljob {pod_version} of its pods; the operator has {own_version}"
    follows = f"the next attempt gets that, too (dljob suspend {case.name}, then resume)"
    return f"{message}; {follows}; rebuild an image that contains its own dljob before"


def _quota(case: ReconcileContext) -> Said:
    if case.cluster is not None and not case.suspended:
        return Said("QuotaReserved", "True", reasons.QUOTA_RESERVED)
    return Said("QuotaReserved", "False", reasons.WAITS_IN_QUEUE)


def _master(case: ReconcileContext) -> list[Said]:
    view = case.observed.master
    # From the most certain trouble to the least: a head that misbehaves, a silent master, a refused submission.
    if view is not None and view.misbehaves:
        words = f"{_advised(case, view.error)}; the head is asked again within an hour; until then the status is stale"
        return [Said("MasterReady", "Unknown", reasons.HEAD_MISBEHAVES, words)]
    if case.silent and view is not None:
        return [
            Said(
                "MasterReady",
                "Unknown",
                reasons.MASTER_UNREACHABLE,
                f"{_advised(case, view.error)}{_obstacle(case, view)}",
            )
        ]
    if case.snapshot:
        return [Said("MasterReady", "True", reasons.MASTER_READY, f"epoch {number(case.snapshot, 'epoch')}")]
    if case.has_reported:
        return []
    trouble = case.trouble("Submit")
    if trouble is not None and (trouble.code or trouble.count > TRIES) and not case.is_submitted:
        return [Said("MasterReady", "False", reasons.SUBMISSION_REFUSED, _advised(case, trouble.message))]
    waits = Said("MasterReady", "False", reasons.WAITS_FOR_HEAD, "the job is submitted as soon as the head is ready")
    return [_ordered(case) if case.submitted else waits]


def _advised(case: ReconcileContext, words: str) -> str:
    """Return the head's words with advice. The operator cannot help with the token of an existing RayCluster."""
    return words if case.ref else advised("", words)


def _obstacle(case: ReconcileContext, view: MasterView) -> str:
    """Return what the errors of the two ports of a RayCluster that was not made for jobs speak for; empty: nothing."""
    launcher = case.ray_job
    if not case.ref or case.has_reported or not view.error.startswith("no answer from"):
        return ""
    port = f"port {GATEWAY_PORT} of pod {case.head.name if case.head else 'the head'}"
    if "Connect call failed" in view.error:
        return f"; nothing listens at {port}: the log of submission {case.submission} in Ray may say why"
    # Only where the same pod answers at Ray's own port, and runs the launcher, is it this port that is blocked.
    if launcher is None or launcher.error or launcher.status != "RUNNING":
        return ""
    remedy = f"a NetworkPolicy must let the operator reach {port}, and no other process may hold it"
    return f"; Ray answers there, and runs submission {case.submission}: {remedy}"


def _ordered(case: ReconcileContext) -> Said:
    return Said("MasterReady", "False", reasons.SUBMITTED, f"submission {case.submission}")


def _placement(case: ReconcileContext, snapshot: Object) -> Said:
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
    # While worker pods still start, missing room is no trouble yet.
    no_room = case.lacks_room and not case.growing
    reason = "Unschedulable" if nowhere else text(snapshot, "reason") if no_room else reasons.UNITS_PENDING
    words = [*whys, *nowhere[:1]]
    message = text(snapshot, "message")
    words += [message] if no_room and not any(message in word for word in words) else []
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


def _standing_still(case: ReconcileContext, snapshot: Object) -> list[Said]:
    """Return whether ranks stand still, and whether they hang and are left so; nothing of a job where none ever did."""
    stalls = items(snapshot, "stalls")
    stated: list[Said] = []
    for kind, reason, rows in (
        ("RanksStalled", STALL_FOUND, stalls),
        ("Hung", HANG_FOUND, [stall for stall in stalls if stall.get("hung")]),
    ):
        if rows:
            stated.append(Said(kind, "True", reason, "; ".join(text(stall, "words") for stall in rows[:3])))
        elif kind in case.conditions:
            stated.append(Said(kind, "False", reasons.STEADY, "no rank stands still"))
    return stated


def _recovering(case: ReconcileContext, snapshot: Object) -> list[Said]:
    if snapshot.get("phase") == "Recovering":
        fault = part(snapshot, "lastFault")
        reason = text(fault, "reason") or reasons.RECOVERING
        message = ": ".join(part for part in (text(fault, "target"), text(fault, "firstCause")) if part)
        return [Said("Recovering", "True", reason, message)]
    if "Recovering" in case.conditions and snapshot.get("phase") == "Running":
        return [Said("Recovering", "False", reasons.STEADY, "nothing is being restarted")]
    return []
