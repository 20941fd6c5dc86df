"""An elastic class role of 4, 2 and 4 gloo ranks at equal global batch, against one of 4 that nothing happens to.

`growAfterSeconds` is the default of a minute, for which an order does not wait.
"""

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
from bench_jobs import journaled, manifest, role, stamp, submit  # noqa: E402

RANKS, FEWER = 4, 2
EPOCHS = 15
UNTIL = {"1": 50, "2": 80}
"""Number of the world -> the step at which its ranks wait for the next one."""
ENDS_S = 300.0
ALL_S, OURS_S = 4.0, 3.0
"""Limits: from the order to grow until all have made a step; of it behind the last new rank's place."""


def started(out: Path, name: str, until_step: dict[str, int], level: str | None = "InProcess") -> Any:
    """A job of this kind; without a level that of the default, at which all ranks get new processes."""
    group = role("t", "resize_job.Trainer", RANKS, type="Elastic", comm={"backend": "gloo"}, minReplicas=FEWER)
    if level:
        group["restartPolicy"]["level"] = level
    group["config"] = {"epochs": EPOCHS, "slow_s": 0.02, "until": until_step}
    return submit(manifest(name, out, [group]))


def worked(handle: Any, ranks: int, number: int) -> float:
    """When all of a world have made a step (unix seconds): the number-th world of the job, which has so many ranks."""

    def works(rank: int) -> bool:
        said, steps = (made.lines(handle.dir, name, rank)[-1:] for name in ("begin", "step"))
        return bool(said and steps) and said[0]["world"] == ranks and said[0]["incarnation"] == steps[0]["incarnation"]

    def first() -> float:
        begun = len(made.lines(handle.dir, "begin", 0)) >= number
        return stamp() if begun and all(map(works, range(ranks))) else 0.0

    return until(first, 120.0, 0.02)


def scaled(handle: Any, ranks: int, number: int) -> tuple[float, float]:
    """When so many ranks were ordered, and when all of the world that follows had made a step (unix seconds)."""
    ordered = stamp()
    handle.scale("t", ranks)
    return ordered, worked(handle, ranks, number)


def placed(handle: Any, ordered: float) -> float:
    """When PrimeMaster knew the node of the last new rank (unix seconds)."""
    return max(at for at, event in journaled(handle) if event["t"] == "UnitReserved" and at > ordered)


def over(handle: Any) -> Path:
    """The folder of a job that has ended well."""
    status = handle.wait(ENDS_S)
    if status["phase"] != "Succeeded":
        raise RuntimeError(f"{status['phase']}: {status.get('message')}")
    settle()
    return handle.dir


def grown_by_default(out: Path) -> list[float]:
    """Seconds from the order to grow until all four of a role of the default level have made a step."""
    seconds: list[float] = []
    for number in range(runs(7)):
        handle = started(out, "default", UNTIL, None)
        worked(handle, RANKS, 1)
        scaled(handle, FEWER, 2)
        ordered, done = scaled(handle, RANKS, 3)
        seconds.append(done - ordered)
        if handle.status()["restarts"]["inProcess"]:
            raise RuntimeError("the default level kept processes")
        over(handle)
        say(f"  run {number + 1}: at the default level 2 to 4 {seconds[-1]:.2f} s")
    return seconds


def main() -> None:
    """Four rows: what it did, and how long it took to grow."""
    apart: list[float] = []
    shrunk: list[float] = []
    grown: list[float] = []
    ours: list[float] = []
    kept, once, level = True, True, True
    with cluster(8, forked=True), folder() as out:
        wanted = made.losses(over(started(out, "undisturbed", {})))
        for number in range(runs(7)):
            handle = started(out, "resized", UNTIL)
            worked(handle, RANKS, 1)
            ordered, done = scaled(handle, FEWER, 2)
            shrunk.append(done - ordered)
            ordered, done = scaled(handle, RANKS, 3)
            grown.append(done - ordered)
            ours.append(done - placed(handle, ordered))
            restarts = handle.status()["restarts"]
            where = over(handle)
            found = made.losses(where)
            apart.append(max(abs(found[step] - wanted[step]) for step in wanted))
            kept &= made.processes(where) == [1, 1, 2, 2]
            once &= all(made.samples(where, epoch) == list(range(made.SAMPLES)) for epoch in range(EPOCHS))
            level &= restarts["inProcess"] == sum(restarts.values()) == 2
            seconds = f"4 to 2 {shrunk[-1]:.2f} s, 2 to 4 {grown[-1]:.2f} s, of it behind the last place {ours[-1]:.2f}"
            say(f"  run {number + 1}: {apart[-1]:.1e} apart; {seconds}")
        anew = grown_by_default(out)
    Row(
        "resize",
        "4, 2, and 4 gloo ranks again at equal global batch: losses against an undisturbed run of 4",
        "within 1e-6; survivors keep their processes; each sample once an epoch",
        max(apart) * 1e6,
        1.0,
        unit="millionths",
        samples={"order -> all have made a step, 4 to 2": shrunk},
        facts={"survivors kept their processes": kept, "each sample once an epoch": once, "only in process": level},
        note=f"{max(apart):.1e} apart",
    ).emit()
    for name, what, seconds, limit in (
        ("all", "order -> all four have made a step (level InProcess)", grown, ALL_S),
        ("ours", "of it since the node of the last new rank is known (level InProcess)", ours, OURS_S),
        ("anew", "order -> all four have made a step (default level: new processes)", anew, ALL_S),
    ):
        Row(
            f"resize-grow-{name}",
            f"`dljob scale` of 2 gloo ranks of a class to 4: {what}",
            f"<= {limit:g} s",
            median(seconds),
            limit,
            samples={"dljob": seconds},
        ).emit()


if __name__ == "__main__":
    main()
