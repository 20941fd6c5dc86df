"""Prompts trained twice or never, over 200 seeded schedules of faults in each shape of a job with cuts, simulated.

The count is taken from the log in the trainer's restored state (`dljob sim --cuts` shows the same).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, say

from dljob.testing.simulate.cuts import CutStory, many, problems

SEEDS = 200


def main() -> None:
    """Run the schedules, and some with planted bugs, which must be found."""
    rows = many(range(SEEDS))
    for row in rows:
        say(" ".join(f"{name} {value}" for name, value in row.items()))
    found = {bug: any(problems(CutStory(seed, bug)) for seed in range(SEEDS)) for bug in ("acknowledgement", "marker")}
    Row(
        "cut_seeds",
        f"prompts trained twice or never: {SEEDS} drawn schedules of faults in each of {len(rows)} shapes, simulated",
        "0",
        float(sum(len(row["problems"]) for row in rows)),
        0.0,
        "",
        facts={
            "an acknowledgement before the cut is found": found["acknowledgement"],
            "a marker that is overtaken is found": found["marker"],
        },
        note=f"{sum(row['cuts'] for row in rows):,} cuts, {sum(row['restores'] for row in rows):,} restores",
    ).emit()


if __name__ == "__main__":
    main()
