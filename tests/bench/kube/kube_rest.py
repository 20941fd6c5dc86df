"""What the operator costs while nothing happens: many DLJobs at rest, some of them polled."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from kube_bench import (
    HEAD,
    Made,
    create_all,
    head_ready,
    operating,
    plane,
    process_of,
    quiet,
    running,
)
from operator_kit import Head

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, folder, say

from dljob.kube.api import DLJOBS

JOBS = int(os.environ.get("BENCH_MANY", "1000"))
POLLED = int(os.environ.get("BENCH_POLLED", str(JOBS // 5)))
SECONDS = 30.0


async def main() -> None:
    """Rows for memory, CPU and writes."""
    head = Head(HEAD)
    head.stub.token = ""
    with plane() as cluster, folder() as home:
        async with operating(cluster, Path(home)) as (kube, operator):
            made = Made(kube)
            names = [f"job-{number}" for number in range(JOBS)]
            say(f"{JOBS} DLJobs")
            await create_all(kube, names)
            for name in names:
                await made.wait(name)
            say(f"{POLLED} of them run")
            uids = {one["metadata"]["name"]: one["metadata"]["uid"] for one in await kube.list(DLJOBS, "default")}
            for name in names[:POLLED]:
                running(head, uids[name])
                await head_ready(kube, made.cluster[name])
            await quiet(operator, 5.0)
            await asyncio.sleep(30.0)  # every poll has come round once
            process = process_of(operator)
            polled, writes, asked = operator.health()["polled"], operator.writes(), len(head.stub.asked)
            before, began = process.cpu_times(), time.monotonic()
            await asyncio.sleep(SECONDS)
            after, took = process.cpu_times(), time.monotonic() - began
            cpu = (after.user + after.system - before.user - before.system) / took
            memory = process.memory_info().rss / 1e6
            new = operator.writes() - writes
            what = f"operator with {JOBS} DLJobs at rest, {POLLED} of them polled"
            facts = {"polled": polled == POLLED}
            note = f"{(len(head.stub.asked) - asked) / took:.1f} requests/s to heads"
            Row("kube-rest-memory", f"{what}: memory", "<= 250 MB", memory, 250.0, "MB", facts=facts).emit()
            Row("kube-rest-cpu", f"{what}: of a core", "<= 5 %", cpu * 100, 5.0, "%", note=note).emit()
            Row("kube-rest-writes", f"{what}: writes in {SECONDS:g} s", "0", new, 0.0, "calls").emit()
            await made.close()
    head.close()


if __name__ == "__main__":
    asyncio.run(main())
