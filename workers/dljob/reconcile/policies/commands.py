"""Restarts by annotation: `dljob.io/restart: <when>` with `dljob.io/restart-target: <target>`.

The value and the target together are the command's id, so that a command happens once: PrimeMaster knows the ids that
it took, and the status those that are settled. Of texts that the gateway takes in no id, such as what `date` prints,
the digest is.
"""

from __future__ import annotations

import hashlib
import re

from dljob.reconcile.policies.submit import watch
from dljob.reconcile.state import names, reasons
from dljob.reconcile.state.accept import GRACE_SECONDS, Refused
from dljob.reconcile.state.context import PATIENCE_SECONDS, START_SECONDS, ReconcileContext, stamp
from dljob.reconcile.state.fields import bounded, items
from dljob.reconcile.state.model import Command, Event, Object, Trouble
from dljob.reconcile.state.steps import Noted, PolicyDecision

SIZE = 64
PLAIN = re.compile(r"[\x21-\x7e]{1,64}")
"""The gateway takes ids of these signs, 253 at most."""
STOP_SECONDS = 60.0
"""PrimeMaster may take so long to end the job's processes, beside what saving takes."""
SAVES = 2
"""So often saving may take checkpoint.gracePeriodSeconds when a job ends."""
REFUSED = 400
"""What the gateway answers to a command that makes no sense."""


def restart(case: ReconcileContext) -> PolicyDecision | None:
    """Pass on a restart that was not settled yet."""
    when = case.annotations.get(names.RESTART)
    if not when:
        return None
    target = bounded(case.annotations.get(names.RESTART_TARGET) or "job", SIZE)
    id_ = command_id("restart", target, when)
    if any(known.get("id") == id_ for known in items(case.old, "lastCommands")):
        return None
    settled = _settled(case, id_)
    if settled is not None:
        state, reason, message = settled
        noted = Noted((entry(case, "restart", target, when, state, message),))
        kind = "Warning" if reason in reasons.WARNINGS else "Normal"
        event = Event(kind, reason, f"restart of {target}: {bounded(message, 512)}", "Command")
        return PolicyDecision(f"the restart of {target} is settled: {reason}", change=noted, events=(event,))
    if not case.reachable:
        return None
    action = Command(id_, case.cluster_name, case.address, "restart", target, "annotation")
    return PolicyDecision(f"somebody ordered a restart of {target}", (action,))


def command_id(kind: str, target: str, when: str) -> str:
    """What PrimeMaster and the status know a command by."""
    if PLAIN.fullmatch(target) and PLAIN.fullmatch(when):
        return f"{kind}/{target}/{when}"
    return f"{kind}/{hashlib.sha256(repr((target, when)).encode()).hexdigest()[:32]}"


def limit(case: ReconcileContext) -> float:
    """Seconds that PrimeMaster is waited for when the job is stopped or suspended, before its pods go anyway.

    Saving has its grace twice: all savers flush what their node's ranks copied, then they bring what they keep for
    nodes that are gone (`Executor.sweep`). A PrimeMaster that has not spoken yet has nothing to save, but on a
    RayCluster that stays it would go on, so it is waited for until it should have spoken.
    """
    if not case.told:
        return START_SECONDS if case.ref else PATIENCE_SECONDS
    grace = GRACE_SECONDS if isinstance(case.terms, Refused) else case.terms.grace_seconds
    return STOP_SECONDS + SAVES * grace


def asked(case: ReconcileContext, id_: str, seconds: float) -> bool:
    """Whether PrimeMaster was ordered to stop, as far as it can be: an operator that was away begins only now.

    `seconds`: of a silence after which it cannot.
    """
    master = case.observed.master
    in_vain = master is not None and bool(master.error) and master.age >= seconds
    failed = _failed(case, id_) is not None
    return id_ in case.observed.commands or failed or in_vain or watch(case) is None


def refusal(case: ReconcileContext, id_: str) -> Trouble | None:
    """The gateway's word that a command makes no sense; None: it has not said so of this one."""
    trouble = _failed(case, id_)
    return trouble if trouble is not None and trouble.code == REFUSED else None


def _failed(case: ReconcileContext, id_: str) -> Trouble | None:
    return next((trouble for trouble in case.observed.troubles if trouble.action == f"Command {id_}"), None)


def entry(case: ReconcileContext, kind: str, target: str, when: str, state: str, message: str) -> Object:  # noqa: PLR0917
    """A settled command, as `status.lastCommands` keeps it."""
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
    """(state, reason, message) of a command that needs no more doing."""
    if not case.submitted:
        return "Ignored", reasons.COMMAND_IGNORED, "nothing of the job runs yet"
    if id_ in case.observed.commands:
        return "Sent", reasons.COMMAND_SENT, "PrimeMaster took it"
    refused = refusal(case, id_)
    return None if refused is None else ("Refused", reasons.COMMAND_REFUSED, refused.message)
