"""Identifiers of checkpoints, and the rule which of them count. Pure values, without files.

A *world* is the set of ranks that save together: an Elastic role, or one Actor rank. A *run* of a world is
numbered by the role's generation or the rank's incarnation. Before a run loads, PrimeMaster decides once, for all its
ranks, which checkpoint it restores. That decision is also a fence: a checkpoint that an earlier run saved beyond it
never counts, however late it arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import total_ordering
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class RunId:
    """Number of a run. The job's attempt comes first, so that runs of a later attempt are newer."""

    attempt: int
    number: int

    def __str__(self) -> str:
        return f"{self.attempt}.{self.number}"


@total_ordering
@dataclass(frozen=True, slots=True)
class CheckpointId:
    """A saved step of a run. The order is that of the saves: the later one is newer, even at a lower step."""

    run_id: RunId
    step: int
    revision: int = 0
    """0 while each save of a run has a higher step than the one before.

    A save that has not gets its number among the saves of its run, as do those that follow it with higher steps.
    """

    def __lt__(self, compared: CheckpointId) -> bool:
        return (self.run_id, self.revision, self.step) < (compared.run_id, compared.revision, compared.step)

    def __str__(self) -> str:
        again = f", revision {self.revision}" if self.revision else ""
        return f"step {self.step}{again} of run {self.run_id}"

    def json(self) -> dict[str, int]:
        """Return the identifier as JSON, for requests to PrimeMaster and for files on disk."""
        data = {"attempt": self.run_id.attempt, "number": self.run_id.number, "step": self.step}
        return data | ({"revision": self.revision} if self.revision else {})

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> CheckpointId:
        """Return the identifier that `json` wrote."""
        return cls(RunId(data["attempt"], data["number"]), data["step"], data.get("revision", 0))


@dataclass(frozen=True, slots=True)
class RestoreDecision:
    """The checkpoint that a run restores; `chosen` None: it begins without one."""

    run_id: RunId
    chosen: CheckpointId | None


@dataclass(frozen=True, slots=True)
class Committed:
    """A checkpoint whose parts are all on disk; `at` is when that was journaled (unix seconds)."""

    mark: CheckpointId
    at: float


@dataclass(frozen=True, slots=True)
class Saves:
    """The newest checkpoints of a world that count, and its last restore decisions; both oldest first."""

    committed: tuple[Committed, ...] = ()
    decisions: tuple[RestoreDecision, ...] = ()
    oldest: CheckpointId | None = None
    """The oldest checkpoint to which a restore may go back: data positions in it are settled. None: none is settled."""

    @property
    def last(self) -> Committed | None:
        """The newest checkpoint that counts."""
        return self.committed[-1] if self.committed else None

    def superseded(self, run_id: RunId) -> str:
        """Return the newest later run that made a decision; empty: there is none."""
        later_runs = [decision.run_id for decision in self.decisions if decision.run_id > run_id]
        return str(max(later_runs)) if later_runs else ""

    def decision(self, run_id: RunId) -> RestoreDecision | None:
        """Return the decision of a run; None before it is made."""
        return next((decision for decision in self.decisions if decision.run_id == run_id), None)


def role_of(world: str) -> str:
    """Return the role of a world: `trainer` for both `trainer` (an Elastic role) and `trainer/3` (an Actor rank)."""
    return world.partition("/")[0]


def fence(mark: CheckpointId, decisions: Iterable[RestoreDecision]) -> str:
    """Return why a checkpoint does not count: a later run restored an earlier one. Empty when it counts."""
    for decision in decisions:
        # Earlier runs may still commit up to the restored checkpoint; what lies beyond it never happened.
        if mark.run_id < decision.run_id and (decision.chosen is None or mark > decision.chosen):
            since = f"restored {decision.chosen}" if decision.chosen else "begun without a checkpoint"
            return f"run {decision.run_id} has {since}"
    return ""
