"""SIGKILL of one rank of a 4-rank gloo group with in-process restart, a spare available: until all have made a step."""

from __future__ import annotations

import os
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Entries, Row, cluster, folder, runs, say, until
from bench_jobs import end, manifest, processes, role, stamp, submit

RANKS = 4


def spare_warm(ranks: set[int]) -> None:
    """Wait until the spare, which is none of the ranks' pids, has imported torch: it uses no processor any more."""
    pid = until(lambda: next((pid for name, pid in processes().items() if "/spare-" in name and pid not in ranks), 0))
    used = -1.0
    while (now := busy(pid)) != used:
        used = now
        time.sleep(1.0)


def busy(pid: int) -> float:
    """Processor seconds of a process, to a tenth."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return round((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), 1)


def parts(lines: list[dict[str, Any]], killed: float, noticed: float) -> dict[str, float]:
    """What each stretch of a recovery took, by the slowest rank."""
    marks = [killed, noticed] + [max(line[key] for line in lines) for key in ("met", "loaded", "t")]
    names = ("detect", "leave and meet", "load", "step")
    return {name: after - before for name, (before, after) in zip(names, pairwise(marks), strict=True)}


def main() -> None:
    """One row."""
    took: list[float] = []
    where: dict[str, list[float]] = {}
    kept: list[bool] = []
    with cluster(8, forked=True), folder() as out:
        entries = Entries(out)
        group = role("t", "group_app.Stays", RANKS, type="Elastic", replicasPerGroup=RANKS, comm={"backend": "gloo"})
        group["restartPolicy"]["level"] = "InProcess"
        handle = submit(manifest("inprocess", out, [group], spares={"processesPerNode": 1}))
        entries.await_count(RANKS)
        for number in range(runs(11)):
            before = [entries.last_of("t", rank) for rank in range(RANKS)]
            spare_warm({line["pid"] for line in before})
            victim = number % RANKS
            killed = stamp()
            os.kill(before[victim]["pid"], signal.SIGKILL)
            after = [entries.next_of("t", rank, killed) for rank in range(RANKS)]
            took.append(max(line["t"] for line in after) - killed)
            changed = [rank for rank in range(RANKS) if before[rank]["pid"] != after[rank]["pid"]]
            kept.append(changed == [victim])
            noticed = [note["time"] for note in handle.connection.notes() if note["reason"] == "Restarting"][-1]
            for name, seconds in parts(after, killed, noticed).items():
                where.setdefault(name, []).append(seconds)
            say(f"  run {number + 1}: {took[-1]:.3f} s; { ({k: round(v[-1], 3) for k, v in where.items()}) }")
        restarts = handle.status()["restarts"]
        end(handle)
    Row(
        "in-process",
        "SIGKILL one rank of a 4-rank gloo group, spare available -> next step of all ranks",
        "<= 0.5 s; survivors keep their processes",
        median(took),
        0.5,
        samples={"dljob": took, **where},
        facts={
            "survivors kept their processes": all(kept),
            "only in process": restarts["inProcess"] == len(took) == sum(restarts.values()),
        },
    ).emit()


if __name__ == "__main__":
    main()
