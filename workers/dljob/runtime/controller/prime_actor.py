"""PrimeMaster's Ray actor class: the names and arguments of its methods, which `prime.MasterServer` implements.

Ray imports the class of a named actor in each process that gets its handle (`load_actor_class`,
ray/_private/function_manager.py, 2.60), and each worker gets it for its heartbeat. So this module is light, and only
the master imports `prime`: 59 modules and 5 MB less in each worker.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dljob.master.state.views import Clue
    from dljob.runtime.journal.job_record import MasterOrder
    from dljob.runtime.process.messages import BeaconReply, Heartbeat, Peer, RoleTable

COLLECT = (50_000, 20, 100)
"""Thresholds of the garbage collector. A state is millions of objects without a cycle, which reference counts free:
with Python's own (700, 10, 10) the collector walked them all again and again, 40 % of a restart of 20,000 ranks."""


class PrimeMaster:
    """The actor; `dljob.runtime.controller.prime.MasterServer` describes its methods."""

    def __init__(self, order: MasterOrder) -> None:
        from dljob.linux.priority import raise_priority

        gc.set_threshold(*COLLECT)
        raise_priority()  # before the import below: until it is done the job has no master
        from dljob.runtime.controller.master_log import MasterLog

        log = MasterLog(Path(order.dir))  # before the import below: an error in it must reach the log
        from dljob.runtime.controller import prime

        self._own = prime.MasterServer(order, close_log=log.close)

    async def beacon(self, heartbeat: Heartbeat) -> BeaconReply:
        """Take a heartbeat; the answer renews the sender's lease."""
        return await self._own.beacon(heartbeat)

    async def peers(self, role: str) -> RoleTable:
        """Return all ranks of a role."""
        return await self._own.peers(role)

    async def callees(self, role: str) -> list[tuple[int, int, bool, bool]]:
        """Return rank, incarnation, whether it is ready, whether it is gone for good, of all ranks of a role."""
        return await self._own.callees(role)

    async def await_peer(self, role: str, rank: int, after: int) -> Peer:
        """Return a rank once it is ready in an incarnation greater than `after`, or once it will never be again."""
        return await self._own.await_peer(role, rank, after)

    async def ended_callers(self, asker: str, callers: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
        """Return which of a callee's callers have ended, once one has, or after a while."""
        return await self._own.ended_callers(asker, callers)

    async def hang_of(self, role: str, rank: int, incarnation: int) -> str:
        """Return the sentence of the hang for which a process of a rank was ended; empty: it was not ended for one."""
        return await self._own.hang_of(role, rank, incarnation)

    async def endpoints(self, known: dict[str, Any] | None) -> dict[str, Any]:
        """Return role -> its ranks that get requests, once that is not `known`, or after a while."""
        return await self._own.endpoints(known)

    async def tf_cluster(self, known: dict[str, Any] | None) -> dict[str, Any]:
        """Return the addresses of TensorFlow's tasks, once they are not `known`, or after a while."""
        return await self._own.tf_cluster(known)

    async def saves(self, question: dict[str, Any], node: str) -> dict[str, Any]:
        """Answer the question of a node's saver about checkpoints."""
        return await self._own.saves(question, node)

    async def cut(self, by: str) -> dict[str, Any]:
        """Begin a consistent cut; return its number, or why there can be none now."""
        return await self._own.cut(by)

    async def suspect(self, role: str, rank: int, incarnation: int, reason: str, by: str) -> None:
        """Take a detector's word that a rank computes wrong results."""
        await self._own.suspect(role, rank, incarnation, reason, by)

    async def late_callee(self, callee: tuple[str, int, int], reason: str, line: str, by: str) -> bool:
        """Restart a rank that ran a call past its deadline; whether that incarnation ends."""
        return await self._own.late_callee(callee, reason, line, by)

    async def cut_at(self, number: int, world: str, order: int) -> int:
        """Return which save of a world belongs to a cut."""
        return await self._own.cut_at(number, world, order)

    async def cut_taken(self, report: dict[str, Any]) -> None:
        """Take a rank's report that it has saved its state for a cut, or cannot."""
        await self._own.cut_taken(report)

    async def queue_opened(self, name: str, token: str = "") -> dict[str, Any]:
        """Record a queue of the job; return the cut that it is to go back to."""
        return await self._own.queue_opened(name, token)

    async def muster(self, question: dict[str, Any]) -> dict[str, Any]:
        """Answer a member of a collective group."""
        return await self._own.muster(question)

    async def follow(self, segment: int) -> dict[str, Any]:
        """Answer the other PrimeMaster: whether this one commands, and how far its journal is."""
        return await self._own.follow(segment)

    async def hello(self) -> int:
        """Return the pid, once the state is rebuilt."""
        return await self._own.hello()

    async def status(self, after_version: int = 0, timeout_s: float = 0.0) -> dict[str, Any]:
        """Return the status once its version exceeds `after_version`, or after the timeout (s)."""
        return await self._own.status(after_version, timeout_s)

    async def brief(self, after_version: int = 0, timeout_s: float = 0.0) -> dict[str, Any]:
        """Return the status without ranks and units."""
        return await self._own.brief(after_version, timeout_s)

    async def placement(self) -> dict[str, Any]:
        """Return the units and ranks of each node."""
        return await self._own.placement()

    async def notes(self, after_seq: int = 0, timeout_s: float = 0.0) -> list[dict[str, Any]]:
        """Return the notes numbered above `after_seq`; wait for one up to the timeout (s)."""
        return await self._own.notes(after_seq, timeout_s)

    async def command(self, id: str, kind: str, target: str = "job", by: str = "") -> None:  # noqa: A002
        """Take a command from outside."""
        await self._own.command(id, kind, target, by)

    async def learned(self, target: str, incarnation: int, clue: Clue) -> None:
        """Take evidence about a rank's end from outside."""
        await self._own.learned(target, incarnation, clue)

    async def wait(self, timeout_s: float = 30.0) -> dict[str, Any] | None:
        """Return the final status; None when the job is not over after the timeout (s)."""
        return await self._own.wait(timeout_s)

    async def stacks(self, target: str = "job") -> dict[str, str]:
        """Return the stacks of each rank, or why there are none."""
        return await self._own.stacks(target)

    async def pids(self) -> dict[str, int]:
        """Return the pids of the master and of each rank that has a process."""
        return await self._own.pids()
