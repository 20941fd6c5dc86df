"""examples/fleet-tiny with real processes under drawn schedules of faults: prompts that are trained twice, or never.

Each seed draws the order of the faults and the step of each; two may come at the same one. The count is taken from the
log that is part of the trainer's state and goes back with it, never from counters of queues.

    python tests/bench/data/fleet_faults.py [seed ...]
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import HERE, Row, folder, runs, say

EXAMPLE = HERE.parents[1] / "examples" / "fleet-tiny"
STEPS, BATCH = 20, 8
CUT_EVERY = 3
MOST_S = 1200
TARGETS = ("engine/0", "engine/1", "trainer/0", "queue/groups", "queue/prompts", "master")


def schedule(seed: int) -> list[dict[str, Any]]:
    """Return the faults of a seed, in the order of their steps."""
    drawn = random.Random(seed)  # noqa: S311 - a schedule
    faults: list[dict[str, Any]] = [{"target": target, "fault": "kill"} for target in TARGETS]
    faults.append({"target": f"node/{drawn.choice((1, 2))}", "fault": "leave", "seconds": 20})
    drawn.shuffle(faults)
    steps = sorted(drawn.choices(range(2, STEPS - 2), k=len(faults)))
    return [{"when": {"step": step}, **fault} for step, fault in zip(steps, faults, strict=True)]


def job(to: Path) -> Path:
    """Copy the example with fewer steps and more cuts; return its file."""
    shutil.copytree(EXAMPLE, to)
    file = to / "dljob.yaml"
    text = file.read_text()
    changes = {
        "steps: 60": f"steps: {STEPS}",
        "cutEvery: 5": f"cutEvery: {CUT_EVERY}",
        # The trainer fills a machine: when it is taken away, another one must be free.
        "replicas: 3, cpu": "replicas: 4, cpu",
    }
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    file.write_text(text)
    return file


def run(seed: int) -> tuple[dict[str, Any], list[int]]:
    """Run one schedule to its end; return the last line, and the numbers of the trained prompts."""
    with folder() as home:
        file = job(home / "example")
        faults = home / "faults.yaml"
        faults.write_text(json.dumps(schedule(seed)))
        command = [sys.executable, "-m", "dljob.cli", "run", str(file), "--faults", str(faults)]
        done = subprocess.run(
            command,
            env={**os.environ, "DLJOB_HOME": str(home / "state"), "RAY_TMPDIR": str(home)},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=MOST_S,
        )
        last = json.loads(done.stdout.splitlines()[-1])
        records = list(home.glob("state/jobs/*/record.json"))
        assert records, last
        return last, json.loads(records[0].read_text())["trained"]


def main() -> None:
    """One row."""
    wrong = list[float]()
    lost = again = cuts = happened = 0
    for seed in [int(given) for given in sys.argv[1:]] or range(1, runs(5) + 1):
        say(f"seed {seed}:", ", ".join(f"{f['fault']} {f['target']} at {f['when']['step']}" for f in schedule(seed)))
        last, trained = run(seed)
        times = Counter(trained)
        wrong.append(
            sum(times[number] != 1 for number in range(STEPS * BATCH)) + len(times.keys() - range(STEPS * BATCH))
        )
        lost, again, cuts = lost + last["tokens_lost"], again + last["steps_made_again"], cuts + last["cuts_asked"]
        happened += sum(row["at"] is not None for row in last["faults"])
        told = f"{last['cuts_asked']} cuts, {last['steps_made_again']} steps made again, {last['restarts']}"
        say(f"  {wrong[-1]:.0f} wrong; {told}")
    Row(
        "fleet-once",
        f"prompts trained twice or never: fleet-tiny under {len(wrong)} drawn schedules of {len(TARGETS) + 1} faults",
        "0",
        sum(wrong),
        0,
        unit="",
        samples={"a schedule": wrong},
        facts={
            "no token lost": lost == 0,
            "all faults happened": happened == len(wrong) * (len(TARGETS) + 1),
        },
        note=f"{cuts} cuts, {again} steps made again, load {os.getloadavg()[0]:.0f}",
    ).emit()


if __name__ == "__main__":
    main()
