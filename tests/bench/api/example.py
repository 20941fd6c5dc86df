"""`make run` with and without its faults: seconds, reward, restarts, and how far the reward falls after a kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import HERE, Row, folder, runs, say

EXAMPLE = HERE.parents[1] / "examples" / "grpo-tiny"
KILLS = (15, 25, 35)
"""Iterations of faults.yaml."""
AFTER = 10
"""Iterations after a kill in which the reward is looked at."""
ALLOWED = 0.05


def averages(rewards: list[float]) -> list[float]:
    """The moving average of five at each iteration, as the example reports it."""
    return [sum(rewards[max(0, i - 4) : i + 1]) / len(rewards[max(0, i - 4) : i + 1]) for i in range(len(rewards))]


def fall(average: list[float], at: int) -> float:
    """How far the average falls below its value at an iteration, in the AFTER iterations that follow; >= 0."""
    return max(0.0, average[at - 1] - min(average[at - 1 : at + AFTER]))


def largest_fall(average: list[float]) -> float:
    """The largest such fall from any iteration."""
    return max(fall(average, at) for at in range(1, len(average) + 1))


def run(*flags: str) -> dict[str, Any]:
    """One run on an embedded Ray: its last line, its seconds, and the reward of each iteration."""
    with folder() as home:
        command = [sys.executable, "-m", "dljob.cli", "run", str(EXAMPLE / "dljob.yaml"), *flags]
        begin = time.monotonic()
        done = subprocess.run(
            command, env={**os.environ, "DLJOB_HOME": str(home)}, stdout=subprocess.PIPE, text=True, check=True
        )
        wall = time.monotonic() - begin
        return json.loads(done.stdout.splitlines()[-1]) | {"wall": wall, "rewards": rewards_in(home)}


def rewards_in(home: Path) -> list[float]:
    """The rewards that the trainers' checkpoint holds."""
    import torch

    return torch.load(next(home.glob("jobs/*/checkpoint.pt")))["rewards"]


def main() -> None:
    """Three rows: the run as a whole, against one without faults, and the reward after the kills."""
    faulty: list[dict[str, Any]] = []
    controls: list[dict[str, Any]] = []
    for number in range(runs()):
        controls.append(run())
        faulty.append(run("--faults", str(EXAMPLE / "faults.yaml")))
        last, seconds = faulty[-1], f"{controls[-1]['wall']:.1f} s without, {faulty[-1]['wall']:.1f} s with faults"
        say(f"run {number + 1}: {seconds}, reward {last['reward']}, restarts {last['restarts']}")
    walls, control = [one["wall"] for one in faulty], controls[-1]
    without = median(one["wall"] for one in controls)
    expected = {"inProcess": 0, "process": 1, "roleGroup": 1, "role": 0, "job": 0, "node": 0, "master": 1}
    Row(
        "example",
        "`make run` once set up, with the three faults",
        "<= 120 s, final reward >= 0.95",
        median(walls),
        120,
        samples={"with faults": walls, "without": [one["wall"] for one in controls]},
        facts={
            "final reward >= 0.95": min(one["reward"] for one in faulty) >= 0.95,
            "restarts as expected": all(one["restarts"] == expected for one in faulty),
            "pids kept": all(one["pids_kept"] for one in faulty),
        },
        note=f"final reward {min(one['reward'] for one in faulty)}",
    ).emit()
    Row(
        "example-ratio",
        "`make run` with its three faults against without",
        "<= 1.12 x",
        median(walls) / without,
        1.12,
        unit="x",
        note=f"{median(walls):.1f} s against {without:.1f} s",
    ).emit()
    falls = [max(fall(averages(one["rewards"]), at) for at in KILLS) for one in faulty]
    usual = largest_fall(averages(control["rewards"]))
    same = all(one["rewards"] == control["rewards"] for one in faulty)
    Row(
        "dip",
        "fall of the moving average in the 10 iterations after a kill",
        "<= 0.05 + the largest such fall without faults",
        max(falls),
        ALLOWED + usual,
        unit="reward",
        samples={"with faults": falls, "largest without": [usual]},
        note=f"rewards with and without faults {'are' if same else 'are not'} the same",
    ).emit()


if __name__ == "__main__":
    main()
