"""After a host vanished without a word: asks its machine what it knows of that, once the restart is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from dljob.errors import DLJobError
from dljob.master import events as ev
from dljob.master.views import Clue, HostId
from dljob.runtime import evidence, tails
from dljob.runtime.backend import ActorRef, Backend

AFTER_S = 0.5
"""The restart goes first, and the kernel's log may be a moment late."""
WITHIN_S = 10.0


class Inquiry:
    """The questions that are under way; `agents`: what the names of the nodes' agents begin with."""

    def __init__(self, backend: Backend, offer: Callable[..., Awaitable[None]], agents: str) -> None:
        self._backend = backend
        self._offer = offer
        self._agents = agents
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, who: HostId, node: str, pid: int, beside: ActorRef | None) -> None:
        """Ask who lives on the same node: a host, else its agent, else the node itself."""
        task = asyncio.create_task(self._ask(who, node, pid, beside))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Nobody wants to know any more."""
        for task in self._tasks:
            task.cancel()

    async def _ask(self, who: HostId, node: str, pid: int, beside: ActorRef | None) -> None:
        await asyncio.sleep(AFTER_S)
        clues: tuple[Clue, ...] = ()
        with suppress(Exception):  # whoever was asked is gone too: then nobody knows
            async with asyncio.timeout(WITHIN_S):
                clues = await self._told(node, pid, beside)
        if clues:
            await self._offer(ev.CauseLearned(str(who), clues))

    async def _told(self, node: str, pid: int, beside: ActorRef | None) -> tuple[Clue, ...]:
        """What the first says that lives: in a container only those know of a kill who counted before it."""
        if beside is not None:
            with suppress(DLJobError):  # it may have died with its neighbour
                return await self._backend.call(beside, "clues", pid)
        agent = await self._backend.lookup(f"{self._agents}{node[:8]}")
        if agent is not None:
            with suppress(DLJobError):
                return await self._backend.call(agent, "clues", pid)
        return await tails.on_node(node, evidence.of_the_dead, pid) if self._backend.name == "ray" else ()
