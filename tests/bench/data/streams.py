"""A stream whose engine is killed: the time until another engine, ready and idle, gives the next item."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, cluster, folder, runs
from bench_jobs import manifest, role, submit

SLACK_S = 0.2


def main() -> None:
    """One row."""
    with cluster(2, 2) as _, folder() as out:
        roles = [
            role("reader", "streams_app.Reader", 1, dependsOn=[{"role": "engine"}]),
            role("engine", "streams_app.StreamEngine", 2, driver=False),
        ]
        document = manifest("streams", out, roles)
        document["spec"]["config"]["rounds"] = runs(7)
        status = submit(document).wait(900)
        assert status["phase"] == "Succeeded", status
        found = json.loads((out / "streams.json").read_text())
    first = median(found["first"])
    Row(
        "stream-killed",
        "engine killed in mid-stream until the next engine's first item",
        "<= 0.2 s + 1.5 x its time to first item",
        median(found["killed"]),
        SLACK_S + 1.5 * first,
        samples=found,
        note=f"first item {first:.3f} s; load {os.getloadavg()[0]:.0f}",
    ).emit()


if __name__ == "__main__":
    main()
