"""Where a rank saves and what it is called there."""

from __future__ import annotations

from dataclasses import dataclass

from dljob.master.marks import Life, Mark

KEEP = 2
"""How many whole checkpoints stay on disk."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a host tells its rank of checkpoints; it travels as JSON."""

    address: str
    """The saver's socket."""
    folder: str
    """One folder per world: a role, or one rank of it."""
    name: str
    """How messages call this rank: `trainer/3`."""
    rank: int
    """Within the world."""
    world: int
    """How many parts make a checkpoint whole: an Elastic role's ranks, or this rank alone."""
    attempt: int
    number: int
    """Of the life: the role's generation, or this rank's incarnation."""
    incarnation: int
    of: str
    """The world, as PrimeMaster calls it: `trainer` for an Elastic role, `w/3` for an Actor rank."""
    save_on_exit: bool = True
    peer_copy: bool = True
    grace_s: float = 120.0
    """How long saving may take when the rank or the job ends."""

    @property
    def life(self) -> Life:
        """The life whose parts belong together."""
        return Life(self.attempt, self.number)

    def mark(self, step: int) -> Mark:
        """A step of this life."""
        return Mark(self.life, step)
