"""The simulator at 52,000 processes of a job on CPU machines, and at 10,000 cards: CPU time and memory of 30 days.

Each job is simulated in a process of its own, whose peak of memory is counted. SIM_DAYS changes the days; a row tells
only what was simulated.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row

DAYS = float(os.environ.get("SIM_DAYS", "30"))
LIMIT_S, LIMIT_BYTES = 600.0, 2_000_000_000
JOBS = {
    "sim-processes": ("50,000 workers and 2,000 ps", ["--workers", "50000", "--ps", "2000"], 1000),
    # At Llama 3's rates 10,000 cards have 47 faults a day.
    "sim-cards": ("10,000 cards", ["--nodes", "1250"], 0),
}
"""Name of a row -> the job, its words, and the faults that a day must have."""


def main() -> None:
    """Simulate both jobs."""
    for name, (job, words, least) in JOBS.items():
        command = [sys.executable, "-m", "dljob.cli", "sim", *words, "--days", f"{DAYS:g}", "-o", "json"]
        # A broken law ends the command with 1, and is told in the row.
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        found = json.loads(done.stdout)
        faults = sum(found["faults"].values()) / DAYS
        Row(
            name,
            f"{job}, {DAYS:g} days, simulated: CPU time",
            "<= 10 minutes, <= 2 GB, no law broken",
            found["seconds"],
            LIMIT_S,
            facts={
                "no law broken": not found["problems"],
                "the job succeeds": found["phase"] == "Succeeded",
                "at most 2 GB": found["maxResidentBytes"] <= LIMIT_BYTES,
                "enough faults": faults >= least,
            },
            note=f"{found['ranks']:,} processes, {faults:.0f} faults a day, {found['events']:,} events, "
            f"{found['maxResidentBytes'] / 1e6:.0f} MB; recovery {found['recoverySeconds']}",
        ).emit()


if __name__ == "__main__":
    main()
