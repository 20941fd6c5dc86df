"""The probes of a host's ranks: one thread with an event loop, one task for each rank."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from dataclasses import dataclass
from typing import Protocol

from dljob.plan.role import RolePlan
from dljob.plan.serving import ProbePlan
from dljob.runtime.serving.probes import ProbeTarget, ask
from dljob.runtime.serving.tally import Tally
from dljob.telemetry.wording import counted

log = logging.getLogger(__package__)


@dataclass(frozen=True, slots=True)
class ProbedRank:
    """A rank in one of its incarnations."""

    rank: int
    incarnation: int


class ProbeListener(Protocol):
    """What is done about the answers to probes. All methods are called in the monitor's thread."""

    def serves(self, probed_rank: ProbedRank, *, ready: bool, reason: str) -> None:
        """A rank became ready, or it is not ready any more, or it cannot become ready."""
        ...

    def dead(self, probed_rank: ProbedRank, reason: str) -> None:
        """The startup or liveness probe of a rank failed for good."""
        ...


class ProbeMonitor:
    """Probes ranks from their start to their end."""

    def __init__(self, listener: ProbeListener) -> None:
        self._listener = listener
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[int, tuple[ProbedRank, asyncio.Task[None]]] = {}

    def begin(self, probed_rank: ProbedRank, role: RolePlan, target: ProbeTarget) -> None:
        """Probe a rank from now on, instead of its earlier incarnation."""
        asyncio.run_coroutine_threadsafe(self._begin(probed_rank, role, target), self._running()).result()

    def end(self, probed_rank: ProbedRank) -> None:
        """Stop probing a rank, unless a later incarnation is probed. No callback about it begins after the return."""
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._end(probed_rank), self._loop).result()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="dljob-probes", daemon=True).start()
            return self._loop

    async def _begin(self, probed_rank: ProbedRank, role: RolePlan, target: ProbeTarget) -> None:
        await self._end(probed_rank)
        task = asyncio.create_task(self._watch(probed_rank, role, target))
        self._tasks[probed_rank.rank] = probed_rank, task
        task.add_done_callback(functools.partial(_log_error, probed_rank))

    async def _end(self, probed_rank: ProbedRank) -> None:
        probed, task = self._tasks.get(probed_rank.rank, (probed_rank, None))
        # An order to stop may still be under way for an incarnation that has ended by itself, and was replaced.
        if task is not None and probed.incarnation <= probed_rank.incarnation:
            del self._tasks[probed_rank.rank]
            task.cancel()
            await asyncio.wait([task])  # an error of it is in the log, and must not end who begins the next one

    async def _watch(self, probed_rank: ProbedRank, role: RolePlan, target: ProbeTarget) -> None:
        if role.startup is not None and (reason := await _start_up(role.startup, target)):
            self._listener.dead(probed_rank, reason)
            return
        if role.readiness is None:
            self._listener.serves(probed_rank, ready=True, reason="")
        # As in Kubernetes, both begin once the startup probe has succeeded.
        async with asyncio.TaskGroup() as probes:
            ready = role.readiness and probes.create_task(self._readiness(probed_rank, role.readiness, target))
            if role.liveness is not None:
                reason = await _until_dead(role.liveness, target)
                if ready is not None:
                    ready.cancel()
                self._listener.dead(probed_rank, reason)

    async def _readiness(self, probed_rank: ProbedRank, probe: ProbePlan, target: ProbeTarget) -> None:
        await asyncio.sleep(probe.delay_s)
        tally, is_ready, warned = Tally(), False, False
        while True:
            answer = await ask(probe, target)
            tally = tally.counted(probe, ok=answer.ok)
            if answer.unknown and tally.verdict is False and not warned and not tally.ever:
                # Once: such a server never becomes ready, and those who wait for it say only that they wait.
                warned = True
                self._listener.serves(probed_rank, ready=False, reason=answer.words)
            if bool(tally.verdict) != is_ready:
                is_ready = not is_ready
                self._listener.serves(probed_rank, ready=is_ready, reason=answer.words)
            await asyncio.sleep(tally.pause_s(probe))


def _log_error(probed_rank: ProbedRank, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s is not probed any more: %r", probed_rank, error, exc_info=error)


async def _start_up(probe: ProbePlan, target: ProbeTarget) -> str:
    """Probe until the first success, and return ""; after `failures` periods without one, return the last answer."""
    await asyncio.sleep(probe.delay_s)
    loop = asyncio.get_running_loop()
    end, tally = loop.time() + probe.failures * probe.period_s, Tally()
    while True:
        answer = await ask(probe, target)
        if answer.ok:
            return ""
        if loop.time() >= end:
            return f"startup probe without success for {probe.failures * probe.period_s} s, last: {answer.words}"
        tally = tally.counted(probe, ok=False)
        await asyncio.sleep(min(tally.pause_s(probe), max(0.0, end - loop.time())))


async def _until_dead(probe: ProbePlan, target: ProbeTarget) -> str:
    """Probe until it has failed as often as it may; return the last answer."""
    await asyncio.sleep(probe.delay_s)
    tally = Tally()
    while True:
        answer = await ask(probe, target)
        tally = tally.counted(probe, ok=answer.ok)
        if tally.verdict is False:
            return f"liveness probe failed {counted(tally.failures, 'time')}, last: {answer.words}"
        # Never sooner than the period: a server that still starts is not to be ended within a second.
        await asyncio.sleep(probe.period_s)
