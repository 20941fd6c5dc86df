"""SIGKILL of a raylet under workers: until each worker's process is gone."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Entries, Row, alive, cluster, folder, runs, say, until
from bench_jobs import manifest, role, submit


def main() -> None:
    """One row; a new raylet for each run, since a killed one does not come back."""
    took: list[float] = []
    with cluster(4) as made:
        for number in range(runs()):
            with folder() as out:
                entries = Entries(out)
                handle = submit(manifest("raylet", out, [role("worker", "bench_app.stay", 4)]))
                pids = [entry["pid"] for entry in entries.await_count(4)]
                raylet = made.raylets[-1].all_processes["raylet"][0].process.pid
                killed = time.monotonic()
                os.kill(raylet, signal.SIGKILL)
                until(lambda pids=pids: not any(alive(pid) for pid in pids), 60, 0.002)
                took.append(time.monotonic() - killed)
                say(f"  run {number + 1}: {took[-1]:.3f} s")
                handle.stop()
                handle.wait()
                made.remove_node(made.raylets[-1], allow_graceful=False)
                made.raylets.append(made.add_node(num_cpus=4, object_store_memory=100 << 20))
                time.sleep(1.0)
    Row(
        "raylet",
        "raylet killed under workers",
        "each worker's pid gone in <= 1 s",
        median(took),
        1.0,
        samples={"dljob": took},
    ).emit()


if __name__ == "__main__":
    main()
