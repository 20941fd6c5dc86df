"""What it costs to choose a domain: units of one role, in one of many racks.

    python tests/bench/master/domains.py [racks] [nodes of a rack]

Prints as JSON the seconds for `assign` of units of 8 GPUs that fill half of a rack (default: 500 racks of 20 nodes),
without a topology key, with one, with four such roles, and where no rack is large enough.
"""

from __future__ import annotations

import json
import sys
import time

from dljob.master.start.assign import Assignment, assign
from dljob.master.state.views import NodeView
from dljob.plan.model import GRAIN, Bundle, Unit

TAKES = (("CPU", 8 * GRAIN), ("GPU", 8 * GRAIN))


def units(role: str, count: int, key: str) -> list[Unit]:
    """Units of one role that take a node each."""
    bundle = Bundle(TAKES, ((role, 0),))
    return [Unit(f"{role}/{k}", (bundle,), ((role, k),), (), None, key) for k in range(count)]


def timed(wanted: list[Unit], nodes: list[NodeView], *, fits: bool = True) -> float:
    """Seconds of one call, the best of three."""
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        found = assign(wanted, nodes)
        best = min(best, time.perf_counter() - began)
        assert isinstance(found, Assignment) == fits
    return round(best, 4)


def main(racks: int, each: int) -> None:
    """All four."""
    nodes = [NodeView(f"n{r}-{i}", TAKES, TAKES, (("rack", f"r{r}"),)) for r in range(racks) for i in range(each)]
    half = each // 2
    four = [unit for role in "abcd" for unit in units(role, half, "rack")]
    print(
        json.dumps(
            {
                "nodes": len(nodes),
                "without": timed(units("a", half, ""), nodes),
                "one role": timed(units("a", half, "rack"), nodes),
                "four roles": timed(four, nodes),
                "no rack is large enough": timed(units("a", each + 1, "rack"), nodes, fits=False),
            }
        )
    )


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]) if len(sys.argv) > 1 else (500, 20))
