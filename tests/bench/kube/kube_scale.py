"""A thousand DLJobs on KWOK's nodes, with the real KubeRay: created, run, a tenth of their pods killed, ended, at rest.

KWOK says that pods run, and nothing runs in them: one stub answers for all heads, and says of each job that it runs
as soon as it is submitted. It listens on every address, and the pods' are local in a network of this script's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import HERE, Row, folder, say
from kube_bench import create_all, operating, plane, process_of, quiet

sys.path.insert(0, str(HERE.parent))
from cluster import kwok
from operator_kit import Head, Operator

from dljob.kube.api import DLJOBS, PODS, RAYCLUSTERS, Kube, NotThereError
from tiers import isolated

JOBS = int(os.environ.get("BENCH_MANY", "1000"))
KILLED = 0.10
LIMIT_S = float(os.environ.get("BENCH_LIMIT_S", "1800"))
AT_REST_S = 30.0
PODS_NET = "10.200.0.0/14"
"""KWOK's pods get their addresses from it (tests/kube/cluster/kwok.py)."""
ROLE = {"name": "worker", "desired": 2, "ready": 2, "running": 2, "succeeded": 0, "failed": 0, "restarts": 0}
ENDED = {**ROLE, "ready": 0, "running": 0, "succeeded": 2}


class Fleet:
    """All PrimeMasters: each job runs as soon as it is submitted."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self.uids: set[str] = set()
        self.posted: Counter[str] = Counter()
        head.stub.token = ""
        head.stub.submitted = self._runs

    def _runs(self, body: dict[str, Any]) -> None:
        uid = str(body["metadata"]["dljob.io/uid"]).replace("-", "")
        self.uids.add(uid)
        self.posted[body["submission_id"]] += 1
        held = {"units": 1, "ready": 1, "pending": 0, "notReady": []}
        self._head.stub.say(uid, phase="Running", epoch=1, roles=[ROLE], placement=held)

    def end(self) -> None:
        """Every job has succeeded."""

        def said() -> None:
            for uid in self.uids:
                self._head.stub.say(uid, phase="Succeeded", reason="Completed", message="all ended well", roles=[ENDED])

        self._head.do(said)


def phases(operator: Operator) -> Counter[str]:
    """DLJobs by phase, as the operator's metrics tell."""
    found: Counter[str] = Counter()
    for name, value in operator.metrics().items():
        if name.startswith("dljob_jobs{"):
            found[name.partition('phase="')[2].partition('"')[0]] += int(value)
    return found


async def reached(operator: Operator, phase: str) -> float:
    """Wait until all jobs are in a phase; the seconds that took."""
    began = time.monotonic()
    while (now := phases(operator))[phase] < JOBS:
        if time.monotonic() - began > LIMIT_S:
            raise TimeoutError(f"not all are {phase} within {LIMIT_S:g} s: {dict(now)}")
        say(f"   {time.monotonic() - began:.0f} s: {dict(now)}")
        await asyncio.sleep(5.0)
    return time.monotonic() - began


async def kill(kube: Kube) -> tuple[int, int]:
    """Delete every tenth pod; how many, and how many heads among them."""
    pods = sorted(await kube.list(PODS, "default", labels="ray.io/cluster"), key=lambda pod: pod["metadata"]["uid"])
    chosen = pods[: round(len(pods) * KILLED)]
    for pod in chosen:
        with contextlib.suppress(NotThereError):  # it went with its head meanwhile
            await kube.delete(PODS, pod["metadata"]["name"], "default", uid=pod["metadata"]["uid"])
    return len(chosen), sum(pod["metadata"]["labels"]["ray.io/node-type"] == "head" for pod in chosen)


async def healed(kube: Kube, operator: Operator, heads: int) -> float:
    """Wait until those whose heads were killed are in their second attempt, and all run; the seconds that took."""
    began = time.monotonic()
    while True:
        jobs = await kube.list(DLJOBS, "default")
        second = sum(job["status"]["attempt"] == 2 for job in jobs)
        if second == heads and phases(operator)["Running"] == JOBS:
            return time.monotonic() - began
        if time.monotonic() - began > LIMIT_S:
            raise TimeoutError(f"{second} of {heads} in their second attempt; {dict(phases(operator))}")
        say(f"   {second} of {heads} in their second attempt; {dict(phases(operator))}")
        await asyncio.sleep(5.0)


def writes(operator: Operator) -> float:
    """Calls that changed something, but for the Lease: the operator's metrics do not tell those apart from others."""
    return operator.writes() - operator.metrics().get("dljob_operator_lease_renewals_total", 0.0)


async def main() -> None:
    """Rows for the times, memory, and rest."""
    head = Head("0.0.0.0")  # noqa: S104 - a network of its own
    fleet = Fleet(head)
    with plane(operator=True) as cluster, folder() as home:
        assert cluster.run is not None
        await asyncio.to_thread(kwok.add, cluster, cluster.run, max(2, JOBS // 20))
        async with operating(cluster, Path(home)) as (kube, operator):
            say(f"{JOBS} DLJobs")
            began = time.monotonic()
            await create_all(kube, [f"job-{number}" for number in range(JOBS)])
            await reached(operator, "Running")
            ran = time.monotonic() - began
            killed, heads = await kill(kube)
            say(f"{killed} pods killed, {heads} of them heads")
            mended = await healed(kube, operator, heads)
            await quiet(operator, 5.0, LIMIT_S)
            before = writes(operator)
            await asyncio.sleep(AT_REST_S)
            running_writes = writes(operator) - before
            fleet.end()
            ended = await reached(operator, "Succeeded")
            await quiet(operator, 5.0, LIMIT_S)
            before = writes(operator)
            await asyncio.sleep(AT_REST_S)
            new = writes(operator) - before
            memory = peak(process_of(operator).pid)
            jobs = await kube.list(DLJOBS, "default")
            facts = {
                "all succeeded": all(job["status"]["phase"] == "Succeeded" for job in jobs),
                "one submission an attempt": set(fleet.posted.values()) == {1},
                "as many attempts as heads killed": sum(job["status"]["attempt"] - 1 for job in jobs) == heads,
                "no RayCluster is left": not await kube.list(RAYCLUSTERS, "default"),
            }
            what = f"{JOBS} DLJobs, {killed} of their pods killed ({heads} heads)"
            note = f"all run after {ran:.0f} s, again {mended:.0f} s after the kill, ended after {ended:.0f} s"
            Row("kube-scale-settle", f"{what}: all run again", "all", mended, LIMIT_S, facts=facts, note=note).emit()
            Row("kube-scale-memory", f"{what}: the operator's peak", "<= 300 MB", memory, 300.0, "MB").emit()
            still = {"none while they ran either": running_writes == 0}
            quiet_ = f"{what}: writes in {AT_REST_S:g} s once settled, the Lease's apart"
            Row("kube-scale-writes", quiet_, "0", new, 0.0, "calls", facts=still).emit()
    head.close()


def peak(pid: int) -> float:
    """VmHWM of a process, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


if __name__ == "__main__":
    if "DLJOB_BENCH_INSIDE" not in os.environ:
        prefix = isolated() or sys.exit("kube_scale.py: no network namespace can be made here (unshare -n)")
        again = [*prefix, sys.executable, "-W", "ignore", __file__]
        sys.exit(subprocess.run(again, env={**os.environ, "DLJOB_BENCH_INSIDE": "1"}, check=False).returncode)
    subprocess.run(["ip", "route", "add", "local", PODS_NET, "dev", "lo"], check=True)
    asyncio.run(main())
