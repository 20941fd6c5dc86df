"""A stream whose engine is killed: the time until another engine gives the next item, and what is made again."""

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
AHEAD = 16
"""Tokens that an engine may be ahead of its caller: those under way."""


def main() -> None:
    """Three rows."""
    with cluster(2, 2) as _, folder() as out:
        roles = [
            role("reader", "streams_app.Reader", 1, dependsOn=[{"role": "engine"}]),
            role("engine", "streams_app.StreamEngine", 2, driver=False, minReplicas=1, maxReplicas=2),
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
        samples={name: found[name] for name in ("killed", "first")},
        note=f"first item {first:.3f} s; load {os.getloadavg()[0]:.0f}",
    ).emit()
    for name, what, target, samples, limit in (
        ("stream-again", "engine killed in mid-stream: tokens made again", "<= 16 a stream", found["again"], AHEAD),
        ("stream-drained", "engine given up with calls under way: tokens made again", "0", found["drained"], 0),
    ):
        Row(name, what, target, max(samples), limit, unit="tokens", samples={name: samples}).emit()


if __name__ == "__main__":
    main()
