"""Eight events of a training script: under torchrun alone, and under `dljob torchrun`.

The event comes at the end of step 5 of 8, behind the checkpoint of step 4. Seconds: from the event to the end of step
6, the first that had not been done. Steps: how many were done again.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import replica_groups
from recipe_figures import Figure
from run_processes import end, end_machine, end_master, end_tables, processes
from scenes import SCRIPTS, Scene

RANKS, AT, LAST, LIMIT = 4, 5, 8, 120.0
TWO_NODES = """\
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {{name: ours}}
spec:
  nodeGroups: [{{name: machine, replicas: 2, cpu: "4"}}]
  roles:
    - name: default
      type: Elastic
      replicas: 4
      replicasPerGroup: 4
      resources: {{cpu: "1"}}
      entrypoint: {{command: ["{python}", "{script}", "{out}"]}}
"""


@dataclass(frozen=True)
class TrainingEvent:
    """What happens to the run."""

    faults: str
    """What a rank does to itself, as tiny.py reads it; for the others it holds the step until `harm` is done."""
    harm: Callable[[Scene, subprocess.Popen[bytes], str], None] | None = None


def end_node(scene: Scene, _run: subprocess.Popen[bytes], who: str) -> None:
    """Kill all that runs on the machine of the ranks, of one group of torchft; under dljob another one is free."""
    group = replica_groups.of_group(scene, 1)
    if who == "theirs":
        end(scene, group or None)
        return
    end_machine(scene, next(one for one in group or processes(scene) if one.environ().get("RANK") == "0"))


def end_head(scene: Scene, run: subprocess.Popen[bytes], who: str) -> None:
    """Kill the process with the tables of the run: torchrun's agent, or the GCS of Ray, whose loss ends the command."""
    if who == "ours":
        end_tables(scene, run, LIMIT)
        return
    agents = [one for one in replica_groups.of_group(scene, 1) if "torch.distributed.run" in one.cmdline()]
    (agents[0] if agents else run).kill()


def term(_scene: Scene, run: subprocess.Popen[bytes], _who: str) -> None:
    """Send SIGTERM to the command, and wait for its end."""
    run.terminate()
    run.wait(LIMIT)


EVENTS = {
    "rank": TrainingEvent(f"kill:{AT}:1"),
    "two": TrainingEvent(f"kill:{AT}:0,kill:{AT}:1"),
    "hang": TrainingEvent(f"stop:{AT}:1"),
    "node": TrainingEvent(f"hold:{AT}:0", end_node),
    "master": TrainingEvent(f"hold:{AT}:0", lambda scene, _run, _who: end_master(scene)),
    "head": TrainingEvent(f"hold:{AT}:0", end_head),
    "sigterm": TrainingEvent(f"hold:{AT}:0", term),
    "error": TrainingEvent(f"fail:{AT}:1"),
}


def measure(scene: Scene, side: str, figure: Figure) -> Figure:
    """Let the event happen, and return what it cost."""
    event, run = EVENTS[figure.event], started(scene, side, figure, EVENTS[figure.event].faults)
    begun = met(scene, side, run, event)
    if figure.event == "error":
        run.wait(600)
        return replace(figure, ended=round(time.time() - begun, 1), lives=len(scene.begun(side)))
    code, mark, done = followed(scene, run, side, AT, begun + LIMIT), 0, AT
    stepped = step_at(scene, side, AT) is not None
    if not stepped or (run.wait(600) and not finished(scene, side, LAST)):
        why = f"nothing for {LIMIT:g} s" if not stepped and code is None else f"the command ended with {run.wait(60)}"
        end(scene)
        mark, done, figure = len(lines(scene, side)), last(scene, side), replace(figure, again=f"{why}: started again")
        run = started(scene, side, figure)
    code, rows = run.wait(600), lines(scene, side)[mark:]
    at = next((number for number, (step, _) in enumerate(rows) if step == done + 1), None)
    if at is None:
        raise RuntimeError(scene.said(side))
    if code:
        figure = replace(figure, again=figure.again or f"the command ended with {code}, its ranks went on")
    again = at if mark else at - AT
    return replace(figure, seconds=round(rows[at][1] - begun, 1), steps=again, lives=len(scene.begun(side)))


def started(scene: Scene, side: str, figure: Figure, faults: str = "") -> subprocess.Popen[bytes]:
    """Start the command; a node can only be lost where there are two, so that job is a file."""
    script = f"{figure.framework}.py"
    if figure.framework == "torchft_loop":
        if side == "theirs":
            return replica_groups.alone(scene, faults)
        return replica_groups.here(scene, faults, machines=figure.event == "node")
    if side == "theirs":
        return scene.torchrun(script, faults)
    if figure.event != "node":
        return scene.dljob(script, faults)
    file = scene.folder / "dljob.yaml"
    file.write_text(TWO_NODES.format(python=scene.python, script=SCRIPTS / script, out=scene.folder / "ours" / "out"))
    return scene.start("ours", "dljob.cli", ["run", str(file)], faults)


def met(scene: Scene, side: str, run: subprocess.Popen[bytes], event: TrainingEvent) -> float:
    """Wait until the ranks have their faults, do the harm of the event, and return when it happened."""
    for fault in event.faults.split(","):
        scene.reaches(run, side, fault)
    begun = (scene.folder / side / event.faults.split(",")[0]).stat().st_mtime
    if event.harm:
        begun = time.time()
        event.harm(scene, run, side)
    (scene.folder / side / "go").touch()
    return begun


def followed(scene: Scene, run: subprocess.Popen[bytes], side: str, at: int, until: float) -> int | None:
    """Wait for the first step behind `at`, or the end of the command, whose code it returns; None: neither came.

    Ranks may outlive the command, so a step is waited for some seconds longer.
    """
    tick, ended = threading.Event(), 0.0
    while step_at(scene, side, at) is None and time.time() < until:
        if run.poll() is not None:
            ended = ended or time.time()
            until = min(until, ended + 5.0)
        tick.wait(0.1)
    return run.poll()


def finished(scene: Scene, side: str, steps: int) -> bool:
    """Whether all steps are done; ranks that outlive their command have some seconds for it."""
    tick = threading.Event()
    for _ in range(50):
        if last(scene, side) == steps:
            return True
        tick.wait(0.1)
    return False


def lines(scene: Scene, side: str) -> list[tuple[int, float]]:
    """The steps that rank 0 ended, in the order of their end, and when."""
    rows = [line.split() for line in (scene.folder / side / "steps").read_text().splitlines()]
    return [(int(step), float(at)) for step, at in rows]


def step_at(scene: Scene, side: str, at: int) -> float | None:
    """When the first step behind `at` ended: it had not been done before the event."""
    return next((when for step, when in lines(scene, side) if step == at + 1), None)


def last(scene: Scene, side: str) -> int:
    """Return the highest step that was done."""
    return max(step for step, _ in lines(scene, side))
