"""The probes of a host's ranks: one thread with an event loop, one task for each rank."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass

from dljob.plan.role import RolePlan
from dljob.plan.serving import ProbePlan
from dljob.runtime.serving.probes import ProbeTarget, ask
from dljob.runtime.serving.tally import Tally


@dataclass(frozen=True, slots=True)
class ProbedRank:
    """A rank in one of its incarnations."""

    rank: int
    incarnation: int


class ProbeMonitor:
    """Probes ranks from their start to their end.

    `on_ready(who)` is called when a rank becomes ready. All callbacks come from the monitor's own thread.
    """

    def __init__(self, on_ready: Callable[[ProbedRank], None]) -> None:
        self._on_ready = on_ready
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[int, tuple[ProbedRank, asyncio.Task[None]]] = {}

    def begin(self, who: ProbedRank, role: RolePlan, target: ProbeTarget) -> None:
        """Probe a rank from now on, instead of its earlier incarnation."""
        loop = self._running()
        asyncio.run_coroutine_threadsafe(self._begin(who, role, target), loop).result()

    def end(self, rank: int) -> None:
        """Stop probing a rank. No callback about it begins after the return."""
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._end(rank), self._loop).result()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="dljob-probes", daemon=True).start()
            return self._loop

    async def _begin(self, who: ProbedRank, role: RolePlan, target: ProbeTarget) -> None:
        await self._end(who.rank)
        self._tasks[who.rank] = who, asyncio.create_task(self._watch(who, role, target))

    async def _end(self, rank: int) -> None:
        _, task = self._tasks.pop(rank, (None, None))
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _watch(self, who: ProbedRank, role: RolePlan, target: ProbeTarget) -> None:
        if role.readiness is not None:
            await self._until_ready(role.readiness, target)
        self._on_ready(who)

    async def _until_ready(self, probe: ProbePlan, target: ProbeTarget) -> None:
        await asyncio.sleep(probe.delay_s)
        tally = Tally()
        while True:
            tally = tally.counted(probe, ok=(await ask(probe, target)).ok)
            if tally.verdict:
                return
            await asyncio.sleep(tally.pause_s(probe))
