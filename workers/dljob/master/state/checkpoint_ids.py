"""What checkpoints are called, and which of them count. Values without a file in sight.

A *world* is all that save together: an Elastic role, or one Actor rank. A *life* is one run of a world: the role's
generation, the rank's incarnation. Before a life loads it is decided once, for all its ranks, from where; that also
fences: what an earlier life saves beyond it never counts, however late it comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class RunId:
    """Counts lives, the job's attempts first."""

    attempt: int
    number: int

    def __str__(self) -> str:
        return f"{self.attempt}.{self.number}"


@dataclass(frozen=True, slots=True, order=True)
class CheckpointId:
    """A saved step of a life; a later life's is newer, whatever the steps are."""

    life: RunId
    step: int
    revision: int = 0
    """0 for the first save of a step; a life that saves the same step again makes a newer checkpoint of its own."""

    def __str__(self) -> str:
        again = f", revision {self.revision}" if self.revision else ""
        return f"step {self.step}{again} of life {self.life}"

    def json(self) -> dict[str, int]:
        """The mark as JSON, for a question to PrimeMaster and for files."""
        own = {"attempt": self.life.attempt, "number": self.life.number, "step": self.step}
        return own | ({"revision": self.revision} if self.revision else {})

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> CheckpointId:
        """The mark that `json` wrote."""
        return cls(RunId(data["attempt"], data["number"]), data["step"], data.get("revision", 0))


@dataclass(frozen=True, slots=True)
class RestoreDecision:
    """What a life restored; None: it began anew."""

    life: RunId
    chosen: CheckpointId | None


@dataclass(frozen=True, slots=True)
class Committed:
    """A checkpoint whose parts are all on disk, and when that was journaled (unix seconds)."""

    mark: CheckpointId
    at: float


@dataclass(frozen=True, slots=True)
class Saves:
    """What is known of a world's checkpoints: the newest that count, and the last decisions, oldest first."""

    committed: tuple[Committed, ...] = ()
    decisions: tuple[RestoreDecision, ...] = ()

    @property
    def last(self) -> Committed | None:
        """The newest that counts."""
        return self.committed[-1] if self.committed else None

    def superseded(self, life: RunId) -> str:
        """The later life that has begun; empty: none has."""
        later = [made.life for made in self.decisions if made.life > life]
        return str(max(later)) if later else ""

    def decision(self, life: RunId) -> RestoreDecision | None:
        """What a life restored, once that is decided."""
        return next((made for made in self.decisions if made.life == life), None)


def role_of(world: str) -> str:
    """`trainer` of the world `trainer` (an Elastic role) or `trainer/3` (an Actor rank)."""
    return world.partition("/")[0]


def fence(mark: CheckpointId, decisions: Iterable[RestoreDecision]) -> str:
    """Why a mark does not count: a later life went on from before it. Empty when it counts."""
    for decision in decisions:
        if mark.life < decision.life and (decision.chosen is None or mark > decision.chosen):
            since = f"from {decision.chosen}" if decision.chosen else "anew"
            return f"life {decision.life} has gone on {since}"
    return ""
