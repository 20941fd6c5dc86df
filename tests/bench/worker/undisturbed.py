"""What a training step costs while nothing goes wrong: under torchrun, beside an idle Ray, and under dljob.

Two ranks, steps of 0.2 s that always do the same work, a state of 64 MiB. Five arms in turn: torchrun alone; torchrun
beside an idle Ray; dljob with heartbeats, progress and hang watch; and, with the state kept every ten steps, dljob with
checkpoints in memory, and torchrun with clones of the same bytes beside an idle Ray.

All times are divided by the CPU time of the matrix products in the same run, which are the same in all arms: on a
virtual machine that time varies by 15 % from run to run. `BENCH_STEPS` shortens a run (500 steps; BENCH_RUNS: 5).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import APPS, Row, cluster, folder, runs, say, settle

RANKS, STEP_S = 2, 0.2
STEPS = int(os.environ.get("BENCH_STEPS", "500"))
LIMIT_S = 600.0
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]

Times = dict[str, float]


def products() -> int:
    """How many matrix products take a step's time, on both cores at once."""
    import torch

    torch.set_num_threads(1)
    square = torch.rand(256, 256)
    code = "import torch; torch.set_num_threads(1); s = torch.rand(256, 256)\nwhile True: s @ s"
    with subprocess.Popen([sys.executable, "-c", code]) as beside:
        time.sleep(5)  # it imports torch
        count, begin = 0, time.monotonic()
        while time.monotonic() < begin + 10 * STEP_S:
            _ = square @ square
            count += 1
        beside.kill()
    return count // 10


def once(command: list[str], count: int, *, keep: bool) -> Times:
    """What the steps of one run took, by the CPU time of their work: wall and CPU time of a rank, and of the machine.

    That of the machine is of both ranks, and of whatever runs beside them.

    Raises:
        RuntimeError: it did not end well; with the end of what it said.
    """
    with folder() as out:
        words = [f"--nproc-per-node={RANKS}", "steady_script.py", str(out), str(STEPS), str(count)]
        made = subprocess.run(
            [*command, *words, *["keep"] * keep], cwd=APPS, capture_output=True, timeout=LIMIT_S, check=False
        )
        if made.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {made.returncode}: {made.stderr[-2000:].decode()}")
        told = [json.loads((out / f"{rank}.json").read_text()) for rank in range(RANKS)]
    return {name: sum(each[name] / each["work"] for each in told) / RANKS for name in ("wall", "own", "machine")}


def ratio(ours: list[Times], theirs: list[Times], name: str) -> float:
    """Our median by theirs."""
    return median(each[name] for each in ours) / median(each[name] for each in theirs)


def emit(name: str, what: str, pair: tuple[list[Times], list[Times]], limits: dict[str, float], note: str) -> None:
    """A row for each limit."""
    ours, theirs = pair
    words = {"wall": "wall time", "own": "CPU time of a rank", "machine": "CPU time of the machine"}
    for kind, limit in limits.items():
        samples = {"dljob": [each[kind] for each in ours], "torchrun": [each[kind] for each in theirs]}
        Row(
            f"undisturbed-{name}-{kind}",
            f"{what}: {words[kind]}",
            f"<= {limit:g} x torchrun",
            ratio(ours, theirs, kind),
            limit,
            unit="x",
            samples=samples,
            note=note,
        ).emit()


def main() -> None:
    """Rows of steps without and with copies of the state."""
    count = products()
    say(f"  a step is {count} products")
    arms: dict[str, list[Times]] = {name: [] for name in ("alone", "idle Ray", "dljob", "checkpoints", "clones")}
    for number in range(runs(5)):
        arms["alone"].append(once(TORCHRUN, count, keep=False))
        with cluster(2 * RANKS, forked=True) as ray:
            here = [sys.executable, "-m", "dljob.cli", "torchrun", "--to", ray.address]
            for name, command, keep in (
                ("idle Ray", TORCHRUN, False),
                ("dljob", here, False),
                ("clones", TORCHRUN, True),
                ("checkpoints", here, True),
            ):
                arms[name].append(once(command, count, keep=keep))
                settle()
        told = (f"{name} {'/'.join(f'{one:.3f}' for one in taken[-1].values())}" for name, taken in arms.items())
        say(f"  run {number + 1}, wall/CPU time of a rank/of the machine by that of a rank's work: {', '.join(told)}")
    note = f"{STEPS} steps; an idle Ray beside torchrun: {ratio(arms['idle Ray'], arms['alone'], 'wall'):.3f} x"
    beside = arms["dljob"], arms["idle Ray"]
    emit("step", "a training step beside an idle Ray", beside, {"own": 1.01, "machine": 1.01, "wall": 1.02}, note)
    saving = arms["checkpoints"], arms["clones"]
    emit("saving", "the same, 64 MiB kept every 10 steps", saving, {"own": 1.03, "machine": 1.03, "wall": 1.03}, note)


if __name__ == "__main__":
    main()
