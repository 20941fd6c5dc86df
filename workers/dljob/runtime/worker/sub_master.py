"""The base class of SubMasters: user code that controls the ranks of one role as a group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dljob.runtime.process.job_control import JobControl


class SubMaster:
    """Serves the rendezvous of one Elastic role, in its own process on the unit (placement group) of rank 0.

    `comm.subMaster` names it, and an entry point in `dljob.submasters` leads to the class. If its process dies, the
    role's ranks restart with a new SubMaster. It is constructed without arguments; the attributes below are set before
    `setup` is called.
    """

    role: str = ""
    """The role whose ranks meet here."""
    config: Mapping[str, Any] = {}
    """The job's config, overridden by the role's."""
    job: JobControl
    """Control of the job, as `current_worker().job`: `status()`, `restart(role=, rank=)`, `stop()`."""

    def setup(self) -> None:
        """Start serving. Called before any rank starts.

        An exception ends the job, except one of the network or memory, which may not come again.
        """

    def address(self) -> str:
        """Return host:port, which ranks get as MASTER_ADDR and MASTER_PORT; constant for the life of this process."""
        raise NotImplementedError(f"{type(self).__name__}.address() must return where it serves, as host:port")

    def begin(self, generation: int, world_size: int) -> None:
        """Prepare for a start or restart of all ranks; no rank starts before this returns.

        Called once per generation, with increasing numbers. State that earlier ranks left here is void. An exception
        ends this process, and the ranks restart with a new SubMaster; the same one twice in a row ends the job.
        """
