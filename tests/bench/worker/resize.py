"""An elastic class role of 4, 2 and 4 gloo ranks at equal global batch, against one of 4 that nothing happens to."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

KITS = Path(__file__).resolve().parents[2] / "kits"
sys.path.insert(0, str(KITS))
os.environ["PYTHONPATH"] = os.pathsep.join([str(KITS), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)

import resize_job as made  # noqa: E402 - the kits are no package

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, cluster, folder, runs, say, settle, until  # noqa: E402
from bench_jobs import manifest, role, stamp, submit  # noqa: E402

RANKS, FEWER = 4, 2
EPOCHS = 15
UNTIL = {"1": 50, "2": 80}
"""Number of the world -> the step at which its ranks wait for the next one."""
ENDS_S = 300.0


def started(out: Path, name: str, until_step: dict[str, int]) -> Any:
    """A job of this kind."""
    group = role("t", "resize_job.Trainer", RANKS, type="Elastic", comm={"backend": "gloo"}, minReplicas=FEWER)
    group["restartPolicy"]["level"] = "InProcess"
    group["config"] = {"epochs": EPOCHS, "slow_s": 0.02, "until": until_step}
    return submit(manifest(name, out, [group], elastic={"growAfterSeconds": 1}))


def worked(handle: Any, ranks: int, number: int) -> float:
    """When all of a world have made a step (unix seconds): the number-th world of the job, which has so many ranks."""

    def works(rank: int) -> bool:
        said, steps = (made.lines(handle.dir, name, rank)[-1:] for name in ("begin", "step"))
        return bool(said and steps) and said[0]["world"] == ranks and said[0]["incarnation"] == steps[0]["incarnation"]

    def first() -> float:
        begun = len(made.lines(handle.dir, "begin", 0)) >= number
        return stamp() if begun and all(map(works, range(ranks))) else 0.0

    return until(first, 120.0, 0.02)


def over(handle: Any) -> Path:
    """The folder of a job that has ended well."""
    status = handle.wait(ENDS_S)
    if status["phase"] != "Succeeded":
        raise RuntimeError(f"{status['phase']}: {status.get('message')}")
    settle()
    return handle.dir


def main() -> None:
    """One row."""
    apart: list[float] = []
    took: dict[str, list[float]] = {"4 to 2": [], "2 to 4": []}
    kept, once, level = True, True, True
    with cluster(8, forked=True), folder() as out:
        wanted = made.losses(over(started(out, "undisturbed", {})))
        for number in range(runs(5)):
            handle = started(out, "resized", UNTIL)
            worked(handle, RANKS, 1)
            for name, ranks, world in (("4 to 2", FEWER, 2), ("2 to 4", RANKS, 3)):
                ordered = stamp()
                handle.scale("t", ranks)
                took[name].append(worked(handle, ranks, world) - ordered)
            restarts = handle.status()["restarts"]
            where = over(handle)
            found = made.losses(where)
            apart.append(max(abs(found[step] - wanted[step]) for step in wanted))
            kept &= made.processes(where) == [1, 1, 2, 2]
            once &= all(made.samples(where, epoch) == list(range(made.SAMPLES)) for epoch in range(EPOCHS))
            level &= restarts["inProcess"] == sum(restarts.values()) == 2
            say(f"  run {number + 1}: {apart[-1]:.1e} apart; {took}")
    Row(
        "resize",
        "4, 2, and 4 gloo ranks again at equal global batch: losses against an undisturbed run of 4",
        "within 1e-6; survivors keep their processes; each sample once an epoch",
        max(apart) * 1e6,
        1.0,
        unit="millionths",
        samples={"order -> all have made a step, 4 to 2": took["4 to 2"], "2 to 4": took["2 to 4"]},
        facts={"survivors kept their processes": kept, "each sample once an epoch": once, "only in process": level},
        note=f"{max(apart):.1e} apart; 2 to 4 takes {median(took['2 to 4']):.1f} s",
    ).emit()


if __name__ == "__main__":
    main()
