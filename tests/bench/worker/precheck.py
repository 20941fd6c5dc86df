"""What checks before a start cost: submission to user code on two nodes with two ranks each, with them and without."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Entries, Row, cluster, folder, in_turn, runs
from bench_jobs import end, manifest, role, stamp, submit

LIMIT_S = 15.0


def main() -> None:
    """One row: the seconds that they add."""
    with cluster(2, 2), folder() as out:

        def start(*, check: bool) -> float:
            entries = Entries(out / f"{time.monotonic_ns()}")
            comm = {"backend": "gloo", "preCheck": check}
            trainer = role("trainer", "bench_app.Trainer", 4, cpu="1", type="Elastic", replicasPerGroup=2, comm=comm)
            begin = stamp()
            handle = submit(manifest("precheck", entries.where, [trainer]))
            found = entries.await_count(4)
            end(handle)
            return max(entry["t"] for entry in found) - begin

        with_them, without = in_turn(lambda: start(check=True), lambda: start(check=False), runs(5))
    added = [a - b for a, b in zip(with_them, without, strict=True)]
    Row(
        "precheck",
        "checks before the start of a 4-rank gloo group on 2 nodes",
        f"adds <= {LIMIT_S:g} s",
        median(added),
        LIMIT_S,
        samples={"with": with_them, "without": without, "added": added},
        note="both nodes are this machine: each of two checkers imports torch beside four ranks and a store",
    ).emit()


if __name__ == "__main__":
    main()
