"""A fleet of 2, 4 and 2 engines: the time until the added ones answer, and the gaps in the streams of the others."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, cluster, folder, runs
from bench_jobs import manifest, role, submit

READY_S, GAP_S = 3.0, 0.1
QUIET_S = 8.0


def main() -> None:
    """Two rows."""
    with cluster(2, 2) as _, folder() as out:
        bounds = {"driver": False, "minReplicas": 2, "maxReplicas": 4}
        roles = [
            role("scaler", "fleet_app.Scaler", 1, dependsOn=[{"role": "engine"}]),
            role("engine", "fleet_app.FleetEngine", 2, **bounds),
        ]
        document = manifest("fleet", out, roles)
        document["spec"]["config"] |= {"rounds": runs(3), "quiet_s": QUIET_S}
        status = submit(document).wait(900)
        assert status["phase"] == "Succeeded", status
        found = json.loads((out / "fleet.json").read_text())
    load = f"load {os.getloadavg()[0]:.0f}"
    Row(
        "fleet-added",
        "scale 2 -> 4 engines, programs imported: order until both added ones answer",
        "<= 3 s",
        median(found["added"]),
        READY_S,
        samples={name: found[name] for name in ("added", "gone")},
        note=load,
    ).emit()
    Row(
        "fleet-gap",
        "scale 2 -> 4 -> 2 engines that send a token each 20 ms: largest gap beyond that of a run without scaling",
        "<= 0.1 s",
        max(0.0, median(found["scaled"]) - median(found["quiet"])),
        GAP_S,
        samples={name: found[name] for name in ("quiet", "scaled")},
        note=load,
    ).emit()


if __name__ == "__main__":
    main()
