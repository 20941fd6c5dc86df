"""The base class of SubMasters: control of one role's ranks as a group, by those who know that kind of group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dljob.runtime.process.job_control import JobControl


class SubMaster:
    """Serves where the ranks of one Elastic role meet, in a process of its own that shares the unit of rank 0.

    Named by `comm.subMaster`; an entry point in `dljob.submasters` leads to the class. If its process dies the role's
    ranks start again with another one. Constructed without arguments; the attributes are there when `setup` is called.
    """

    role: str = ""
    """The role whose ranks meet here."""
    config: Mapping[str, Any] = {}
    """The job's config with the role's own laid over it."""
    job: JobControl
    """What `current_worker().job` is: `status()`, `restart(role=, rank=)`, `stop()`."""

    def setup(self) -> None:
        """Open what is served. No rank has started."""

    def address(self) -> str:
        """host:port, which the ranks find as MASTER_ADDR and MASTER_PORT; the same for this process's life."""
        raise NotImplementedError(f"{type(self).__name__}.address() is to say where it serves, as host:port")

    def begin(self, generation: int, world_size: int) -> None:
        """All ranks of the role are about to start, for the first time or again; none does before this returns.

        Called once a generation, each greater than the one before. What earlier ranks said here is void. An exception
        ends this process, and the ranks are started again with another one.
        """
