"""`python observability/generate.py [--check]`: write what is made from the catalogue, dashboards and rules.

With --check: only say what is out of date, and exit 1. Paths are those of the repository that holds this file.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fleet import fleet
from job import job
from operator_page import operator
from reference import alerts_page, metrics_page
from rules import rule_file

ROOT = Path(__file__).resolve().parent.parent
CHART = "charts/dljob/observability"


def generated() -> dict[str, str]:
    """Path in the repository -> content."""
    return {
        f"{CHART}/dashboards/fleet.json": fleet(),
        f"{CHART}/dashboards/job.json": job(),
        f"{CHART}/dashboards/operator.json": operator(),
        f"{CHART}/rules/dljob.yaml": rule_file(),
        "docs/reference/metrics.md": metrics_page(),
        "docs/reference/alerts.md": alerts_page(),
    }


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Write the files below `root`, or with --check only compare them. 0: fine; 1: out of date; 2: wrong arguments."""
    if list(arguments) not in ([], ["--check"]):
        sys.stderr.write(f"unknown arguments {' '.join(arguments)}: only --check is known\n")
        return 2
    stale = [path for path, text in generated().items() if _read(root / path) != text]
    for path in stale:
        if arguments:
            sys.stderr.write(f"{path} is out of date: run python observability/generate.py\n")
            continue
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(generated()[path], encoding="utf-8")
        sys.stderr.write(f"wrote {path}\n")
    return 1 if stale and arguments else 0


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
