"""The location of a rank's checkpoints, as the host passes it to the rank."""

from __future__ import annotations

from dataclasses import dataclass

from dljob.master.state.checkpoint_ids import RunId

KEEP = 2
"""Number of whole checkpoints that stay on disk."""


@dataclass(frozen=True, slots=True)
class CheckpointLocation:
    """Location of a rank's checkpoints, and the rank's names there; sent to the rank as JSON."""

    address: str
    """The saver's socket."""
    folder: str
    """The folder of the world: a role, or one rank of it."""
    name: str
    """The rank's name in messages: `trainer/3`."""
    rank: int
    """The rank within the world."""
    world: int
    """Number of parts that make a checkpoint whole: an Elastic role's ranks, or 1 for an Actor rank."""
    attempt: int
    number: int
    """The number of the run: the role's generation, or this rank's incarnation."""
    incarnation: int
    of: str
    """The world's name for PrimeMaster: `trainer` for an Elastic role, `w/3` for an Actor rank."""
    save_on_exit: bool = True
    peer_copy: bool = True
    grace_s: float = 120.0
    """Seconds for saves to finish when the rank or the job ends."""

    @property
    def run_id(self) -> RunId:
        """The run whose parts make a checkpoint together."""
        return RunId(self.attempt, self.number)
