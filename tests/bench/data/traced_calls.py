"""What tracing costs a call: not traced, traced at the usual rate, and each call recorded, in turn by one process."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, cluster, folder, runs
from bench_jobs import manifest, role, submit

SHARE = 1.02
"""At most 2 % of a call's time."""


def main() -> None:
    """Two rows: calls back to back, of which a sample is recorded, and calls of which each one is."""
    with cluster(2, 1) as _, folder() as out:
        roles = [
            role("caller", "traced_calls_app.Caller", 1, dependsOn=[{"role": "callee"}]),
            role("callee", "traced_calls_app.Callee", 1, driver=False),
        ]
        document = manifest("traced", out, roles)
        document["spec"]["config"]["blocks"] = runs(150)
        document["spec"]["env"] = [{"name": "DLJOB_TRACE_CALLS", "value": "1"}]
        status = submit(document).wait(600)
        assert status["phase"] == "Succeeded", status
        found: dict[str, list[float]] = json.loads((out / "traced.json").read_text())
    off = median(found["off"])
    load = f"{os.getloadavg()[0]:.0f}"
    for name, way, what in (
        ("traced", "on", "a call without work with --trace-calls, back to back"),
        ("traced-all", "all", "the same where each call is recorded, as up to 50 a second are"),
    ):
        # By pairs of neighbouring blocks: the machine's load changes from second to second.
        share = median(on / off for on, off in zip(found[way], found["off"], strict=True))
        more = 1e6 * median(on - off for on, off in zip(found[way], found["off"], strict=True))
        note = f"{more:+.1f} us of {1e6 * off:.0f} us; load {load}"
        Row(name, what, "<= 1.02 x not traced", share, SHARE, unit="x", note=note).emit()


if __name__ == "__main__":
    main()
