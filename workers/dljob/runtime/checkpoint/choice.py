"""Decisions about checkpoints that read no file: which one a new run restores, and which ones may be deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dljob.master.state.checkpoint_ids import CheckpointId, RestoreDecision, RunId, fence


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checkpoint whose parts are all there; `bad` says why it cannot be used nevertheless."""

    mark: CheckpointId
    world: int
    memory: bool = False
    bad: str = ""


def choose(
    candidates: Iterable[Candidate],
    decisions: Iterable[RestoreDecision],
    run_id: RunId,
    fault: Callable[[Candidate], str] = lambda candidate: candidate.bad,
) -> tuple[Candidate | None, tuple[str, ...]]:
    """Return the newest checkpoint that a run may restore, and a message per newer one that was skipped.

    For the same mark memory precedes disk. A run restores its own saves too. `fault` returns why a checkpoint cannot
    be used; it may read every byte, so it is called for no more of them than necessary.
    """
    decided = tuple(decisions)
    skipped: list[str] = []
    for candidate in sorted(candidates, key=lambda c: (c.mark, c.memory), reverse=True):
        reason = fence(candidate.mark, decided)
        if candidate.mark.run_id > run_id:
            reason = f"it is of a later run than {run_id}"
        if not reason and not (reason := fault(candidate)):
            return candidate, tuple(skipped)
        skipped.append(f"{candidate.mark} was passed over: {reason}")
    return None, tuple(skipped)


def void_checkpoints(marks: Iterable[CheckpointId], decisions: Iterable[RestoreDecision]) -> list[CheckpointId]:
    """List the checkpoints that never count again: a later run has restored an earlier one."""
    decided = tuple(decisions)
    return [mark for mark in marks if fence(mark, decided)]


def expired_checkpoints(
    marks: Iterable[CheckpointId], whole_marks: Iterable[CheckpointId], decisions: Iterable[RestoreDecision], keep: int
) -> list[CheckpointId]:
    """List the checkpoints that may be deleted: those older than the newest `keep` whole ones that count."""
    decided = tuple(decisions)
    good = sorted((mark for mark in whole_marks if not fence(mark, decided)), reverse=True)[:keep]
    if len(good) < keep:
        return []
    return [mark for mark in marks if mark < good[-1]]


def unneeded_decisions(decisions: Iterable[RestoreDecision], most: int) -> list[RestoreDecision]:
    """List unneeded decisions: a later one fences everything that they do, or `most` newer ones are kept.

    A run that crashes before it saves decides the same as the one before it, so of many such runs the last is enough.
    """
    unneeded = list[RestoreDecision]()
    kept_count = 0
    later: RestoreDecision | None = None
    for decision in sorted(decisions, key=lambda decision: decision.run_id, reverse=True):
        if later is not None and (kept_count == most or not _beyond(later.chosen, decision.chosen)):
            unneeded.append(decision)
        else:
            kept_count, later = kept_count + 1, decision
    return unneeded


def _beyond(chosen: CheckpointId | None, before: CheckpointId | None) -> bool:
    """Return whether a run restored a newer checkpoint than an earlier run did."""
    return chosen is not None and (before is None or chosen > before)
