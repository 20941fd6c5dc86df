"""Opening a journal of 1,000,000 events: seconds and memory of a new PrimeMaster, and its longest time without answers.

Two journals: one that rolled as it was written, and one of code before that, all of it in one segment. `journal.py kv`
measures the key-value store of a real Ray instead: a commit and a replay by the number of commits before it.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "unit" / "runtime"))

from master_shell_kit import World

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import RAY_ENV, Row, say

from dljob.master.persistence.codec import event_record, snapshot_records
from dljob.master.start import shards
from dljob.master.state import events as ev
from dljob.master.state.checkpoint_ids import CheckpointId, RunId
from dljob.master.transition import transition
from dljob.runtime.controller.rebuild import change_record
from dljob.runtime.journal import journal as journal_module
from dljob.runtime.journal.journal import Journal
from dljob.runtime.journal.stores import FileStore, KeyValueStore
from dljob.runtime.process.messages import Heartbeat

EVENTS, BATCH, SNAPSHOT_EVERY = 1_000_000, 20, 2000
BEAT_S = 0.02
KV_COMMITS = (100, 40_000)


class _Written:
    """A journal as a data set's ranks make it: shards told by two ranks, and a checkpoint now and then."""

    def __init__(self, folder: Path) -> None:
        self._journal = Journal(FileStore(folder / "journal"), World(folder).core)
        self._setup = World(folder).setup()
        self._state, self._now = self._setup.initial(1e9), 1e9

    async def write(self, events: int) -> None:
        """Write so many events."""
        await self._journal.open()
        await self._journal.commit([{"k": "begin", "at": self._now, "plan": self._setup.plan.digest}])
        await self._snapshot()
        for done in range(0, events, BATCH):
            await self._batch(done)
            if self._journal.since_snapshot >= SNAPSHOT_EVERY:
                await self._snapshot()
        await self._journal.forget()
        await self._journal.close()

    async def _snapshot(self) -> None:
        await self._journal.snapshot((*snapshot_records(self._state, self._now), {"k": "notes", "seq": 0}))

    async def _batch(self, done: int) -> None:
        self._now += 0.5 * BATCH
        before, actions, events = self._state, list[object](), [self._event(done + i) for i in range(BATCH)]
        for event in events:
            step = transition(self._state, event, self._now)
            self._state = step.state
            actions.extend(step.actions)
        change = change_record(before, self._state, actions, self._now)
        await self._journal.commit([*(event_record(event, self._now) for event in events), change])

    def _event(self, number: int) -> ev.Event:
        if number % 50 == 49:
            return ev.CheckpointCommitted("worker/0", CheckpointId(RunId(1, 1), number))
        rank = number % 2
        held = shards.runs_of(self._state, "d", ("worker", rank), 1) if number > 1 else []
        return ev.ShardsTold(
            name="d",
            size=10**9,
            shard=10,
            epochs=1,
            world=f"worker/{rank}",
            role="worker",
            rank=rank,
            incarnation=1,
            run_id=RunId(1, 1),
            saves=False,
            done=tuple((start, end, None, 0) for start, end, *_ in held),
            want=1,
        )


async def _open(folder: Path) -> None:
    """Start a PrimeMaster over a journal; print seconds, MiB, and the longest time without an answer to a beacon."""
    import ray  # noqa: F401 - an actor has it before its `__init__`; here it took 0.9 s after the recovery

    world, longest, over = World(folder), 0.0, False
    began = time.monotonic()
    shell = world.master()

    async def beat() -> None:
        nonlocal longest
        last = time.monotonic()
        while not over:
            await asyncio.sleep(BEAT_S)
            shell.take_heartbeat(Heartbeat("worker", "01234567/worker/0/1", 1, {}))
            now = time.monotonic()
            longest, last = max(longest, now - last), now

    beating = asyncio.create_task(beat())
    while not shell.recovered:  # noqa: ASYNC110 - a measurement
        await asyncio.sleep(0.01)
    took, over = time.monotonic() - began, True
    await beating
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(took, peak, longest, flush=True)
    os._exit(0)


def _of_files(name: str, few: int) -> None:
    """One journal, written in this process and opened in another one."""
    folder = Path(tempfile.mkdtemp(prefix="journal-"))
    try:
        os.fdatasync = lambda _fd: None  # a million events in a minute
        journal_module.FEW = few
        began = time.monotonic()
        asyncio.run(_Written(folder).write(EVENTS))
        sizes = sum(path.stat().st_size for path in (folder / "journal").rglob("*") if path.is_file())
        say(f"{name}: {EVENTS:,} events in {time.monotonic() - began:.0f} s, {sizes >> 20} MiB")
        command = [sys.executable, __file__, "open", str(folder)]
        took, peak, longest = map(
            float, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        )
    finally:
        shutil.rmtree(folder)
    what = "that rolled" if few < 10**9 else "in one segment"
    facts = {"peak under 300 MB": peak <= 300, "heartbeats answered within 1 s": longest <= 1.0}
    note = f"peak {peak:.0f} MiB; no answer for {longest:.2f} s; {sizes >> 20} MiB on disk"
    Row(
        f"journal-{name}",
        f"PrimeMaster opens a journal of {EVENTS:,} events {what}",
        "<= 3 s, 300 MB",
        took,
        3.0,
        facts=facts,
        note=note,
    ).emit()


async def _commits(kv: Any) -> None:
    store = KeyValueStore(kv, f"dljob/{'0' * 32}/journal/")
    journal = Journal(store, "c")
    await journal.open()
    records = [{"k": "event", "at": 1.0, "e": {"t": "X", "pad": "x" * 150}}, {"k": "change", "at": 1.0, "d": None}]
    costs: dict[int, float] = {}
    for many in KV_COMMITS:
        while journal._lines < 2 * many:
            await asyncio.gather(
                *(store._kv.put_if_absent(store._key(1, store._next[1] + i), b"{}" * 150) for i in range(50))
            )
            store._next[1] += 50
            journal._lines += 100
        began = time.monotonic()
        for _ in range(100):
            await journal.commit(records)
        costs[many] = (time.monotonic() - began) / 100
        say(f"{many:,} commits before it: a commit takes {1e3 * costs[many]:.2f} ms")
    began = time.monotonic()
    size = await store.read(1, lambda source: source.size)
    say(f"a segment of {KV_COMMITS[-1]:,} values, {size >> 20} MiB, is read in {time.monotonic() - began:.1f} s")
    few, most = (costs[many] for many in KV_COMMITS)
    Row(
        "journal-kv",
        f"a commit in Ray's key-value store after {KV_COMMITS[1]:,} commits against {KV_COMMITS[0]}",
        "<= 2 x",
        most / few,
        2.0,
        unit="x",
        note=f"{1e3 * few:.2f} and {1e3 * most:.2f} ms; such a segment is read in {time.monotonic() - began:.1f} s",
    ).emit()


def _of_ray() -> None:
    os.environ.update(RAY_ENV)
    import ray

    from dljob.runtime.backend.ray_keys import RayKeyValue

    pool = ThreadPoolExecutor(4)

    async def thread(function: Any, *args: Any, **more: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(pool, lambda: function(*args, **more))

    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
    asyncio.run(_commits(RayKeyValue(thread)))
    ray.shutdown()


def main() -> None:
    """Three rows of the table."""
    match sys.argv[1:]:
        case ["open", folder]:
            asyncio.run(_open(Path(folder)))
        case ["kv"]:
            _of_ray()
        case _:
            _of_files("rolled", journal_module.FEW)
            _of_files("one-segment", 10**9)
            _of_ray()


if __name__ == "__main__":
    main()
