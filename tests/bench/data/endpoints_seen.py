"""A server is killed: the time until each of 100 clients knows that it gets no requests any more."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, cluster, folder, runs
from bench_jobs import manifest, role, submit

CLIENTS, LIMIT_S = 100, 0.2


def main() -> None:
    """One row."""
    with cluster(2, 1) as _, folder() as out:
        roles = [
            role("clients", "endpoints_app.Clients", 1, dependsOn=[{"role": "server"}]),
            role("server", "endpoints_app.Server", 1, driver=False, ports=[{"name": "http"}]),
        ]
        document = manifest("endpoints", out, roles)
        document["spec"]["config"] |= {"rounds": runs(7), "clients": CLIENTS}
        status = submit(document).wait(900)
        assert status["phase"] == "Succeeded", status
        found = json.loads((out / "endpoints.json").read_text())
    Row(
        "endpoints-seen",
        f"SIGKILL of a server until each of {CLIENTS} clients has it out of its endpoints",
        "<= 0.2 s",
        median(found),
        LIMIT_S,
        samples={"seen": found},
        note=f"load {os.getloadavg()[0]:.0f}",
    ).emit()


if __name__ == "__main__":
    main()
