"""State that PrimeMaster hands to the next attempt (`carry`): the status keeps it, the next launcher gets it.

The state is opaque to the operator, apart from the memory that ranks grew to need. It is the last one that was received
and may be stale, which PrimeMaster allows for.
"""

from __future__ import annotations

import json
from typing import Any

from dljob.reconcile.state import names
from dljob.reconcile.state.context import ReconcileContext
from dljob.reconcile.state.fields import field, number, part
from dljob.reconcile.state.model import Object
from dljob.reconcile.state.snapshot import LEVELS, MAX_CARRY
from dljob.spec.status import total_restarts


def state_to_keep(case: ReconcileContext) -> Object:
    """Return the state to keep: of this attempt's PrimeMaster, else the one kept before; empty: none."""
    old, state = part(case.old, "carried"), part(case.snapshot, "carry")
    carried = {"attempt": case.attempt, "state": state}
    if not state or carried == old or len(json.dumps(state)) > MAX_CARRY:
        return old
    return carried


def closed(case: ReconcileContext) -> Object:
    """Return the state to keep at the end of an attempt, with the last step that was reported."""
    carried = state_to_keep(case)
    step = field(case.snapshot or case.old, "progress", "step")
    last = carried and number(carried, "attempt") == case.attempt and isinstance(step, int)
    return {**carried, "step": step} if last else carried


def handed(case: ReconcileContext) -> str:
    """Return the JSON that this attempt's launcher gets; empty: none. It stays the same until PrimeMaster reports."""
    carried = part(case.old, "carried")
    if not 0 < number(carried, "attempt") < case.attempt:
        return ""
    return json.dumps({"job": names.job_uid(case.uid), **carried}, sort_keys=True, separators=(",", ":"))


def memory(case: ReconcileContext) -> Object:
    """Return role -> memory of a rank, as the last attempt grew to need it.

    It stays the same until PrimeMaster reports.
    """
    return part(case.old, "carried", "state", "memory") if handed(case) else {}


def restarts(case: ReconcileContext, reported: Object) -> dict[str, int]:
    """Return restarts by level. Counts never shrink, also when a PrimeMaster could not read what was handed to it."""
    levels = (*LEVELS, "cluster")
    counts = {level: max(number(reported, level), number(case.old, "restarts", level)) for level in levels}
    return {level: count for level, count in counts.items() if count or level in reported}


def written(counts: dict[str, int]) -> dict[str, Any]:
    """Return the status fields with these counts."""
    return {"restarts": counts, "restartsTotal": total_restarts(counts)}
