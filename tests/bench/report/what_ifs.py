"""Three what-ifs: goodput predicted from a job's folder, and of the same job run again under the changed rule.

The first run's own rule calibrates the simulation. One of the rules makes things worse.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, folder, say

from dljob.report.what_if import predict

JOB = Path(__file__).parent / "paced"
RULES = (
    "roles.worker.restartPolicy.level=Process",
    "faultTolerance.spares.processesPerNode=1",
    "faultTolerance.backoff.initialSeconds=30",
)
POINTS = 5.0
"""Most points of goodput between prediction and re-run."""


def ran(home: Path, *words: str) -> Path:
    """The folder of the job, run to its end with its faults."""
    command = [sys.executable, "-m", "dljob.cli", "run", "dljob.yaml", "--faults", "faults.yaml", *words]
    environment = {**os.environ, "DLJOB_HOME": str(home)}
    subprocess.run(command, cwd=JOB, env=environment, check=True, stdout=sys.stderr)
    return next(home.glob("jobs/*"))


def measured(job: Path) -> float:
    """The goodput of an ended job."""
    return json.loads((job / "status.json").read_text())["ledger"]["goodput"]


def main() -> None:
    """Run the job, predict, run it again under each rule."""
    with folder() as where:
        first = ran(where / "first")
        for number, rule in enumerate(RULES):
            found = predict(first, [rule])
            again = measured(ran(where / f"again-{number}", "--set", rule))
            off = 100 * abs(found.goodput - again)
            say(f"{rule}: predicted {found.goodput:.1%}, measured {again:.1%}, own rule {found.unchanged:.1%}")
            Row(
                f"what-if {rule}",
                f"goodput predicted for `{rule}`, and of the job run again",
                f"<= {POINTS:g} points apart",
                off,
                POINTS,
                unit="points",
                facts={"predicted": found.goodput, "measured": again, "record": found.measured},
            ).emit()


if __name__ == "__main__":
    main()
