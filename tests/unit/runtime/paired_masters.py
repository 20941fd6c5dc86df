"""The two PrimeMasters of a job on a backend in memory, each as far as the backend sees it."""

from __future__ import annotations

import asyncio
from typing import Any

from master_shell_kit import HANG_S, UID, World, running, until

from dljob.runtime.backend.interface import ActorLostError
from dljob.runtime.backend.masters import FIRST, SECOND, actor_name
from dljob.runtime.controller.master_loop import MasterLoop
from dljob.runtime.controller.standby import StandbyPair
from dljob.runtime.journal.job_record import MasterOrder
from dljob.runtime.journal.stores import FileStore, KeyValueStore


class PairedMaster:
    """One of the two processes, as the backend sees it."""

    def __init__(self, world: World, number: int, *, kv: bool = False, mode: str = "Always") -> None:
        self.world, self.number = world, number
        self.name = actor_name(UID, number)
        store = KeyValueStore(world.backend.kv, f"dljob/{UID}/journal/") if kv else FileStore(world.folder / "journal")
        self.shell = MasterLoop(world.setup(master={"standby": mode}), world.backend, store)
        order = MasterOrder(UID, str(world.folder), "", "dljob", "memory", number=number)
        self.pair = StandbyPair(order, self.shell, shared=kv)
        self.dead = self.stopped = False
        self.news = asyncio.Event()
        world.backend.hosts[self.name] = self  # type: ignore[assignment]
        self.task = asyncio.create_task(self._run())
        world.paired.append(self)

    async def _run(self) -> None:
        await self.pair.until_claimed()
        self.shell.tasks.start("standby", self.pair.keep_other())
        await self.shell.run()

    async def follow(self, segment: int) -> dict[str, Any]:
        if self.stopped:
            await self.news.wait()
        answer = asyncio.ensure_future(self.pair.answer(segment))
        gone = asyncio.ensure_future(self.news.wait())
        await asyncio.wait([answer, gone], return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if self.dead:
            raise ActorLostError("killed")
        return await answer

    def die(self) -> None:
        self.dead = True
        self.news.set()
        self.close()

    def close(self) -> None:
        for task in (self.task, *self.shell.tasks.tasks, *self.shell.executor._tasks, self.shell.executor._pump):
            task.cancel()
        self.shell.executor.hosts.close()


async def commanding(world: World, *, kv: bool = False) -> PairedMaster:
    first = PairedMaster(world, FIRST, kv=kv)
    await until(running(first.shell))
    return first


async def following(world: World, *, kv: bool = False) -> PairedMaster:
    second = PairedMaster(world, SECOND, kv=kv)
    async with asyncio.timeout(HANG_S):
        await second.pair.follows.wait()
    return second
