"""`python tests/unit/master/causes_draw.py SEED`: draws ten of the thirty labelled faults, and counts what is named.

Right: every first cause and its reason. Unknown: a first cause is named rightly, and its reason is Unknown. Else wrong.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import yaml  # noqa: E402
from causes_kit import Story  # noqa: E402


def verdict(path: Path) -> str:
    """Return the core's verdict on a case."""
    case = yaml.safe_load(path.read_text())
    told = Story(case).tell()
    expected = [(e["first"], e["reason"]) for e in case["expect"]]
    if [(fault["first"], fault["reason"]) for fault in told] == expected:
        return "right"
    vague = [(fault["first"], "Unknown") for fault in told]
    return "unknown" if vague == [(first, "Unknown") for first, _ in expected] else f"wrong: {told}"


if __name__ == "__main__":
    every = sorted((HERE / "causes").glob("*.yaml"))
    drawn = set(random.Random(sys.argv[1]).sample(every, 10))  # noqa: S311 - a draw that can be drawn again
    found = {path: verdict(path) for path in every}
    for path, said in found.items():
        print(f"{'drawn' if path in drawn else '     '}  {said:8} {path.stem}")
    for name, paths in (("thirty", every), ("ten", drawn)):
        count = [sum(found[p].startswith(word) for p in paths) for word in ("right", "unknown", "wrong")]
        print(f"{name}: {count[0]} right, {count[1]} unknown, {count[2]} wrong")
