"""A server is killed: from PrimeMaster's word of it until each of 100 clients knows that it gets no requests."""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime
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
    # PrimeMaster's own times of the deaths: how soon Ray tells them is another figure (deaths.py).
    told = sorted(datetime.fromisoformat(fault["detectedAt"]).timestamp() for fault in status["recentFaults"])
    pairs = [(seen, max((at for at in told if killed <= at <= seen), default=None)) for killed, seen in found]
    seconds = [seen - at for seen, at in pairs if at is not None]
    since_kill = median(seen - killed for killed, seen in found)
    Row(
        "endpoints-seen",
        f"a server's death, from PrimeMaster's word of it until each of {CLIENTS} clients has it out of its endpoints",
        "<= 0.2 s",
        median(seconds),
        LIMIT_S,
        samples={"seen": seconds},
        note=f"{since_kill:.2f} s after SIGKILL; load {os.getloadavg()[0]:.0f}",
    ).emit()


if __name__ == "__main__":
    main()
