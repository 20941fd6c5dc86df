"""Restarts and checkpoints by annotation.

They are `dljob.io/restart: <when>` with `dljob.io/restart-target: <target>`, and `dljob.io/checkpoint-now: <when>`.

Value and target together are the id of the command, so that a command happens once: PrimeMaster remembers the ids that
it accepted, and the status those that are settled. A text that the gateway does not accept as an id, such as the output
of `date`, is replaced by its digest.
"""

from __future__ import annotations

import hashlib
import re
from typing import Literal

from dljob.reconcile.policies.submit import watch
from dljob.reconcile.state import names, reasons
from dljob.reconcile.state.accept import GRACE_SECONDS, Refused
from dljob.reconcile.state.context import PATIENCE_SECONDS, START_SECONDS, ReconcileContext, stamp
from dljob.reconcile.state.fields import bounded, items
from dljob.reconcile.state.model import Command, Event, Object, Trouble
from dljob.reconcile.state.steps import Noted, PolicyDecision

SIZE = 64
PLAIN = re.compile(r"[\x21-\x7e]{1,64}")
"""The characters that the gateway accepts in an id; its limit is 253 in all."""
STOP_SECONDS = 60.0
"""Seconds for PrimeMaster to end the job's processes, beside the time for saving."""
SAVES = 2
"""Multiple of checkpoint.gracePeriodSeconds that the saving at the end of a job may take; see `limit`."""
REFUSED = 400
"""The HTTP status with which the gateway answers a command that it does not know or cannot apply."""


def restart(case: ReconcileContext) -> PolicyDecision | None:
    """Pass a restart on to PrimeMaster, and note its outcome in the status."""
    target = bounded(case.annotations.get(names.RESTART_TARGET) or "job", SIZE)
    return _pass_on(case, "restart", target, case.annotations.get(names.RESTART))


def checkpoint(case: ReconcileContext) -> PolicyDecision | None:
    """Pass an order for a checkpoint on to PrimeMaster, which takes a consistent cut, and note its outcome."""
    return _pass_on(case, "checkpoint", "job", case.annotations.get(names.CHECKPOINT_NOW))


def _pass_on(
    case: ReconcileContext, kind: Literal["restart", "checkpoint"], target: str, when: str | None
) -> PolicyDecision | None:
    if not when:
        return None
    id_ = command_id(kind, target, when)
    if any(known.get("id") == id_ for known in items(case.old, "lastCommands")):
        return None
    # The outcome of the command is written once, with an Event; the annotation itself is the user's and stays.
    settled = _settled(case, id_)
    if settled is not None:
        state, reason, message = settled
        noted = Noted((entry(case, kind, target, when, state, message),))
        severity = "Warning" if reason in reasons.WARNINGS else "Normal"
        event = Event(severity, reason, f"{kind} of {target}: {bounded(message, 512)}", "Command")
        return PolicyDecision(f"the {kind} of {target} is settled: {reason}", change=noted, events=(event,))
    if not case.reachable:
        return None
    action = Command(id_, case.cluster_name, case.address, kind, target, "annotation")
    return PolicyDecision(f"somebody ordered a {kind} of {target}", (action,))


def command_id(kind: str, target: str, when: str) -> str:
    """Return the id by which PrimeMaster and the status know a command."""
    if PLAIN.fullmatch(target) and PLAIN.fullmatch(when):
        return f"{kind}/{target}/{when}"
    return f"{kind}/{hashlib.sha256(repr((target, when)).encode()).hexdigest()[:32]}"


def limit(case: ReconcileContext) -> float:
    """Return the seconds that PrimeMaster has for a stop or a suspension before its pods are deleted anyway.

    Saving gets its grace twice: all savers flush the copies of their node's ranks, then they write the copies that they
    keep for lost nodes (`Executor.sweep`). Before that servers finish their requests. A PrimeMaster that has not
    reported yet has nothing to save. On somebody else's RayCluster it would run on, so the operator waits until it
    should have reported.
    """
    if not case.has_reported:
        return START_SECONDS if case.ref else PATIENCE_SECONDS
    if isinstance(case.terms, Refused):
        return STOP_SECONDS + SAVES * GRACE_SECONDS
    return STOP_SECONDS + SAVES * case.terms.grace_seconds + case.terms.drain_seconds


def is_delivered(case: ReconcileContext, id_: str, seconds: float) -> bool:
    """Whether PrimeMaster got this order or cannot get it: an operator that was away must ask before it gives up.

    Args:
        case: The job.
        id_: The id of the order.
        seconds: The length of a silence after which PrimeMaster cannot be asked.
    """
    master = case.observed.master
    in_vain = master is not None and bool(master.error) and master.age >= seconds
    failed = _failed(case, id_) is not None
    return id_ in case.observed.commands or failed or in_vain or watch(case) is None


def refusal(case: ReconcileContext, id_: str) -> Trouble | None:
    """Return the failure of a command that the gateway refused as meaningless; None: it did not refuse it."""
    trouble = _failed(case, id_)
    return trouble if trouble is not None and trouble.code == REFUSED else None


def _failed(case: ReconcileContext, id_: str) -> Trouble | None:
    return next((trouble for trouble in case.observed.troubles if trouble.action == f"Command {id_}"), None)


def entry(case: ReconcileContext, kind: str, target: str, when: str, state: str, message: str) -> Object:  # noqa: PLR0917
    """Return a settled command in the form of `status.lastCommands`."""
    return {
        "id": command_id(kind, target, when),
        "kind": kind,
        "target": target,
        "at": bounded(when, SIZE),
        "state": state,
        "message": bounded(message, 256),
        "time": stamp(case.now),
    }


def _settled(case: ReconcileContext, id_: str) -> tuple[str, str, str] | None:
    """Return (state, reason, message) of a command that needs no further action; None: it is still to be sent."""
    if not case.submitted:
        return "Ignored", reasons.COMMAND_IGNORED, "nothing of the job runs yet"
    if id_ in case.observed.commands:
        return "Sent", reasons.COMMAND_SENT, "PrimeMaster accepted it"
    refused = refusal(case, id_)
    return None if refused is None else ("Refused", reasons.COMMAND_REFUSED, refused.message)
