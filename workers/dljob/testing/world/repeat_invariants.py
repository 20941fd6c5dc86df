"""Invariants of repeated failures: a job ends at the second equal failure of a rank, and for nothing less.

Here the error or exit code alone tells whose failure it was; the core attributes it from much more evidence.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

from dljob.master.state.faults import FaultRecord
from dljob.master.state.state import JobState
from dljob.master.state.views import Outcome, Reason
from dljob.telemetry import reasons

_REMEMBERED = 10
"""The number of faults that the state keeps; earlier ones are forgotten."""
_OWN = ("ValueError", "MemoryError", "SystemExit")
"""Errors in a simulated job that no peer, node or device causes."""
_BLAMED = (Reason.NODE_LOST, Reason.NODE_FROZEN, Reason.PREEMPTED, Reason.NETWORK, Reason.HANG, Reason.DEVICE_ERROR)
_HOUR_S = 3600.0


def check_repeats(state: JobState) -> Iterator[str]:
    """A job never ends as repeating without a repetition, and never goes on after one."""
    known_faults = [fault for fault in state.faults if fault.outcome is not None]
    # Rules of the job's own may allow repetitions.
    if state.verdict is None and not state.job.fault_tolerance.rules:
        yield from _repeats_twice(state, known_faults)
    if state.verdict is not None and state.verdict.reason == reasons.USER_ERROR_REPEATS:
        yield from _without_cause(state, known_faults)


def _repeats_twice(state: JobState, known_faults: list[FaultRecord]) -> Iterator[str]:
    """A rank that failed in the same way in two incarnations in a row, by its own fault, gets no third one."""
    for name in {fault.rank for fault in known_faults}:
        # A secondary failure follows from that of another rank.
        rank_faults = sorted(
            (f for f in known_faults if f.rank == name and not f.reports_lost_peer), key=lambda f: f.incarnation
        )
        for first, second in pairwise(rank_faults):
            is_own_error = second.outcome is not None and second.outcome.error_type in _OWN
            if is_own_error and second.incarnation == first.incarnation + 1 and _same(state, first, second):
                yield f"repeats: {name} goes on after {second.cause}, twice without progress between"


def _without_cause(state: JobState, known_faults: list[FaultRecord]) -> Iterator[str]:
    """The last failure is fatal by itself, or equals an earlier one of its rank or torch world."""
    # With the list full, the equal failure before may have been dropped.
    if not known_faults or _fatal(known_faults[-1]) or len(state.faults) >= _REMEMBERED:
        return
    role = known_faults[-1].rank.partition("/")[0]
    world = state.job.roles[role].is_torch_world
    rank_faults = [
        f for f in known_faults if f.rank == known_faults[-1].rank or (world and f.rank.startswith(f"{role}/"))
    ]
    if not any(_same(state, first, second) for first, second in combinations(rank_faults, 2)):
        yield f"repeats: the job ends with {known_faults[-1].cause}, which is no repetition"


def _same(state: JobState, first: FaultRecord, second: FaultRecord) -> bool:
    """Whether two faults are the same failure, caused by nobody else and without progress in between."""
    old, new = first.outcome, second.outcome
    if old is None or new is None or _end(old) != _end(new) or {old.reason, new.reason} & set(_BLAMED):
        return False
    saved = any(saves.last is not None and saves.last.at > first.detected_at for saves in state.saves.values())
    # A step further than at the last failure is progress, and so is a checkpoint saved in between.
    further = new.step is not None and (old.step is None or new.step > old.step)
    return not saved and not further and second.detected_at - first.detected_at < _HOUR_S


def _end(outcome: Outcome) -> tuple[str, str, int | None]:
    return outcome.error_type, outcome.frame, outcome.code


def _fatal(fault: FaultRecord) -> bool:
    return fault.outcome is not None and fault.outcome.fatal
