"""SIGKILL of one trainer of a two-rank torch group, beside a role that must not notice."""

from __future__ import annotations

import os
import signal
import time
from statistics import median

from bench_common import Entries, Row, cluster, folder, runs, say
from bench_jobs import end, manifest, processes, role, stamp, submit


def main() -> None:
    """One row: seconds until both trainers are back in a world, and who was restarted."""
    took: list[float] = []
    only: list[bool] = []
    with cluster(2, 2), folder() as out:
        entries = Entries(out)
        trainer = role("trainer", "bench_app.Trainer", 2, type="Elastic", replicasPerGroup=2, comm={"backend": "gloo"})
        handle = submit(manifest("group", out, [trainer, role("other", "bench_app.stay", 2)]))
        entries.await_count(4)
        for number in range(runs()):
            time.sleep(1.0)
            before = processes()
            killed = stamp()
            os.kill(entries.last_of("trainer", number % 2)["pid"], signal.SIGKILL)
            took.append(max(entries.next_of("trainer", rank, killed)["t"] for rank in (0, 1)) - killed)
            gone = {name.split("/")[0] for name in before.keys() - processes().keys()}
            only.append(gone <= {"trainer"})
            say(f"  run {number + 1}: {took[-1]:.2f} s, restarted: {sorted(gone)}")
        end(handle)
    Row(
        "group",
        "SIGKILL one trainer of a 2-rank group",
        "only that group restarts",
        median(took),
        60,
        samples={"dljob": took},
        facts={"only that group restarted": all(only)},
        note="seconds until both ranks have done an all-reduce again, torch imported anew",
    ).emit()


if __name__ == "__main__":
    main()
