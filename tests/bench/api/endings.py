"""After a job's end, whichever: until Ray holds no actor, no placement group and no CPU of it."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Entries, Row, cluster, folder, free_cpus, live_actors, live_groups, runs, say, until
from bench_jobs import manifest, role, submit


def empty() -> bool:
    """Whether nothing is left."""
    return not live_actors() and not live_groups() and free_cpus()


def ending(name: str, entrypoint: str, order: Callable[[Any], None] | None) -> float:
    """Seconds from the last user code, or from the order to stop, until nothing is left."""
    with folder() as out:
        entries = Entries(out)
        once = {"level": "Never"} if name == "ending-failure" else {}
        roles = [role("driver", entrypoint, 4, restartPolicy=once), role("server", "bench_app.stay", 4, driver=False)]
        handle = submit(manifest(name, out, roles))
        begin = entries.await_count(8)[-1]["t"]
        if order is not None:
            begin = time.time()
            order(handle)
        until(empty, 60, 0.01)
        took = time.time() - begin
        with contextlib.suppress(Exception):
            handle.wait()
        time.sleep(1.0)
        return took


def main() -> None:
    """One row over three kinds of ending."""
    kinds: dict[str, tuple[str, Callable[[Any], None] | None]] = {
        "success": ("bench_app.leave_last", None),
        "failure": ("bench_app.fail_last", None),
        "stop": ("bench_app.stay", lambda handle: handle.stop()),
    }
    samples: dict[str, list[float]] = {name: [] for name in kinds}
    with cluster(4, 4):
        for number in range(runs()):
            for name, (entrypoint, order) in kinds.items():
                samples[name].append(ending(f"ending-{name}", entrypoint, order))
            say(f"  run {number + 1}: " + ", ".join(f"{name} {took[-1]:.2f} s" for name, took in samples.items()))
    worst = max(samples, key=lambda name: median(samples[name]))
    Row(
        "endings",
        "after any ending: success, failure, stop, with 8 ranks",
        "0 actors, 0 placement groups, all CPUs free in <= 2 s",
        median(samples[worst]),
        2.0,
        samples=samples,
        note=f"the slowest is {worst}",
    ).emit()


if __name__ == "__main__":
    main()
