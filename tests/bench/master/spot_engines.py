"""1,000 engines on 125 spot machines for 7 days, simulated: tokens lost, and the goodput of three fleets.

Prints a table to stderr, and a row. SPOT_MACHINES, SPOT_DAYS, SPOT_NOTICE_S and SPOT_ZONE (`spot.ZONES`) change the
fleet.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, say

from dljob.testing.simulate.spot import Spot, Streams, compared

SPOT = Spot(
    machines=int(os.environ.get("SPOT_MACHINES", "125")),
    days=float(os.environ.get("SPOT_DAYS", "7")),
    notice_s=float(os.environ.get("SPOT_NOTICE_S", "120")),
    zone=os.environ.get("SPOT_ZONE", "us-east-2a"),
)


def main() -> None:
    """Compare the fleets."""
    rows = {row["fleet"]: row for row in compared(SPOT, Streams())}
    for row in rows.values():
        say(" ".join(f"{name} {value}" for name, value in row.items()))
    anew, resumes = rows["fixed, anew"], rows["breathes, resumes"]
    Row(
        "spot_engines",
        f"{SPOT.engines:,} engines on spot machines, {SPOT.days:g} days, simulated: tokens lost",
        "0; goodput against two other fleets",
        float(resumes["tokensLost"]),
        0.0,
        "tokens",
        facts={
            "no law broken": not resumes["problems"],
            "no token doubled or missing": not resumes["wrong"],
            "goodput, without preemptions 1": resumes["goodput"],
            "of fixed engines that begin anew": anew["goodput"],
        },
        note=f"{resumes['tokens']:,} tokens, {resumes['tokensAgain']:,} made again",
    ).emit()


if __name__ == "__main__":
    main()
