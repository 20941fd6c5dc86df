"""Seconds without an acting operator after the acting one is killed, or ended by SIGTERM: two replicas, as installed.

A DLJob is made at the moment of the signal; the other replica acts when that job's RayCluster is there. The moment lies
anywhere between two renewals of the Lease. Who was killed is started again, and stands by before the next round.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from pathlib import Path

from kube_bench import Cluster, Made, create, plane
from operator_kit import Operator

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, folder, say

from dljob.kube.api import Kube
from dljob.reconcile.leadership.lease import RETRY

ROUNDS = int(os.environ.get("BENCH_RUNS", "7"))


class Pair:
    """Two replicas."""

    def __init__(self, cluster: Cluster, home: Path) -> None:
        flags = ["--leader-elect=true", "--leader-elect-resource-namespace=default"]
        self.replicas = [Operator(cluster, home / name, flags) for name in ("a", "b")]

    async def start(self) -> None:
        for replica in self.replicas:
            await asyncio.to_thread(replica.start)
        await self.leader()

    async def leader(self) -> Operator:
        """Who acts, as soon as somebody does."""
        while True:
            for replica in self.replicas:
                if (await asyncio.to_thread(replica.health)).get("role") == "leader":
                    return replica
            await asyncio.sleep(0.1)

    def stop(self) -> None:
        for replica in self.replicas:
            replica.stop()


async def main() -> None:
    """A row for each way to go."""
    taken: dict[signal.Signals, list[float]] = {signal.SIGKILL: [], signal.SIGTERM: []}
    with plane() as cluster, folder() as home:
        pair = Pair(cluster, Path(home))
        async with await Kube.connect(kubeconfig=str(cluster.kubeconfig)) as kube:
            made = Made(kube)
            try:
                await pair.start()
                for number in range(ROUNDS):
                    for how, seconds in taken.items():
                        leader = await pair.leader()
                        await asyncio.sleep(random.uniform(0.0, RETRY))  # noqa: S311 - anywhere between two renewals
                        assert leader.process is not None
                        leader.process.send_signal(how)
                        began = time.perf_counter()
                        name = f"{how.name.lower()}-{number}"
                        await create(kube, name)
                        seconds.append(await made.wait(name) - began)
                        say(f"  {how.name}: {seconds[-1]:.2f} s")
                        await asyncio.to_thread(leader.process.wait)
                        await asyncio.to_thread(leader.start)
            finally:
                pair.stop()
                await made.close()
    rows = (
        (signal.SIGKILL, "kube-failover", "the operator that acts is killed -> the other acts (slowest)", 10.0),
        (signal.SIGTERM, "kube-handover", "the operator that acts is ended in order -> the other acts (slowest)", 2.0),
    )
    for how, name, what, limit in rows:
        seconds = taken[how]
        Row(name, what, f"<= {limit:g} s", max(seconds), limit, samples={"seconds": seconds}).emit()


if __name__ == "__main__":
    asyncio.run(main())
