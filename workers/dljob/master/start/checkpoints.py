"""Checkpoint commits: a checkpoint exists once PrimeMaster has journaled that all its parts are on disk.

Commits and restore decisions may come from superseded processes. A checkpoint that an earlier life saved beyond the one
that a later life restored is refused, and so is a decision of a life that a later one has superseded.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from dljob.master.start import shards
from dljob.master.start.problems import end_problem, stand
from dljob.master.state.checkpoint_ids import CheckpointId, Committed, RestoreDecision, RunId, Saves, fence, role_of
from dljob.master.state.cuts import choices, pinned
from dljob.master.state.events import CheckpointCommitted, CheckpointDecided
from dljob.master.state.evolve import evolve
from dljob.master.state.faults import FaultRecord
from dljob.master.state.problems import StandingProblem
from dljob.master.state.state import JobState
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Level
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted, is_or_are

KEPT = 2
"""Number of committed checkpoints that are remembered for a world: as many as stay on disk."""
DECISIONS = 8
"""Number of restore decisions that are remembered; an even older process is fenced by the files on disk."""
FIRST = RunId(1, 1)


def refused(state: JobState | StateTransaction, world: str, mark: CheckpointId) -> str:
    """Return why a checkpoint does not count; empty: it counts."""
    return fence(mark, state.saves.get(world, Saves()).decisions)


def superseded(state: JobState | StateTransaction, world: str, life: RunId) -> str:
    """Return why a life may not decide what it restores any more; empty: it may."""
    later = state.saves.get(world, Saves()).superseded(life)
    return f"life {later} of {world} has begun" if later else ""


def committed(d: StateTransaction, event: CheckpointCommitted) -> None:
    """Record a checkpoint whose parts are all on disk, unless a later life fenced it."""
    if role_of(event.world) not in d.roles:
        return
    own = d.saves.get(event.world, Saves())
    # Known already: an event may arrive twice.
    if any(known.mark == event.mark for known in own.committed):
        return
    if why := refused(d, event.world, event.mark):
        d.note(reasons.CHECKPOINT_REFUSED, event.world, f"{event.mark} does not count: {why}")
        return
    needed = pinned(d.cuts, event.world)
    new = evolve(own, committed=_newest((*own.committed, Committed(event.mark, d.now)), needed))
    oldest = event.oldest
    # The manifests of journaled checkpoints may never be written: only what is on disk settles data positions.
    if oldest is not None and not refused(d, event.world, oldest):
        oldest = min(oldest, new.committed[0].mark)
        new = evolve(new, oldest=max(oldest, own.oldest or oldest))
        shards.committed(d, event.world, oldest)
    d.saves = d.saves.set(event.world, new)
    end_problem(d, reasons.CHECKPOINT_NOT_SAVED, event.world)


def _newest(found: Iterable[Committed], needed: Container[CheckpointId]) -> tuple[Committed, ...]:
    """Return the newest checkpoints, by life and step, not by time: commits may arrive out of order.

    Those that a cut needs stay: a restore may go back as far as to them.
    """
    known = sorted(found, key=lambda one: one.mark)
    return tuple(one for one in known if one in known[-KEPT:] or one.mark in needed)


def decided(d: StateTransaction, event: CheckpointDecided) -> None:
    """Record which checkpoint a life restores. The first decision stands, so that all ranks restore the same one."""
    if role_of(event.world) not in d.roles:
        return
    own = d.saves.get(event.world, Saves())
    if own.decision(event.life) is not None or superseded(d, event.world, event.life):
        return
    decisions = (*own.decisions, RestoreDecision(event.life, event.chosen))[-DECISIONS:]
    # The decision fences checkpoints that earlier lives committed beyond the restored one.
    counting = tuple(one for one in own.committed if not fence(one.mark, decisions))
    older = event.chosen is None or (own.oldest is not None and event.chosen < own.oldest)
    d.saves = d.saves.set(event.world, Saves(counting, decisions, None if older else own.oldest))
    repeated_data = _describe_repeated_data(d, event, own)
    shards.decided(d, event.world, event.life, event.chosen, own.oldest)
    for text in event.damaged:
        d.note(reasons.CHECKPOINT_DAMAGED, event.world, text)
    if event.life > FIRST:  # the first life of a job restores nothing, which is not worth a line
        _went_on(d, event, repeated_data)


def _describe_repeated_data(d: StateTransaction, event: CheckpointDecided, saves: Saves) -> str:
    """Return which data a checkpoint has that are handed out again all the same: the positions handed on are older."""
    chosen, checkpoints = event.chosen, saves.committed
    if chosen is None or chosen.life.attempt == event.life.attempt or (checkpoints and checkpoints[0].mark >= chosen):
        return ""
    # Only the first life of an attempt begins with positions handed on, and a cut has its own.
    if saves.decisions or not d.feeds or choices(d.cuts, event.world) is not None:
        return ""
    newest = f"had last seen {checkpoints[0].mark}" if checkpoints else "had seen no checkpoint"
    state = f"the state that attempt {chosen.life.attempt} handed on {newest}"
    return f"; {state}: data that it used since are in the checkpoint, and are handed out again"


def _went_on(d: StateTransaction, event: CheckpointDecided, repeated_data: str) -> None:
    """Report what a life restored and how many steps were lost, in the timeline and in the fault."""
    lost = None
    if event.reached is not None:
        lost = max(0, event.reached - (event.chosen.step if event.chosen else 0))
        fault = _fault_of(d, role_of(event.world))
        if fault is not None:
            # Actor ranks save by themselves, so each loses another number of steps: the largest is reported.
            worse = evolve(fault, lost=max(lost, fault.lost or 0))
            d.faults = tuple(worse if one is fault else one for one in d.faults)
    none = "no checkpoint can be read" if event.damaged else "there is no checkpoint"
    where = f"restores {event.chosen}" if event.chosen else f"begins from step 0: {none}"
    again = ""
    if lost is not None:
        again = f"; step {event.reached} had been reached, {counted(lost, 'step')} {is_or_are(lost)} lost"
    message = f"life {event.life} {where}{again}{repeated_data}"
    d.note(reasons.CHECKPOINT_RESTORED, event.world, message)
    if event.damaged:
        first, *others = event.damaged
        message = f"{message}; {first}{f', and {len(others)} more' if others else ''}"
        stand(d, StandingProblem(reasons.CHECKPOINT_DAMAGED, event.world, message, d.now))


def _fault_of(d: StateTransaction, role: str) -> FaultRecord | None:
    """Return the last fault that restarted ranks of a role."""
    wide = (Level.JOB.value, Level.NODE.value)
    # A restart of the job or of a node took the ranks of this role along.
    found = (one for one in reversed(d.faults) if one.level in wide or role_of(one.target) == role)
    return next((one for one in found if one.level != Level.MASTER.value), None)


def last(state: JobState) -> Committed | None:
    """Return the checkpoint that the status shows: the latest of the first driver role, else the latest of all."""
    driver = state.job.drivers[0]
    found = {world: own.last for world, own in state.saves.items() if own.last}
    own = [one for world, one in found.items() if role_of(world) == driver]
    return max(own or found.values(), key=lambda one: (one.at, one.mark), default=None)
