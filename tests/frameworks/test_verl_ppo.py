"""`verl.trainer.main_ppo` to its end on CPUs, as a role that reserves Quota; one of its workers is killed.

verl's platform, rollout and checkpoint engine for CPUs are plug-ins (`verl_cpu`), registered by its public registries.
"""

from __future__ import annotations

import shutil
import subprocess

import pytest
from scenes import SCRIPTS, Scene

pytestmark = [pytest.mark.ray, pytest.mark.torch, pytest.mark.timeout(1800)]

PLUGINS = SCRIPTS.parent / "verl_cpu"
JOB = """\
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {{name: ppo}}
spec:
  roles:
    - name: driver
      reserve: Quota
      accelerator: {{type: GPU, count: 3}}
      resources: {{cpu: "14"}}
      env: [{{name: VERL_PLATFORM, value: cpu}}, {{name: VERL_USE_EXTERNAL_MODULES, value: verl_cpu}}]
      entrypoint:
        command: [{python}, -m, verl.trainer.main_ppo, --config-dir=verl_cpu, --config-name=ppo_cpu, folder={folder},
          actor_rollout_ref.rollout.checkpoint_engine.backend=faulty,
          actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=verl_faults]
"""


def test_a_killed_worker_of_verl_costs_one_retry_from_its_own_checkpoint(verl_scene: Scene) -> None:
    scene = verl_scene
    file = scene.folder / "dljob.yaml"
    scene.env.pop("CUDA_VISIBLE_DEVICES")  # Ray declares no GPUs where it is empty
    subprocess.run([scene.python, "save_prompts.py", scene.folder], cwd=SCRIPTS, env=scene.env, check=True, timeout=600)
    shutil.copytree(PLUGINS, scene.folder / "verl_cpu")
    for script in ("tiny.py", "verl_faults.py"):
        shutil.copy(SCRIPTS / script, scene.folder)
    file.write_text(JOB.format(python=scene.python, folder=scene.folder))
    run = scene.start("ours", "dljob.cli", ["run", str(file), "--pretend=GPU=3"], "kill:3:1")
    assert run.wait(1500) == 0, scene.said("ours")

    # Rank 0 notes each step whose weights it sends; whether it came to that in the step of the fault is chance.
    steps = [int(line.split()[0]) for line in (scene.folder / "ours" / "steps").read_text().splitlines()]
    assert steps[-3:] == [2, 3, 4]
    assert steps[:-3] in ([0, 1, 2], [0, 1, 2, 3])
    assert (scene.folder / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == "4"
    (lost,) = {event["message"] for event in scene.events() if "was lost first" in event["message"]}
    assert "WorkerDict" in lost
    assert "ActorDiedError" not in lost
