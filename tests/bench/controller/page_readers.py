"""PrimeMaster of 1,000 ranks with 10 events a second: what it does more for 50 open pages, and its event loop's lag.

The pages ask their command, and that asks PrimeMaster for an event behind the last one, as a long poll; the files tell
the rest. `tests/bench/api/page.py` measures the command.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from prime import _LargeWorld

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, runs, say

from dljob.master.state.state import Phase
from dljob.report.live.feed import LOOK_S
from dljob.report.live.sources import NEWS_S
from dljob.runtime.controller.master_loop import MasterLoop, until

RANKS = 1000
MEASURED_S = float(os.environ.get("READERS_S", "15"))
PER_S = 10
TICK_S = 0.01


class _Scene:
    """A PrimeMaster in this process, over a backend in memory."""

    def __init__(self, folder: Path) -> None:
        self.world = _LargeWorld(folder, RANKS)
        self.master: MasterLoop = self.world.master()
        self.lags: list[float] = []
        self.events = 0

    async def _busy(self) -> None:
        """Kill ranks, so that there are PER_S events a second; each death is some of them."""
        begin, first = time.monotonic(), self.master.timeline.seq
        while (spent := time.monotonic() - begin) < MEASURED_S:
            self.events = self.master.timeline.seq - first
            if self.events < PER_S * spent:
                name, host = next((name, host) for name, host in self.world.backend.hosts.items() if "/worker/" in name)
                host.dead = True
                host.news.set()
                del self.world.backend.hosts[name]
            await asyncio.sleep(0.1)

    async def _tick(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(TICK_S)
            self.lags.append(time.monotonic() - before - TICK_S)

    async def _page(self) -> None:
        """Ask as one `dljob open` does, whatever the number of its pages."""
        while True:
            seq = self.master.timeline.seq
            await until(self.master.changed, lambda seq=seq: self.master.timeline.seq > seq, NEWS_S)
            json.dumps(self.master.timeline.after(seq))
            await asyncio.sleep(LOOK_S)

    @property
    def lag(self) -> float:
        """The 99th percentile of the loop's lag in seconds."""
        return sorted(self.lags)[int(len(self.lags) * 0.99)]

    async def used(self, *, pages: bool) -> float:
        """Return the CPU's share of one core, in percent."""
        self.lags.clear()
        others = [asyncio.create_task(self._tick()), *([asyncio.create_task(self._page())] if pages else [])]
        began, used = time.monotonic(), time.process_time()
        await self._busy()
        share = 100 * (time.process_time() - used) / (time.monotonic() - began)
        for task in others:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        return share


async def _report() -> None:
    folder = Path(tempfile.mkdtemp(prefix="readers-"))
    without: list[float] = []
    more: list[float] = []
    alone: list[float] = []
    lags: list[float] = []
    try:
        scene = _Scene(folder)
        while scene.master.state.phase is not Phase.RUNNING:  # noqa: ASYNC110 - a measurement
            await asyncio.sleep(0.05)
        for number in range(runs(4)):
            without.append(await scene.used(pages=False))
            alone.append(scene.lag)
            share = await scene.used(pages=True)
            more.append(share - without[-1])
            lags.append(scene.lag)
            rate = f"{scene.events / MEASURED_S:.0f} events/s"
            say(f"  {number + 1}: {without[-1]:.2f} and {share:.2f} %, {alone[-1]:.3f} and {lags[-1]:.3f} s, {rate}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    job = f"PrimeMaster of {RANKS:,} ranks, {PER_S} events a second, 50 pages open"
    note = f"{median(without):.1f} % without pages; load {os.getloadavg()[0]:.0f}"
    Row("readers-share", f"{job}: its CPU beyond that without pages", "<= 1 % of a core", median(more), 1.0, "%",
        samples={"more": more}, note=note).emit()  # fmt: skip
    Row("readers-lag", f"{job}: lag of its event loop, 99th percentile", "<= 50 ms", median(lags), 0.05,
        samples={"lag": lags, "without pages": alone}, note=f"{median(alone):.3f} s without pages").emit()  # fmt: skip
    os._exit(0)  # a thousand polls wait


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    asyncio.run(_report())
