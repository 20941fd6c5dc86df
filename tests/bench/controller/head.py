"""The head is lost as a pod is, with what it knew in RocksDB: calls between ranks, and until PrimeMaster commands."""

from __future__ import annotations

import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, folder, runs, say, until

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "ray" / "kits"))

ROLES = [
    {"name": "caller", "entrypoint": {"class": "head_user.caller"}, "resources": {"cpu": "0.5"}},
    {"name": "callee", "entrypoint": {"class": "head_user.Callee"}, "resources": {"cpu": "0.5"}, "driver": False},
]
AWAY_S = 5.0
"""Without a head: about as long as a pod takes whose image lies there."""


def longest(calls: Path, since: float) -> float:
    """The longest time between two answers from then on."""
    times = [since, *(t for t in map(float, calls.read_text().split()) if t > since)]
    return max(after - before for before, after in pairwise(times))


def lose(ray: Any, job: Any, calls: Path) -> tuple[float, float]:
    """Seconds from the new head's first answer to an order taken, and the longest pause of calls."""
    lost = time.time()
    ray.kill_head()
    time.sleep(AWAY_S)
    ray.start_head()
    there = time.monotonic()
    order = {"id": f"order-{lost}", "kind": "restart", "target": "callee/7"}

    def answers() -> bool:
        return job.ask(ray, "commands", order)[0] == 400  # PrimeMaster was asked: there is no such rank

    def asked() -> bool:
        try:
            return answers()
        except OSError:
            return False

    until(asked, 120.0, 0.05)
    took = time.monotonic() - there
    time.sleep(2.0)
    return took, longest(calls, lost)


def main() -> None:
    """One row."""
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.urandom(16).hex()}
    from gateway_kit import Job
    from head_kit import HeadApart

    commanding: list[float] = []
    pauses: list[float] = []
    ray = HeadApart()
    try:
        with folder() as out:
            kept = {"gcsFaultTolerance": {"backend": "RocksDB", "claimName": "gcs"}}
            job = Job(out, *ROLES, name="head", config={"calls": str(out / "calls")}, **kept)
            ray.submit(job, attempt=1)
            before = job.running(ray, 150)
            until((out / "calls").exists, 60.0)
            for number in range(runs(3)):
                took, pause = lose(ray, job, out / "calls")
                commanding.append(took)
                pauses.append(pause)
                say(f"  run {number + 1}: commanding {took:.2f} s after the head answers, longest pause {pause:.2f} s")
            after = job.running(ray, 60)
            same = [row["pid"] for row in before["ranks"]] == [row["pid"] for row in after["ranks"]]
    finally:
        ray.close()
    Row(
        "head",
        f"head SIGKILLed whole, another one {AWAY_S:g} s later, RocksDB",
        "0 workers restarted, longest pause of calls between ranks <= 1 s",
        median(pauses),
        1.0,
        samples={"longest pause of calls": pauses, "new head answers -> PrimeMaster commands": commanding},
        facts={"0 workers restarted": same and after["epoch"] == 1},
        note=f"PrimeMaster commands {median(commanding):.1f} s after Ray's Job API answers again",
    ).emit()


if __name__ == "__main__":
    main()
