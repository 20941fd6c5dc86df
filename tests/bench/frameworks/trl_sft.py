"""TRL's fine-tuning on four ranks: the time to the first step, and from a killed rank to the next step of all.

    .venv/bin/python tests/bench/frameworks/trl_sft.py [ROUNDS]     # on a quiet machine, three minutes a round

`dljob torchrun` starts a Ray of its own each time. torchrun has TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which it
does not come back. Both run in turn, each time in a new folder.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(TESTS / "frameworks"), str(TESTS / "kits")]

from environment import make  # noqa: E402 - found by the path above
from scenes import Scene  # noqa: E402

SCRIPT, FAULT, RANKS = "trl_sft.py", "kill:5:1", 4


def measure(who: str, scene: Scene) -> tuple[float, float]:
    """Return the seconds to the first step, and from the kill to the next one."""
    assert scene.env  # made before the clock runs
    begun = time.time()
    run = (scene.dljob if who == "ours" else scene.torchrun)(SCRIPT, FAULT)
    scene.ends(run, who)
    steps = [line.split() for line in (scene.folder / who / "steps").read_text().splitlines()]
    killed = (scene.folder / who / FAULT).stat().st_mtime
    # The second life begins behind the checkpoint of step 4: its first step has the number of the last one before.
    (again,) = [float(when) for step, when in steps if step == "5"][-1:]
    return float(steps[0][1]) - begun, again - killed


def main(rounds: int) -> None:
    """Print medians, and what they are of torchrun's."""
    python = make()
    seen: dict[str, list[tuple[float, float]]] = {"theirs": [], "ours": []}
    for _ in range(rounds):
        for who, values in seen.items():
            with tempfile.TemporaryDirectory() as folder:
                values.append(measure(who, Scene(python, Path(folder), RANKS)))
            print(who, [round(value, 2) for value in values[-1]], file=sys.stderr, flush=True)
    for number, name in enumerate(("first step", "killed -> next step")):
        ours, theirs = (statistics.median(each[number] for each in seen[who]) for who in ("ours", "theirs"))
        print(json.dumps({"figure": name, "dljob_s": round(ours, 2), "torchrun_s": round(theirs, 2),
                          "ratio": round(ours / theirs, 2)}))  # fmt: skip


if __name__ == "__main__":
    main(int((sys.argv[1:] or ["3"])[0]))
