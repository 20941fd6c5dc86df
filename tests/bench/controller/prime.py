"""PrimeMaster over a backend in memory at 10,000 ranks: its longest silence while a tenth of them die at once.

Then a new one: its first answer, and until it hears all hosts.

`prime.py RANKS` takes another number of ranks.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "unit" / "runtime"))

from master_shell_kit import UID, World
from memory_backend import MemoryBackend

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row

from dljob.master.state.state import Phase
from dljob.master.state.views import NodeView
from dljob.plan.model import GRAIN
from dljob.plan.plan import plan
from dljob.runtime.controller.master_loop import MasterLoop
from dljob.runtime.journal.setup import Setup
from dljob.runtime.process.messages import Heartbeat, JobInfo
from dljob.spec.model import DLJobManifest

RANKS = 10_000
BEAT_S = 0.02


class _Large(MemoryBackend):
    """One node with a CPU for each rank."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self._cpus = (("CPU", ranks * GRAIN),)

    async def nodes(self) -> tuple[NodeView, ...]:
        return (NodeView("n1", self._cpus, self._cpus, (), "127.0.0.1"),)


class _LargeWorld(World):
    def __init__(self, folder: Path, ranks: int) -> None:
        super().__init__(folder)
        self.backend, self._ranks = _Large(ranks), ranks

    def setup(self, **spec: Any) -> Setup:
        role = {"name": "worker", "entrypoint": {"class": "m.C"}, "replicas": self._ranks, "resources": {"cpu": "1"}}
        policy = {"restartPolicy": {"maxRestarts": 100_000}}
        tolerance = {"faultTolerance": {"maxRestarts": 100_000, "backoff": {"initialSeconds": 0}}}
        manifest = DLJobManifest.model_validate(
            {"metadata": {"name": "j"}, "spec": {"roles": [role | policy], **tolerance, **spec}}
        )
        roles = (("worker", self._ranks),)
        info = JobInfo(UID, "j", str(self.folder), "dljob", "01234567/master", 30, 0.2, "/code", roles)
        return Setup(info, manifest.spec, plan(manifest), carried=None, core="c")


async def _deaths(world: World, shell: MasterLoop, ranks: int) -> float:
    """The longest time without an answer while a tenth of the ranks die at once and start again."""
    hosts = {name: host for name, host in world.backend.hosts.items() if "/worker/" in name}
    for name, host in list(hosts.items())[: ranks // 10]:
        host.dead = True
        host.news.set()
        del world.backend.hosts[name]
    longest, last, recovering = 0.0, time.monotonic(), False
    while not recovering or shell.state.phase is not Phase.RUNNING:
        await asyncio.sleep(BEAT_S)
        recovering |= shell.state.phase is not Phase.RUNNING
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    return longest


async def _measure(folder: Path, ranks: int) -> tuple[float, float, float, float]:
    """Seconds without an answer at deaths and of a new master, until that heard all hosts, and its CPU seconds."""
    world = _LargeWorld(folder, ranks)
    first = world.master()
    while first.state.phase is not Phase.RUNNING:  # noqa: ASYNC110 - a measurement
        await asyncio.sleep(0.05)
    deaths = await _deaths(world, first, ranks)
    await world.die()
    await asyncio.sleep(1.0)
    began, used = time.monotonic(), time.process_time()
    second, longest, last = world.master(), 0.0, began
    while not second.recovered or _heard(second) < ranks:
        await asyncio.sleep(BEAT_S)
        second.take_heartbeat(Heartbeat("worker", "01234567/worker/0/1", 1, {}))
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    return deaths, longest, time.monotonic() - began, time.process_time() - used


def _heard(shell: MasterLoop) -> int:
    return sum(watched.ref is not None for watched in shell.executor.hosts._watched.values())


async def _report(ranks: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="prime-"))
    try:
        deaths, longest, heard, used = await _measure(folder, ranks)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text, note = f"a new PrimeMaster of {ranks:,} ranks", f"{used:.1f} CPU s"
    many = f"{ranks // 10:,} of {ranks:,} ranks die at once: the longest time without an answer"
    Row("prime-deaths", many, "<= 0.5 s", deaths, 0.5).emit()
    Row("prime-answers", f"{text}: the longest time without an answer to a heartbeat", "<= 1 s", longest, 1.0).emit()
    Row("prime-hears", f"{text}: until it hears all hosts", "<= 5 s", heard, 5.0, note=note).emit()
    os._exit(0)  # ten thousand polls wait


def main() -> None:
    """Three rows of the table."""
    logging.disable(logging.CRITICAL)  # hosts in memory give no evidence, which is a line for each that dies
    asyncio.run(_report(int(sys.argv[1]) if sys.argv[1:] else RANKS))


if __name__ == "__main__":
    main()
