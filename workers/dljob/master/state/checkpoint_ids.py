"""Identifiers of checkpoints, and the rule which of them count. Pure values, without files.

A *world* is the set of ranks that save together: an Elastic role, or one Actor rank. A *life* is one run of a world,
numbered by the role's generation or the rank's incarnation. Before a life loads, PrimeMaster decides once, for all its
ranks, which checkpoint it restores. That decision is also a fence: a checkpoint that an earlier life saved beyond it
never counts, however late it arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import total_ordering
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class RunId:
    """Number of a life. The job's attempt comes first, so that lives of a later attempt are newer."""

    attempt: int
    number: int

    def __str__(self) -> str:
        return f"{self.attempt}.{self.number}"


@total_ordering
@dataclass(frozen=True, slots=True)
class CheckpointId:
    """A saved step of a life. The order is that of the saves: the later one is newer, even at a lower step."""

    life: RunId
    step: int
    revision: int = 0
    """0 while each save of a life has a higher step than the one before.

    A save that has not gets its number among the saves of its life, as do those that follow it with higher steps.
    """

    def __lt__(self, compared: CheckpointId) -> bool:
        return (self.life, self.revision, self.step) < (compared.life, compared.revision, compared.step)

    def __str__(self) -> str:
        again = f", revision {self.revision}" if self.revision else ""
        return f"step {self.step}{again} of life {self.life}"

    def json(self) -> dict[str, int]:
        """Return the identifier as JSON, for requests to PrimeMaster and for files on disk."""
        data = {"attempt": self.life.attempt, "number": self.life.number, "step": self.step}
        return data | ({"revision": self.revision} if self.revision else {})

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> CheckpointId:
        """Return the identifier that `json` wrote."""
        return cls(RunId(data["attempt"], data["number"]), data["step"], data.get("revision", 0))


@dataclass(frozen=True, slots=True)
class RestoreDecision:
    """The checkpoint that a life restores; `chosen` None: it begins without one."""

    life: RunId
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

    def superseded(self, life: RunId) -> str:
        """Return the newest later life that made a decision; empty: there is none."""
        later_lives = [decision.life for decision in self.decisions if decision.life > life]
        return str(max(later_lives)) if later_lives else ""

    def decision(self, life: RunId) -> RestoreDecision | None:
        """Return the decision of a life; None before it is made."""
        return next((decision for decision in self.decisions if decision.life == life), None)


def role_of(world: str) -> str:
    """Return the role of a world: `trainer` for both `trainer` (an Elastic role) and `trainer/3` (an Actor rank)."""
    return world.partition("/")[0]


def fence(mark: CheckpointId, decisions: Iterable[RestoreDecision]) -> str:
    """Return why a checkpoint does not count: a later life restored an earlier one. Empty when it counts."""
    for decision in decisions:
        # Earlier lives may still commit up to the restored checkpoint; what lies beyond it never happened.
        if mark.life < decision.life and (decision.chosen is None or mark > decision.chosen):
            since = f"restored {decision.chosen}" if decision.chosen else "begun without a checkpoint"
            return f"life {decision.life} has {since}"
    return ""
