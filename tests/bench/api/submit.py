"""From submit() to the last of n user entries, against bare actors made in one placement group."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
import bare
from bench_common import Entries, Row, cluster, folder, in_turn, runs, say
from bench_jobs import end, manifest, role, stamp, submit


def job(n: int) -> float:
    """Seconds from submit() to the last entry of a role of n ranks."""
    with folder() as out:
        entries = Entries(out)
        begin = stamp()
        handle = submit(manifest(f"submit-{n}", out, [role("worker", "bench_app.stay", n)]))
        last = entries.await_count(n)[-1]["t"]
        end(handle)
        return last - begin


def main() -> None:
    """One row for each n."""
    with cluster(4, 4):
        for n in (4, 16):
            say(f"submit -> {n} entries: bare, dljob")
            theirs, ours = in_turn(lambda n=n: bare.many(n), lambda n=n: job(n), runs())
            Row(
                f"submit-{n}",
                f"`submit()` on a running Ray -> last of {n} user entries, no torch",
                "<= 1.3 x bare actors + 0.3 s",
                median(ours),
                1.3 * median(theirs) + 0.3,
                samples={"dljob": ours, "bare": theirs},
                note=f"{median(ours) / median(theirs):.2f} x bare",
            ).emit()


if __name__ == "__main__":
    main()
