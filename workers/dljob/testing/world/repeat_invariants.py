"""Ends that repeat, seen from the faults that a job tells of: it ends at the second same end, and for nothing less.

Whom nobody else is to blame for is told here by the error or exit code alone: the core judges by much more.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

from dljob.master.state.faults import FaultRecord
from dljob.master.state.state import JobState
from dljob.master.state.views import Outcome, Reason
from dljob.telemetry import reasons

_REMEMBERED = 10
"""So many faults are told of; an earlier one may be forgotten."""
_OWN = ("ValueError", "MemoryError", "SystemExit")
"""What code raises in a simulated job that no peer, node or device brings about."""
_BLAMED = (Reason.NODE_LOST, Reason.NODE_FROZEN, Reason.PREEMPTED, Reason.NETWORK, Reason.HANG, Reason.DEVICE_ERROR)
_HOUR_S = 3600.0


def kept(state: JobState) -> Iterator[str]:
    """No job ends as one that repeats without a repetition, and none goes on after one."""
    heard = [fault for fault in state.faults if fault.outcome is not None]
    if state.verdict is None and not state.job.fault_tolerance.rules:
        yield from _goes_on(state, heard)
    if state.verdict is not None and state.verdict.reason == reasons.USER_ERROR_REPEATS:
        yield from _without_cause(state, heard)


def _goes_on(state: JobState, heard: list[FaultRecord]) -> Iterator[str]:
    """A rank whose two lives in a row ended in the same way, of its own making, has no third one."""
    for name in {fault.rank for fault in heard}:
        mine = sorted((f for f in heard if f.rank == name and not f.secondary), key=lambda f: f.incarnation)
        for first, second in pairwise(mine):
            own = second.outcome is not None and second.outcome.error_type in _OWN
            if own and second.incarnation == first.incarnation + 1 and _same(state, first, second):
                yield f"repeats: {name} goes on after {second.cause}, twice without progress between"


def _without_cause(state: JobState, heard: list[FaultRecord]) -> Iterator[str]:
    """The last failure was bound to come again, or an earlier one of its rank, or of its world, was the same."""
    if not heard or _fatal(heard[-1]) or len(state.faults) >= _REMEMBERED:
        return
    role = heard[-1].rank.partition("/")[0]
    world = state.job.roles[role].world
    mine = [f for f in heard if f.rank == heard[-1].rank or (world and f.rank.startswith(f"{role}/"))]
    if not any(_same(state, first, second) for first, second in combinations(mine, 2)):
        yield f"repeats: the job ends with {heard[-1].cause}, which is no repetition"


def _same(state: JobState, first: FaultRecord, second: FaultRecord) -> bool:
    """Whether two faults are the same end, with nobody else to blame and no progress between them."""
    old, new = first.outcome, second.outcome
    if old is None or new is None or _end(old) != _end(new) or {old.reason, new.reason} & set(_BLAMED):
        return False
    saved = any(saves.last is not None and saves.last.at > first.detected for saves in state.saves.values())
    further = new.step is not None and (old.step is None or new.step > old.step)
    return not saved and not further and second.detected - first.detected < _HOUR_S


def _end(outcome: Outcome) -> tuple[str, str, int | None]:
    return outcome.error_type, outcome.frame, outcome.code


def _fatal(fault: FaultRecord) -> bool:
    return fault.outcome is not None and fault.outcome.fatal
