"""A call of one rank, and of all 16 of a role, against calls of plain Ray actors from the same process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, cluster, folder, runs
from bench_jobs import manifest, role, submit

RANKS = 16
SLACK_S = 150e-6


def main() -> None:
    """Two rows: a round trip, and `all` over 16 ranks."""
    with cluster(2, 2) as _, folder() as out:
        roles = [
            role("caller", "calls_app.Caller", 1, dependsOn=[{"role": "callee"}]),
            role("callee", "calls_app.Callee", RANKS, cpu="100m", driver=False),
        ]
        document = manifest("calls", out, roles)
        document["spec"]["config"]["blocks"] = runs(20)
        status = submit(document).wait(600)
        assert status["phase"] == "Succeeded", status
        found = json.loads((out / "calls.json").read_text())
    one, every = found["one"], found["all"]
    plain = median(one["plain"])
    Row(
        "call",
        "round trip of a call between roles",
        "<= 1.2 x a plain Ray actor call + 150 us",
        median(one["dljob"]),
        1.2 * plain + SLACK_S,
        samples=one,
        note=f"{median(one['dljob']) / plain:.2f} x plain",
    ).emit()
    plain = median(every["plain"])
    Row(
        "call-all",
        f"a call of all {RANKS} ranks of a role",
        f"<= 1.2 x {RANKS} plain Ray actor calls",
        median(every["dljob"]),
        1.2 * plain,
        samples=every,
        note=f"{median(every['dljob']) / plain:.2f} x plain",
    ).emit()


if __name__ == "__main__":
    main()
