"""SIGKILL of one trainer of a two-rank torch group, beside rollouts at a fixed rate that must not notice."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Entries, Row, cluster, folder, runs, say
from bench_jobs import end, manifest, processes, role, stamp, submit

RATE = 20.0
"""Questions a second of each of two rollouts."""


def answered(out: Path, begin: float, end: float) -> float:
    """The share of the offered questions that were answered between two times."""
    times = [float(line) for file in out.glob("answers-*.txt") for line in file.read_text().splitlines()]
    return len([at for at in times if begin <= at < end]) / (2 * RATE * (end - begin))


def main() -> None:
    """Two rows: seconds until both trainers are back in a world, who was restarted; and what the rollouts did then."""
    took: list[float] = []
    meanwhile: list[float] = []
    only: list[bool] = []
    with cluster(2, 2, forked=True), folder() as out:
        entries = Entries(out)
        trainer = role("trainer", "bench_app.Trainer", 2, type="Elastic", replicasPerGroup=2, comm={"backend": "gloo"})
        others = [role("echo", "bench_app.Echo", 1, driver=False), role("rollout", "bench_app.Rollout", 2)]
        others[1]["config"] = {"rate": RATE}
        handle = submit(manifest("group", out, [trainer, *others]))
        entries.await_count(5)
        for number in range(runs(9)):
            time.sleep(1.0)
            before = processes()
            killed = stamp()
            os.kill(entries.last_of("trainer", number % 2)["pid"], signal.SIGKILL)
            took.append(max(entries.next_of("trainer", rank, killed)["t"] for rank in (0, 1)) - killed)
            meanwhile.append(answered(out, killed, killed + took[-1]))
            gone = {name.split("/")[0] for name in before.keys() - processes().keys()}
            only.append(gone <= {"trainer"})
            say(f"  run {number + 1}: {took[-1]:.2f} s, restarted: {sorted(gone)}, rollouts: {meanwhile[-1]:.3f}")
        end(handle)
    Row(
        "group",
        "SIGKILL one trainer of a 2-rank group",
        "<= 1 s; only that group restarts",
        median(took),
        1.0,
        samples={"dljob": took},
        facts={"only that group restarted": all(only)},
        note="seconds until both ranks have done an all-reduce again",
    ).emit()
    Row(
        "meanwhile",
        f"trainer down: answers that two rollouts at {RATE:.0f} calls a second get from another role meanwhile",
        ">= 95 % of the offered load",
        median(meanwhile),
        0.95,
        unit="of the offered load",
        at_least=True,
        samples={"dljob": meanwhile},
    ).emit()


if __name__ == "__main__":
    main()
