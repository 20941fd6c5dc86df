"""PrimeMaster as Ray sees it: names and arguments of its methods, the work in `prime.py`.

Whoever gets the handle of a named actor imports its class (`load_actor_class`, ray/_private/function_manager.py, 2.60),
and every worker does, for its beacon. So this module is light, and `prime` is imported by the master alone: 59 modules
and 5 MB less in each worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dljob.master.views import Clue
    from dljob.runtime.entries import MasterOrder
    from dljob.runtime.messages import Beacon, BeaconReply, Peer, RoleTable


class PrimeMaster:
    """The actor; see `dljob.runtime.prime.PrimeMaster`."""

    def __init__(self, order: MasterOrder) -> None:
        from dljob.runtime import prime

        self._own = prime.PrimeMaster(order)

    async def beacon(self, beacon: Beacon) -> BeaconReply:
        """Take progress, renew a lease."""
        return await self._own.beacon(beacon)

    async def peers(self, role: str) -> RoleTable:
        """All ranks of a role."""
        return await self._own.peers(role)

    async def await_peer(self, role: str, rank: int, after: int) -> Peer:
        """A rank, once it is ready in an incarnation greater than `after`, or will never be back."""
        return await self._own.await_peer(role, rank, after)

    async def saves(self, question: dict[str, Any], node: str) -> dict[str, Any]:
        """What a node's saver asks of checkpoints."""
        return await self._own.saves(question, node)

    async def muster(self, question: dict[str, Any]) -> dict[str, Any]:
        """What a member of a collective group asks."""
        return await self._own.muster(question)

    async def hello(self) -> int:
        """The first answer. Its pid."""
        return await self._own.hello()

    async def status(self, after_version: int = 0, timeout_s: float = 0.0) -> dict[str, Any]:
        """The status, as soon as its version is greater."""
        return await self._own.status(after_version, timeout_s)

    async def brief(self, after_version: int = 0, timeout_s: float = 0.0) -> dict[str, Any]:
        """The status without ranks and units."""
        return await self._own.brief(after_version, timeout_s)

    async def placement(self) -> dict[str, Any]:
        """Which node holds which units and ranks."""
        return await self._own.placement()

    async def notes(self, after_seq: int = 0, timeout_s: float = 0.0) -> list[dict[str, Any]]:
        """The notes with a greater number."""
        return await self._own.notes(after_seq, timeout_s)

    async def command(self, id: str, kind: str, target: str = "job", by: str = "") -> None:  # noqa: A002
        """Take an order from outside."""
        await self._own.command(id, kind, target, by)

    async def learned(self, target: str, incarnation: int, clue: Clue) -> None:
        """Take evidence of a rank's end from outside."""
        await self._own.learned(target, incarnation, clue)

    async def wait(self, timeout_s: float = 30.0) -> dict[str, Any] | None:
        """The final status; None when the job is not over after the timeout."""
        return await self._own.wait(timeout_s)

    async def stacks(self, target: str = "job") -> dict[str, str]:
        """Rank -> what its node sees of its process now."""
        return await self._own.stacks(target)

    async def pids(self) -> dict[str, int]:
        """The process of the master and of each rank that has one."""
        return await self._own.pids()
