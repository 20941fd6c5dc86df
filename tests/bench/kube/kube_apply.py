"""From a DLJob applied to its RayCluster: one at a time, and many at once."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from kube_bench import Made, create, create_all, operating, percentile, plane, process_of, quiet

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, folder, say

ONE = int(os.environ.get("BENCH_ONE", "200"))
MANY = int(os.environ.get("BENCH_MANY", "1000"))


async def main() -> None:
    """Rows for both."""
    with plane() as cluster, folder() as home:
        async with operating(cluster, Path(home)) as (kube, operator):
            made = Made(kube)
            say(f"one at a time, {ONE} times")
            seconds: list[float] = []
            for number in range(ONE + 3):  # the first ones warm both sides up
                name = f"one-{number}"
                sent = await create(kube, name)
                seconds.append(await made.wait(name) - sent)
            seconds = seconds[3:]
            what = f"`kubectl apply` of a DLJob -> its RayCluster exists, one at a time, n = {ONE}"
            spread = {"seconds": seconds}
            p50, p99 = percentile(seconds, 0.5), percentile(seconds, 0.99)
            Row("kube-apply-p50", f"{what}: median", "<= 150 ms", p50, 0.150, samples=spread).emit()
            Row("kube-apply-p99", f"{what}: p99", "<= 500 ms", p99, 0.500).emit()

            await quiet(operator)
            say(f"{MANY} at once")
            before = process_of(operator).cpu_times()
            names = [f"many-{number}" for number in range(MANY)]
            began = await create_all(kube, names)
            created = time.perf_counter() - began
            last = max([await made.wait(name) for name in names]) - began
            await quiet(operator)
            after = process_of(operator).cpu_times()
            cpu = after.user + after.system - before.user - before.system
            facts = {"all RayClusters are there": len(made.at) >= MANY}
            note = f"created in {created:.1f} s; the operator used {cpu:.1f} s of CPU"
            what = f"{MANY} DLJobs at once -> all RayClusters exist"
            Row("kube-apply-many", what, "<= 30 s", last, 30.0, facts=facts, note=note).emit()
            await made.close()


if __name__ == "__main__":
    asyncio.run(main())
