"""What PrimeMaster hands on to the next attempt: kept in the status as it was said, and given to the next launcher.

It is PrimeMaster's own: nothing here reads it but the memory that ranks came to need. What is kept is what was heard
last, so it may be stale, which is safe.
"""

from __future__ import annotations

import json
from typing import Any

from dljob.reconcile.state import names
from dljob.reconcile.state.context import ReconcileContext
from dljob.reconcile.state.fields import field, number, part
from dljob.reconcile.state.model import Object
from dljob.reconcile.state.snapshot import LEVELS, MAX_CARRY


def kept(case: ReconcileContext) -> Object:
    """What is to be handed on: what PrimeMaster says in this attempt, else what was kept before; empty: nothing."""
    old, state = part(case.old, "carried"), part(case.snapshot, "carry")
    told = {"attempt": case.attempt, "state": state}
    if not state or told == old or len(json.dumps(state)) > MAX_CARRY:
        return old
    return told


def closed(case: ReconcileContext) -> Object:
    """The same at the end of the attempt, with the last step that was heard of."""
    carried = kept(case)
    step = field(case.snapshot or case.old, "progress", "step")
    last = carried and number(carried, "attempt") == case.attempt and isinstance(step, int)
    return {**carried, "step": step} if last else carried


def handed(case: ReconcileContext) -> str:
    """What the launcher of this attempt is given; empty: nothing. The same until PrimeMaster speaks."""
    carried = part(case.old, "carried")
    if not 0 < number(carried, "attempt") < case.attempt:
        return ""
    return json.dumps({"job": names.job_uid(case.uid), **carried}, sort_keys=True, separators=(",", ":"))


def memory(case: ReconcileContext) -> Object:
    """Role -> memory of a rank that the last attempt came to need; the same until PrimeMaster speaks."""
    return part(case.old, "carried", "state", "memory") if handed(case) else {}


def restarts(case: ReconcileContext, told: Object) -> dict[str, int]:
    """Restarts by level, which never shrink: PrimeMaster counts on from what was handed on, if it could be read."""
    levels = (*LEVELS, "cluster")
    counts = {level: max(number(told, level), number(case.old, "restarts", level)) for level in levels}
    return {level: count for level, count in counts.items() if count or level in told}


def written(counts: dict[str, int]) -> dict[str, Any]:
    """The fields of the status that say so."""
    return {"restarts": counts, "restartsTotal": sum(counts.values())}
