"""Failures as they are remembered: who was heard of, the evidence, and what follows from what."""

from __future__ import annotations

from dataclasses import dataclass

from dljob.master.state.views import Clue, Outcome


@dataclass(frozen=True, slots=True)
class Consequence:
    """A failure that is listed under its first cause."""

    rank: str
    incarnation: int
    cause: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure of a rank as it was judged."""

    role: str
    rank: int
    incarnation: int
    node: str
    outcome: Outcome
    secondary: bool
    ordered: bool
    """PrimeMaster had it ended."""

    @property
    def name(self) -> str:
        """The rank, as people write it."""
        return f"{self.role}/{self.rank}"


@dataclass(frozen=True, slots=True)
class Notice:
    """What was announced of a node, or of a rank's process, and when (unix seconds)."""

    at: float
    clues: tuple[Clue, ...]


@dataclass(frozen=True, slots=True)
class Departure:
    """A node that is to be taken away, while it is still there; times in unix seconds."""

    why: str
    """Who said so, in their words."""
    since: float
    """When that was heard."""
    by: float
    """Until when the node is there, as far as anybody said."""
    save_by: float
    """So long its ranks wait for their copies to come to disk."""
    saved: bool = False
    """They wait no more."""
    stays: str = ""
    """Why they stay to the end all the same; empty: nothing keeps them."""


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """Something that went wrong, and when it was made good."""

    id: int
    level: str
    reason: str
    target: str
    cause: str
    detected: float
    recovered: float | None = None
    rank: str = ""
    """Whose end it was heard of, "<role>/<rank>"; empty where nobody failed."""
    incarnation: int = 0
    node: str = ""
    outcome: Outcome | None = None
    """How that rank ended: the evidence."""
    secondary: bool = False
    """It only told that somebody else was gone."""
    root: int = 0
    """The fault that it follows from; 0: none is known."""
    followed: tuple[Consequence, ...] = ()
    """What follows from it, in the order in which it was heard."""
    lost: int | None = None
    """How many steps further than the checkpoint that it went on from the role had come; None: nobody knows."""
