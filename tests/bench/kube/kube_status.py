"""From a change of PrimeMaster's state to the DLJob's status."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from kube_bench import HEAD, Made, create, head_ready, operating, percentile, plane, running
from operator_kit import Head

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, folder

from dljob.kube.api import DLJOBS

COUNT = int(os.environ.get("BENCH_ONE", "100"))


async def main() -> None:
    """One row."""
    head = Head(HEAD)
    head.stub.token = ""
    with plane() as cluster, folder() as home:
        async with operating(cluster, Path(home)) as (kube, _):
            made = Made(kube)
            await create(kube, "one")
            await made.wait("one")
            uid = (await kube.get(DLJOBS, "one", "default"))["metadata"]["uid"]
            heard = kube.watch(DLJOBS, "default")

            async def until(phase: str) -> float:
                async for _, item in heard:
                    if item.get("status", {}).get("phase") == phase:
                        return time.perf_counter()
                raise AssertionError("a watch has no end")

            running(head, uid)
            await head_ready(kube, made.cluster["one"])
            await until("Running")
            seconds: list[float] = []
            for number in range(COUNT):
                phase = ("Recovering", "Running")[number % 2]
                await asyncio.sleep(0.05)
                said = time.perf_counter()
                await asyncio.to_thread(running, head, uid, phase=phase)
                seconds.append(await until(phase) - said)
            what = f"PrimeMaster's state changes -> `.status`, n = {COUNT}: p99"
            Row("kube-status", what, "<= 500 ms", percentile(seconds, 0.99), 0.5, samples={"seconds": seconds}).emit()
            await heard.aclose()
            await made.close()
    head.close()


if __name__ == "__main__":
    asyncio.run(main())
