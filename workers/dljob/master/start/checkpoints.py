"""Checkpoint commits: a checkpoint exists once PrimeMaster has journaled that all its parts are on disk.

Commits and restore decisions may come from superseded processes. A checkpoint that an earlier run saved beyond the one
that a later run restored is refused, and so is a decision of a run that a later one has superseded.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from dljob.master.start import shards
from dljob.master.start.problems import end_problem, record_problem
from dljob.master.state.checkpoint_ids import CheckpointId, Committed, RestoreDecision, RunId, Saves, fence, role_of
from dljob.master.state.cuts import checkpoints_allowed_by_cuts, checkpoints_in_cuts
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


def refusal_reason(state: JobState | StateTransaction, world: str, mark: CheckpointId) -> str:
    """Return why a checkpoint does not count; empty: it counts."""
    return fence(mark, state.saves.get(world, Saves()).decisions)


def superseded_reason(state: JobState | StateTransaction, world: str, run_id: RunId) -> str:
    """Return why a run may not decide what it restores any more; empty: it may."""
    later_run = state.saves.get(world, Saves()).superseded(run_id)
    return f"run {later_run} of {world} has begun" if later_run else ""


def record_commit(tx: StateTransaction, event: CheckpointCommitted) -> None:
    """Record a checkpoint whose parts are all on disk, unless a later run fenced it."""
    if role_of(event.world) not in tx.roles:
        return
    saves = tx.saves.get(event.world, Saves())
    # Known already: an event may arrive twice.
    if any(checkpoint.mark == event.mark for checkpoint in saves.committed):
        return
    if reason := refusal_reason(tx, event.world, event.mark):
        tx.note(reasons.CHECKPOINT_REFUSED, event.world, f"{event.mark} does not count: {reason}")
        return
    needed_by_cuts = checkpoints_in_cuts(tx.cuts, event.world)
    new_saves = evolve(saves, committed=_newest((*saves.committed, Committed(event.mark, tx.now)), needed_by_cuts))
    oldest = event.oldest
    # The manifests of journaled checkpoints may never be written: only what is on disk settles data positions.
    if oldest is not None and not refusal_reason(tx, event.world, oldest):
        oldest = min(oldest, new_saves.committed[0].mark)
        new_saves = evolve(new_saves, oldest=max(oldest, saves.oldest or oldest))
        shards.settle_oldest_checkpoint(tx, event.world, oldest)
    tx.saves = tx.saves.set(event.world, new_saves)
    end_problem(tx, reasons.CHECKPOINT_NOT_SAVED, event.world)


def _newest(checkpoints: Iterable[Committed], needed: Container[CheckpointId]) -> tuple[Committed, ...]:
    """Return the newest checkpoints, by run and step, not by time: commits may arrive out of order.

    Those that a cut needs stay: a restore may go back as far as to them.
    """
    in_order = sorted(checkpoints, key=lambda checkpoint: checkpoint.mark)
    return tuple(checkpoint for checkpoint in in_order if checkpoint in in_order[-KEPT:] or checkpoint.mark in needed)


def record_decision(tx: StateTransaction, event: CheckpointDecided) -> None:
    """Record which checkpoint a run restores. The first decision stands, so that all ranks restore the same one."""
    if role_of(event.world) not in tx.roles:
        return
    saves = tx.saves.get(event.world, Saves())
    if saves.decision(event.run_id) is not None or superseded_reason(tx, event.world, event.run_id):
        return
    decisions = (*saves.decisions, RestoreDecision(event.run_id, event.chosen))[-DECISIONS:]
    # The decision fences checkpoints that earlier runs committed beyond the restored one.
    valid_checkpoints = tuple(checkpoint for checkpoint in saves.committed if not fence(checkpoint.mark, decisions))
    is_before_oldest = event.chosen is None or (saves.oldest is not None and event.chosen < saves.oldest)
    new_saves = Saves(valid_checkpoints, decisions, None if is_before_oldest else saves.oldest)
    tx.saves = tx.saves.set(event.world, new_saves)
    repeated_data = _describe_repeated_data(tx, event, saves)
    shards.return_work_after_checkpoint(tx, event.world, event.run_id, event.chosen, saves.oldest)
    for text in event.damaged:
        tx.note(reasons.CHECKPOINT_DAMAGED, event.world, text)
    if event.run_id > FIRST:  # the first run of a job restores nothing, which is not worth a line
        _report_restore(tx, event, repeated_data)


def _describe_repeated_data(tx: StateTransaction, event: CheckpointDecided, saves: Saves) -> str:
    """Return which data a checkpoint has that are handed out again all the same: the positions handed on are older."""
    chosen, checkpoints = event.chosen, saves.committed
    if (
        chosen is None
        or chosen.run_id.attempt == event.run_id.attempt
        or (checkpoints and checkpoints[0].mark >= chosen)
    ):
        return ""
    # Only the first run of an attempt begins with positions handed on, and a cut has its own.
    if saves.decisions or not tx.feeds or checkpoints_allowed_by_cuts(tx.cuts, event.world) is not None:
        return ""
    newest = f"had last seen {checkpoints[0].mark}" if checkpoints else "had seen no checkpoint"
    state = f"the state that attempt {chosen.run_id.attempt} handed on {newest}"
    return f"; {state}: data that it used since are in the checkpoint, and are handed out again"


def _report_restore(tx: StateTransaction, event: CheckpointDecided, repeated_data: str) -> None:
    """Report what a run restored and how many steps were lost, in the timeline and in the fault."""
    lost_steps = None
    if event.reached is not None:
        lost_steps = max(0, event.reached - (event.chosen.step if event.chosen else 0))
        fault = _last_restart_fault(tx, role_of(event.world))
        if fault is not None:
            # Actor ranks save by themselves, so each loses another number of steps: the largest is reported.
            new_fault = evolve(fault, lost=max(lost_steps, fault.lost or 0))
            tx.faults = tuple(new_fault if old_fault is fault else old_fault for old_fault in tx.faults)
    absence_text = "no checkpoint can be read" if event.damaged else "there is no checkpoint"
    start_text = f"restores {event.chosen}" if event.chosen else f"begins from step 0: {absence_text}"
    loss_text = ""
    if lost_steps is not None:
        loss_text = (
            f"; step {event.reached} had been reached, {counted(lost_steps, 'step')} {is_or_are(lost_steps)} lost"
        )
    message = f"run {event.run_id} {start_text}{loss_text}{repeated_data}"
    tx.note(reasons.CHECKPOINT_RESTORED, event.world, message)
    if event.damaged:
        first, *others = event.damaged
        message = f"{message}; {first}{f', and {len(others)} more' if others else ''}"
        record_problem(tx, StandingProblem(reasons.CHECKPOINT_DAMAGED, event.world, message, tx.now))


def _last_restart_fault(tx: StateTransaction, role: str) -> FaultRecord | None:
    """Return the last fault that restarted ranks of a role."""
    wide_levels = (Level.JOB.value, Level.NODE.value)
    # A restart of the job or of a node took the ranks of this role along.
    faults = (fault for fault in reversed(tx.faults) if fault.level in wide_levels or role_of(fault.target) == role)
    return next((fault for fault in faults if fault.level != Level.MASTER.value), None)


def shown_checkpoint(state: JobState) -> Committed | None:
    """Return the checkpoint that the status shows: the latest of the first driver role, else the latest of all."""
    driver = state.job.drivers[0]
    last_by_world = {world: saves.last for world, saves in state.saves.items() if saves.last}
    driver_checkpoints = [checkpoint for world, checkpoint in last_by_world.items() if role_of(world) == driver]
    checkpoints = driver_checkpoints or last_by_world.values()
    return max(checkpoints, key=lambda checkpoint: (checkpoint.at, checkpoint.mark), default=None)
