"""After a host vanished without a word: asks its machine what it knows of that, once the restart is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from dljob.master import events as ev
from dljob.master.views import Clue, HostId
from dljob.runtime import evidence, tails
from dljob.runtime.backend import ActorRef, Backend

AFTER_S = 0.5
"""The restart goes first, and the kernel's log may be a moment late."""
WITHIN_S = 10.0


class Inquiry:
    """The questions that are under way."""

    def __init__(self, backend: Backend, offer: Callable[..., Awaitable[None]]) -> None:
        self._backend = backend
        self._offer = offer
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, who: HostId, node: str, pid: int, beside: ActorRef | None) -> None:
        """Ask a host that lives on the same node, or where there is none the node itself."""
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
                if beside is not None:
                    clues = await self._backend.call(beside, "clues", pid)
                elif self._backend.name == "ray":
                    clues = await tails.on_node(node, evidence.of_the_dead, pid)
        if clues:
            await self._offer(ev.CauseLearned(str(who), clues))
