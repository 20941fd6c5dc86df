"""One role group of 16 `module` ranks that import torch, against 16 bare actors that import torch."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
import bare
from bench_common import Entries, Row, cluster, folder, in_turn, runs
from bench_jobs import end, manifest, role, stamp, submit

RANKS = 16


def job() -> float:
    """Seconds from submit() to the last rank that has torch."""
    with folder() as out:
        entries = Entries(out)
        begin = stamp()
        script = role("script", "bench_script.py", RANKS, type="Elastic", replicasPerGroup=RANKS, args=[str(out)])
        handle = submit(manifest("fork", out, [script]))
        last = entries.await_count(RANKS)[-1]["t"]
        end(handle)
        return last - begin


def main() -> None:
    """One row."""
    with cluster(4, 4):
        theirs, ours = in_turn(lambda: bare.many(RANKS, torch=True), job, runs())
    Row(
        "fork-16",
        "the same with one role group of 16 `module` ranks that import torch",
        "<= 0.5 x 16 bare actors that import torch",
        median(ours),
        0.5 * median(theirs),
        samples={"dljob": ours, "bare": theirs},
        note=f"{median(ours) / median(theirs):.2f} x bare",
    ).emit()


if __name__ == "__main__":
    main()
