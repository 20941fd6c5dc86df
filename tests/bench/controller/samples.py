"""What the samples of a job of 1,000 ranks cost: bytes of 24 hours, PrimeMaster's share of a core, lag of its loop.

The sampler's own code on a made-up job: ranks in step by turns, a metric, memory that wanders, calls, weight versions,
and an incident every ten minutes that restarts a rank. A day of samples is written in one go: the last two hours as it
comes, a row a second; those before as they are kept, a row every ten seconds. Then a loop that does nothing else is
sampled in real time, and its segments are closed and merged, while a callback every 5 ms measures its lag.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row

from dljob.master.state.ledger import Account
from dljob.runtime.controller import sampler
from dljob.runtime.controller.sampler import RowMaker, SampledMaster, Sampler
from dljob.runtime.journal import samples
from dljob.runtime.journal.sample_rows import SampleRow as Sample
from dljob.runtime.journal.samples import SampleWriter, read

RANKS, HOURS, LIVE_S = 1000, 24, 20.0
WHOLE_H, KEPT_S = 2, 10
ROLE = "trainer"
USAGE_S = 5
INCIDENT_S, DOWN_S = 600, 20


class Job:
    """A made-up job; `view` is what a master would show of it after so many seconds."""

    def __init__(self) -> None:
        self.draw = random.Random(19)  # noqa: S311 - the same job each time
        self.second = -1
        self.keys = [(ROLE, rank) for rank in range(RANKS)]
        self.progress: dict[tuple[str, int], Any] = dict.fromkeys(self.keys, (0, {"loss": 4.0, "reward": 0.0}))
        self.clocks = dict.fromkeys(self.keys, (Account.PRODUCTIVE, 0))
        self.ledger: Any = SimpleNamespace(clocks=self.clocks)
        facts = SimpleNamespace(plan=SimpleNamespace(replicas=RANKS))
        self.job = SimpleNamespace(roles={ROLE: facts}, drivers=(ROLE,))
        self.hosts = {key: SimpleNamespace(actor=f"a{key[1]}") for key in self.keys}
        self.memory = [4000] * RANKS
        self.usage: dict[str, Any] = {}

    def view(self, second: int) -> SampledMaster:
        """Return the view at a second: nine ranks of ten have done a step, some have measured their usage."""
        steps, draw, passed = self.progress, self.draw, second - self.second
        self.second = second
        for rank in range(RANKS):
            # A rank is late now and then, and all wait for it soon.
            if passed > 1 or draw.random() < 0.9:
                step = max(steps[ROLE, rank][0] + 1, second - draw.randrange(3))
                steps[ROLE, rank] = step, {"loss": 4.0 / (1 + step / 1000), "reward": draw.random()}
        for rank in range(second % USAGE_S, RANKS, USAGE_S if passed == 1 else 1):
            self.memory[rank] += draw.randrange(-8, 9)
            told = {
                "memory": [[rank, self.memory[rank]]],
                "noted": [["held:policy", rank, second // 30], ["device", rank, 60_000 + draw.randrange(-20, 21)]],
            }
            calls = {"rollout.generate": [second, 0, 0, 0], "reward.score": [second, 0, 0, 0]}
            self.usage[f"a{rank}"] = ROLE, ({**told, "calls": calls} if rank < 10 else told)
        if second % INCIDENT_S in (0, DOWN_S):
            away = second % INCIDENT_S == 0
            self.clocks[ROLE, draw.randrange(RANKS)] = (Account.REPLACE if away else Account.PRODUCTIVE, second)
            self.ledger = SimpleNamespace(clocks=dict(self.clocks))
        state: Any = SimpleNamespace(ledger=self.ledger, job=self.job, hosts=self.hosts, ranks=self.keys)
        return SampledMaster(1_700_000_000.0 + second, state, dict(steps), dict(self.usage))


def _day(folder: Path) -> None:
    job, rows, writer, spent, largest = Job(), RowMaker(), SampleWriter(folder), 0.0, 0
    whole = (HOURS - WHOLE_H) * 3600
    for second in (*range(0, whole, KEPT_S), *range(whole, HOURS * 3600)):
        view = job.view(second)
        began = time.process_time()
        writer.append(Sample(view.at, rows.columns(view)))
        spent += (time.process_time() - began) * (second >= whole)
        if second % 3600 == 0:
            largest = max(largest, _size(folder))
            print(f"{second // 3600} h: {_size(folder):,} bytes, {spent:.1f} s of CPU", file=sys.stderr)
    writer.close()
    share, began = 100 * spent / (WHOLE_H * 3600), time.process_time()
    found = read(folder, most=200)
    took = time.process_time() - began
    note = (
        f"{len(found.times)} of its points are read in {took:.1f} s of CPU; the most on disk was {largest / 1e6:.1f} MB"
    )
    what = f"samples of {RANKS:,} ranks for {HOURS} h"
    Row("samples-size", f"{what}: bytes", "<= 20 MB", _size(folder) / 1e6, 20.0, unit="MB", note=note).emit()
    Row("samples-cpu", f"{what}: PrimeMaster's share", "<= 1 % of a core", share, 1.0, unit="% of a core").emit()


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / samples.FOLDER).iterdir())


async def _lag(folder: Path, *, sampled: bool) -> list[float]:
    """Return how late callbacks were, in seconds; with `sampled` beside a sampler whose segments close all the time."""
    loop, job, late, second = asyncio.get_running_loop(), Job(), list[float](), 0

    def view() -> SampledMaster:
        nonlocal second
        second += 1
        return ready[second % len(ready)]._replace(at=1_700_100_000.0 + second)

    ready = [job.view(number) for number in range(30)]
    own = Sampler(SimpleNamespace(dir=str(folder), uid="0" * 32), view, SimpleNamespace())  # type: ignore[arg-type]
    task = asyncio.create_task(own.run() if sampled else asyncio.sleep(LIVE_S))
    end = loop.time() + LIVE_S
    while (began := loop.time()) < end:
        await asyncio.sleep(0.005)
        late.append(loop.time() - began - 0.005)
    task.cancel()
    own.close()
    return late


def _live(folder: Path) -> None:
    samples.OPEN_ROWS = 10
    sampler.RANKS_A_SECOND = RANKS
    alone, beside = (sorted(asyncio.run(_lag(folder, sampled=sampled))) for sampled in (False, True))
    extra = 1e3 * (beside[int(0.999 * len(beside))] - alone[int(0.999 * len(alone))])
    middle = 1e3 * (statistics.median(beside) - statistics.median(alone))
    Row(
        "samples-lag",
        f"the same: p99.9 of the event loop's lag ({LIVE_S:.0f} s, segments closed and merged), against no samples",
        "<= 10 ms more",
        extra,
        10.0,
        unit="ms",
        note=f"median {middle:+.2f} ms; at most {1e3 * beside[-1]:.0f} ms, else {1e3 * alone[-1]:.0f} ms",
    ).emit()


def main() -> None:
    """Three rows of the table."""
    folder = Path(tempfile.mkdtemp(prefix="dljob-samples-"))
    try:
        _day(folder)
        _live(folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
