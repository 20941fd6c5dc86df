"""Consistent cuts: how long a queue of 10,000 items takes, and how long a trainer stands still for a cut."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, cluster, folder, runs
from bench_jobs import manifest, role, submit

from dljob.calls.backlog import QueueCaller
from dljob.runtime.queues.store import QueueStore

ITEMS, BYTES = 10_000, 1000
STEP_S = 0.5


def queue_cut(path: Path) -> tuple[float, float]:
    """Seconds of a whole cut of one queue, and those in which it serves nobody."""
    store = QueueStore(path / "queue", (ITEMS, 1 << 30, 0))
    who = QueueCaller("rollout/0", 1, "a")
    store.register(who)
    for number in range(1, ITEMS + 1):
        store.put(who, number, os.urandom(BYTES))
    begin = time.perf_counter()
    store.begin_cut(1, {"trainer/0": 1})
    found = store.seal_cut(1, "samples")
    busy = time.perf_counter() - begin
    assert found is not None
    items, size, _ = found.write(path / "samples.queue")
    took = time.perf_counter() - begin
    assert (items, size) == (ITEMS, ITEMS * BYTES)
    store.close()
    return took, busy


def main() -> None:
    """Two rows."""
    took, busy = list[float](), list[float]()
    for _ in range(runs(7)):
        with tempfile.TemporaryDirectory() as made:
            whole, alone = queue_cut(Path(made))
            took.append(whole)
            busy.append(alone)
    load = f"load {os.getloadavg()[0]:.0f}"
    Row(
        "cut-queue",
        "cut of a queue of 10,000 items of 1 kB, file and fsync included",
        "<= 0.3 s",
        median(took),
        0.3,
        samples={"cut": took, "without an answer to ranks": busy},
        note=load,
    ).emit()
    with cluster(2, 2) as _, folder() as out:
        roles = [role("trainer", "cuts_app.Trainer", 1), role("rollout", "cuts_app.Rollout", 2, driver=False)]
        document = manifest("cuts", out, roles)
        document["spec"]["config"] |= {"steps": 5 * runs(7), "step_s": STEP_S}
        status = submit(document).wait(900)
        assert status["phase"] == "Succeeded", status
        found = json.loads((out / "cuts.json").read_text())
    stall = median(found["cut"]) - median(found["plain"])
    Row(
        "cut-stall",
        "a trainer's save in a cut, longer than its other saves; steps of 0.5 s",
        "<= max(5 % of a step, 50 ms)",
        stall,
        max(0.05 * STEP_S, 0.05),
        samples=found,
        note=load,
    ).emit()


if __name__ == "__main__":
    main()
