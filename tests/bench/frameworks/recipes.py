"""What each of eight events costs a framework's script: under torchrun alone, and under `dljob torchrun`.

    .venv/bin/python tests/bench/frameworks/recipes.py                        # all figures that are not there yet
    .venv/bin/python tests/bench/frameworks/recipes.py trl_sft rank [alone]   # one event of one framework, anew
    .venv/bin/python tests/bench/frameworks/recipes.py --table                # write the tables in docs/recipes

For a quiet machine: one to three minutes a figure. Each is written to figures.jsonl at once, so that the command goes
on where it was ended. The event comes at the end of step 5 of 8, behind the checkpoint of step 4. Seconds: from the
event to the end of step 6, the first that had not been done. Steps: how many were done again. Where a command ends
before that (or behind it, with steps undone), or LIMIT seconds pass, it is started again at once, as a person could,
and the row says so; then the first new step is that of the second command.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

HERE, TESTS = Path(__file__).parent, Path(__file__).parents[2]
sys.path[:0] = [str(TESTS / "frameworks"), str(TESTS / "kits"), str(TESTS)]

import replica_groups  # noqa: E402 - found by the path above
from environment import NAMES, make  # noqa: E402
from scenes import SCRIPTS, Scene  # noqa: E402

from tiers import isolated  # noqa: E402

FIGURES, PAGES = HERE / "figures.jsonl", TESTS.parent / "docs" / "recipes"
FRAMEWORKS = {
    "trl_sft": "trl",
    "transformers_trainer": "transformers",
    "accelerate_loop": "accelerate",
    "lightning_fit": "lightning",
    "deepspeed_loop": "deepspeed",
    "torchft_loop": "torchft",
}
"""Script -> its page."""
UNLIKE = {
    "error": "n/a, because a group goes on behind the step that its peers have done",
}
"""Events that torchft's two commands and one job do not have in the same way, and what its table says of them."""
WHO = ("alone", "here")
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
class Event:
    """What happens to the run, and how a table names it."""

    title: str
    faults: str
    """What a rank does to itself, as tiny.py reads it; for the others it holds the step until `harm` is done."""
    harm: Callable[[Scene, subprocess.Popen[bytes], str], None] | None = None
    absent: str = ""
    """Why there is no such event under torchrun alone."""


@dataclass(frozen=True)
class Figure:
    """One figure of a table."""

    framework: str
    event: str
    who: str
    seconds: float | None = None
    """From the event to the next new step; None: there was none, and the command ended after `ended` seconds."""
    steps: int | None = None
    again: str = ""
    """Why the command had to be started again."""
    ended: float | None = None
    lives: int = 1
    cpus: int = 0
    load: float = 0.0

    def cell(self) -> str:
        """Return what the table says."""
        if self.seconds is None:
            return f"ends after {self.ended:.1f} s, in life {self.lives}"
        lost = f"{self.seconds:.1f} s, {self.steps} step{'' if self.steps == 1 else 's'}"
        return f"{lost}; {self.again}" if self.again else lost


def end_master(scene: Scene, _run: subprocess.Popen[bytes], _who: str) -> None:
    """Kill PrimeMaster."""
    named(scene, "ray::PrimeMaster").kill()


def end_node(scene: Scene, _run: subprocess.Popen[bytes], who: str) -> None:
    """Kill all that runs on the machine of the ranks, of one group of torchft; under dljob another one is free."""
    group = replica_groups.of_group(scene, 1)
    if who == "theirs":
        end(scene, group)
        return
    rank = next(one for one in group or processes(scene) if one.environ().get("RANK") == "0")
    raylet = next(one for one in rank.parents() if one.name() == "raylet")
    end(scene, [raylet, *raylet.children(recursive=True)])


def end_head(scene: Scene, run: subprocess.Popen[bytes], who: str) -> None:
    """Kill the process with the tables of the run: torchrun's agent, or the GCS of Ray, whose loss ends the command."""
    if who == "theirs":
        agents = [one for one in replica_groups.of_group(scene, 1) if "torch.distributed.run" in one.cmdline()]
        (agents[0] if agents else run).kill()
    else:
        named(scene, "gcs_server").kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(LIMIT)


def named(scene: Scene, name: str) -> psutil.Process:
    """Return the one process of a run whose program has this name."""
    (found,) = [one for one in processes(scene) if Path((one.cmdline() or [""])[0]).name.startswith(name)]
    return found


def processes(scene: Scene) -> list[psutil.Process]:
    """All processes of a run, by a variable that they inherit."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("HF_HOME") == scene.env["HF_HOME"]:
                found.append(process)
    return found


def term(_scene: Scene, run: subprocess.Popen[bytes], _who: str) -> None:
    """Send SIGTERM to the command, and wait for its end."""
    run.terminate()
    run.wait(LIMIT)


EVENTS = {
    "rank": Event("one rank killed", f"kill:{AT}:1"),
    "two": Event("two ranks killed", f"kill:{AT}:0,kill:{AT}:1"),
    "hang": Event("a rank stopped by SIGSTOP", f"stop:{AT}:1"),
    "node": Event("a node lost", f"hold:{AT}:0", end_node),
    "master": Event("the master killed", f"hold:{AT}:0", end_master, "torchrun's only master is its agent: the head"),
    "head": Event("the head killed", f"hold:{AT}:0", end_head),
    "sigterm": Event("SIGTERM to the command, and the same command again", f"hold:{AT}:0", term),
    "error": Event("the same error twice", f"fail:{AT}:1"),
}


def measure(framework: str, name: str, who: str) -> Figure:
    """Run a framework's script through one event."""
    event, figure = (
        EVENTS[name],
        Figure(framework, name, who, cpus=os.cpu_count() or 0, load=round(os.getloadavg()[0], 1)),
    )
    python = make("deepspeed" if framework == "deepspeed_loop" else "environment")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        scene, side = Scene(python, Path(folder), RANKS), "theirs" if who == "alone" else "ours"
        try:
            return happened(scene, side, event, figure)
        finally:
            end(scene)


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


def happened(scene: Scene, side: str, event: Event, figure: Figure) -> Figure:
    """Let the event happen, and return what it cost."""
    run = started(scene, side, figure, event.faults)
    for fault in event.faults.split(","):
        scene.reaches(run, side, fault)
    begun = (scene.folder / side / event.faults.split(",")[0]).stat().st_mtime
    if event.harm:
        begun = time.time()
        event.harm(scene, run, side)
    (scene.folder / side / "go").touch()
    if figure.event == "error":
        run.wait(600)
        return replace(figure, ended=round(time.time() - begun, 1), lives=len(scene.begun(side)))
    code, mark, done = followed(scene, run, side, begun), 0, AT
    stepped = step_at(scene, side) is not None
    if not stepped or (run.wait(600) and not finished(scene, side)):
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


def followed(scene: Scene, run: subprocess.Popen[bytes], side: str, begun: float) -> int | None:
    """Wait for the first new step, or the end of the command, whose code it returns; None: for neither.

    Ranks may outlive the command, so a step is waited for some seconds longer.
    """
    tick, until, ended = threading.Event(), begun + LIMIT, 0.0
    while step_at(scene, side) is None and time.time() < until:
        if run.poll() is not None:
            ended = ended or time.time()
            until = min(until, ended + 5.0)
        tick.wait(0.1)
    return run.poll()


def finished(scene: Scene, side: str) -> bool:
    """Whether all steps are done; ranks that outlive their command have some seconds for it."""
    tick = threading.Event()
    for _ in range(50):
        if last(scene, side) == LAST:
            return True
        tick.wait(0.1)
    return False


def lines(scene: Scene, side: str) -> list[tuple[int, float]]:
    """The steps that rank 0 ended, in the order of their end, and when."""
    rows = [line.split() for line in (scene.folder / side / "steps").read_text().splitlines()]
    return [(int(step), float(at)) for step, at in rows]


def step_at(scene: Scene, side: str) -> float | None:
    """When the first step ended that had not been done before the event."""
    return next((at for step, at in lines(scene, side) if step == AT + 1), None)


def last(scene: Scene, side: str) -> int:
    """Return the highest step that was done."""
    return max(step for step, _ in lines(scene, side))


def end(scene: Scene, some: list[psutil.Process] | None = None) -> None:
    """Kill what is left of a run, or some of it."""
    for process in some or processes(scene):
        with contextlib.suppress(psutil.Error):
            process.kill()


def known() -> dict[tuple[str, str, str], Figure]:
    """The figures that are there."""
    rows = FIGURES.read_text().splitlines() if FIGURES.exists() else []
    figures = [Figure(**json.loads(row)) for row in rows]
    return {(one.framework, one.event, one.who): one for one in figures}


def note(figure: Figure) -> None:
    """Keep a figure, in place of an earlier one."""
    figures = known() | {(figure.framework, figure.event, figure.who): figure}
    FIGURES.write_text("".join(json.dumps(asdict(one)) + "\n" for _, one in sorted(figures.items())))


def table(framework: str) -> str:
    """Return the table of a framework's page; what was not measured says so."""
    there = known()

    def cell(name: str, who: str) -> str:
        if who == "alone" and EVENTS[name].absent:
            return f"n/a, because {EVENTS[name].absent}"
        if framework == "torchft_loop" and name in UNLIKE:
            return UNLIKE[name]
        figure = there.get((framework, name, who))
        return figure.cell() if figure else "not measured yet"

    rows = [f"| {event.title} | {cell(name, 'alone')} | {cell(name, 'here')} |" for name, event in EVENTS.items()]
    made = [figure for figure in there.values() if figure.framework == framework]
    if made:
        cpus, loads = sorted({str(one.cpus) for one in made}), [one.load for one in made]
        load = f"a load of {min(loads):.1f} to {max(loads):.1f} before it"
        rows += ["", f"Measured with {RANKS} ranks on {' or '.join(cpus)} processors, {load}."]
    here = "dljob run" if framework == "torchft_loop" else "dljob torchrun"
    return "\n".join([f"| event | torchrun alone | `{here}` |", "| --- | --- | --- |", *rows])


def rendered(page: str) -> str:
    """Return a page with the tables of its frameworks as the figures have them."""
    for framework in FRAMEWORKS:
        begin = f"<!-- events of {framework} -->"
        before, found, rest = page.partition(begin)
        if found:
            _, end_mark, after = rest.partition("<!-- end -->")
            page = f"{before}{begin}\n\n{table(framework)}\n\n{end_mark}{after}"
    return page


def main(words: list[str]) -> int:
    """Measure what was asked for, or what is not there yet; and write the tables. Return the exit code."""
    chosen = [(framework, event, who) for framework in FRAMEWORKS for event in EVENTS for who in WHO]
    chosen = [one for one in chosen if one[2] == "here" or not EVENTS[one[1]].absent]
    chosen = [one for one in chosen if one[0] != "torchft_loop" or one[1] not in UNLIKE]
    if unknown := set(words) - {"--table", *FRAMEWORKS, *EVENTS, *WHO}:
        known_words = ", ".join([*FRAMEWORKS, *EVENTS, *WHO, "--table"])
        print(f"unknown: {', '.join(sorted(unknown))}; there are: {known_words}", file=sys.stderr)
        return 2
    there, failed = known(), 0
    for one in [one for one in chosen if (set(words) <= set(one) if words else one not in there)]:
        try:
            figure = measure(*one)
        except (AssertionError, OSError, RuntimeError, subprocess.SubprocessError) as error:
            print(*one, f"could not be measured: {error}", file=sys.stderr, flush=True)
            failed = 1
            continue
        print(*one, figure.cell(), file=sys.stderr, flush=True)
        note(figure)
    for name in sorted(set(FRAMEWORKS.values())):
        page = PAGES / f"{name}.md"
        page.write_text(rendered(page.read_text()))
    return failed


if __name__ == "__main__":
    if sys.argv[1:2] == ["inside"]:
        sys.exit(main(sys.argv[2:]))
    else:
        for each in [] if "--table" in sys.argv else NAMES:
            make(each)  # Ray runs in a network namespace of its own, where nothing can be fetched.
        sys.exit(
            subprocess.run([*isolated(), sys.executable, __file__, "inside", *sys.argv[1:]], check=False).returncode
        )
