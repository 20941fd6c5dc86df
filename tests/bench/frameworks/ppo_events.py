"""Eight events of verl's `main_ppo`: on a Ray of its own alone, and as a role that reserves Quota.

The event comes when the trainer sends the weights of step 3 of 4, behind verl's checkpoint of step 2. Seconds: from the
event until the weights of step 4 are sent. Steps: how many were trained again.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import tempfile
import time
from dataclasses import replace
from typing import Any

import yaml
from recipe_figures import Figure
from run_processes import end, end_machine, end_master, end_tables, processes, program
from scenes import SCRIPTS, Scene
from training_events import TrainingEvent, finished, followed, lines, met, step_at, term

AT, LAST, GPUS, CPUS, LIMIT = 3, 4, 3, 14, 180.0
PLUGINS = SCRIPTS.parent / "verl_cpu"
VARIABLES = {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "verl_cpu"}
ENGINE = "actor_rollout_ref.rollout.checkpoint_engine"
WORDS = ("--config-dir=verl_cpu", "--config-name=ppo_cpu", f"{ENGINE}.backend=faulty",
         f"{ENGINE}.custom_backend_module=verl_faults")  # fmt: skip
OWN_RAY = (f"ray_kwargs.ray_init.num_cpus={CPUS}", f"+ray_kwargs.ray_init.num_gpus={GPUS}")
"""What verl asks of the Ray that it starts itself: the machine has fewer."""


def end_node(scene: Scene, _run: subprocess.Popen[bytes], who: str) -> None:
    """Kill the machine of the trainer's ranks: alone it is that of everything, under dljob another one is free."""
    if who == "theirs":
        end(scene)
        return
    end_machine(scene, next(one for one in processes(scene) if program(one).startswith("ray::WorkerDict")))


EVENTS = {
    "rank": TrainingEvent(f"kill:{AT}:1"),
    "two": TrainingEvent(f"kill:{AT}:0,kill:{AT}:1"),
    "hang": TrainingEvent(f"stop:{AT}:1"),
    "node": TrainingEvent(f"hold:{AT}:0", end_node),
    "master": TrainingEvent(f"hold:{AT}:0", lambda scene, _run, _who: end_master(scene)),
    "head": TrainingEvent(f"hold:{AT}:0", lambda scene, run, _who: end_tables(scene, run, LIMIT)),
    "sigterm": TrainingEvent(f"hold:{AT}:0", term),
    "error": TrainingEvent(f"fail:{AT}:1"),
}


def measure(scene: Scene, side: str, figure: Figure) -> Figure:
    """Let the event happen, and return what it cost."""
    event = EVENTS[figure.event]
    prepare(scene, figure.event)
    run = start(scene, side, event.faults)
    begun = met(scene, side, run, event)
    if figure.event == "error":
        run.wait(600)
        return replace(figure, ended=round(time.time() - begun, 1), lives=lives(steps(scene, side)))
    code, mark = followed(scene, run, side, AT, begun + LIMIT), 0
    stepped = step_at(scene, side, AT) is not None
    if not stepped or (run.wait(600) and not finished(scene, side, LAST)):
        why = f"nothing for {LIMIT:g} s" if not stepped and code is None else f"the command ended with {run.wait(60)}"
        end(scene)
        mark, figure = len(lines(scene, side)), replace(figure, again=f"{why}: started again")
        run = start(scene, side)
    run.wait(600)
    rows = lines(scene, side)[mark:]
    at = next((number for number, (step, _) in enumerate(rows) if step == AT + 1), None)
    if at is None:
        raise RuntimeError(scene.said(side))
    redone = trained_again([step for step, _ in rows[: at + 1]], AT, resumed=bool(mark))
    return replace(figure, seconds=round(rows[at][1] - begun, 1), steps=redone, lives=lives(steps(scene, side)))


def prepare(scene: Scene, event: str) -> None:
    """Save model and prompts, and write the job; a machine can only be lost where another one is free."""
    scene.env.pop("CUDA_VISIBLE_DEVICES", None)  # Ray declares no GPUs where it is empty.
    subprocess.run([scene.python, "save_prompts.py", scene.folder], cwd=SCRIPTS, env=scene.env, check=True, timeout=600)
    shutil.copytree(PLUGINS, scene.folder / "verl_cpu")
    for script in ("tiny.py", "verl_faults.py"):
        shutil.copy(SCRIPTS / script, scene.folder)
    driver: dict[str, Any] = {"name": "driver", "reserve": "Quota", "resources": {"cpu": str(CPUS)}}
    driver["accelerator"] = {"type": "GPU", "count": GPUS}
    driver["env"] = [{"name": name, "value": value} for name, value in VARIABLES.items()]
    driver["entrypoint"] = {"command": [str(scene.python), "-m", "verl.trainer.main_ppo", *words(scene)]}
    spec: dict[str, Any] = {"roles": [driver]}
    if event == "node":
        machine = {"name": "machine", "replicas": 2, "cpu": str(CPUS)}
        spec["nodeGroups"] = [{**machine, "accelerator": {"type": "GPU", "count": GPUS}}]
    job = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "ours"}, "spec": spec}
    (scene.folder / "dljob.yaml").write_text(yaml.safe_dump(job))


def words(scene: Scene) -> list[str]:
    """Return the arguments of main_ppo that both sides have."""
    return [*WORDS, f"folder={scene.folder}"]


def start(scene: Scene, side: str, faults: str = "") -> subprocess.Popen[bytes]:
    """Start the command, in the folder that has the plug-ins."""
    out = scene.folder / side
    out.mkdir(exist_ok=True)
    env = {**scene.env, "FAULTS": faults, "NOTES": str(out)}
    if side == "theirs":
        # Ray keeps the address of a Ray that was killed, and would join it.
        env |= {**VARIABLES, "RAY_TMPDIR": tempfile.mkdtemp(prefix="r", dir=scene.folder)}
        command = ["-m", "verl.trainer.main_ppo", *words(scene), *OWN_RAY]
    else:
        command = ["-m", "dljob.cli", "run", "dljob.yaml", f"--pretend=GPU={GPUS}"]
    with (scene.folder / f"{side}.log").open("ab") as log:
        return subprocess.Popen([scene.python, *command], cwd=scene.folder, env=env, stdout=log, stderr=log)


def steps(scene: Scene, side: str) -> list[int]:
    """Return the steps whose weights were sent; a life begins with that from which it goes on."""
    return [step for step, _ in lines(scene, side)]


def lives(sent: list[int]) -> int:
    """Return how many lives of the trainer sent weights: each begins with a step that is not a later one."""
    return 1 + sum(later <= step for step, later in itertools.pairwise(sent))


def trained_again(sent: list[int], done: int, *, resumed: bool) -> int:
    """Return how many steps up to `done` the last life trained; `resumed`: the first of these lives is a later one.

    The first weights that a life sends are those of its checkpoint, which nobody trains again.
    """
    begins = max((at for at in range(1, len(sent)) if sent[at] <= sent[at - 1]), default=0)
    if begins == 0 and not resumed:
        return 0
    return sum(step <= done for step in sent[begins + 1 :])
