"""Scripts that start under torchrun, unchanged: a rank killed, one stopped, the job stopped and started again.

Each goes on from its framework's own checkpoint every time, and its losses are those of the same script under torchrun
alone, where the same rank is killed at the same step. The tolerance is 0: both resume from equal files. Lightning's own
checkpoints lack the position within an epoch, so that there ranks are killed wherever dljob's run was interrupted.
"""

from __future__ import annotations

import pytest
from scenes import Scene, goes_on_as_under_torchrun

pytestmark = [pytest.mark.ray, pytest.mark.torch, pytest.mark.timeout(900)]

KILLED = "kill:3:1"
SCRIPTS = {
    "trl_sft.py": KILLED,
    "trl_dpo.py": KILLED,
    "trl_grpo.py": f"{KILLED},kill:5:0,kill:7:1",
    "transformers_trainer.py": KILLED,
    "accelerate_loop.py": KILLED,
    "lightning_fit.py": f"{KILLED},kill:5:0,kill:7:1",
}
"""Script -> what is done to it under torchrun."""


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_goes_on_with_the_losses_of_torchrun_after_each_fault(scene: Scene, script: str) -> None:
    goes_on_as_under_torchrun(scene, script, SCRIPTS[script])


def test_deepspeed_goes_on_with_the_losses_of_torchrun_after_each_fault(deepspeed_scene: Scene) -> None:
    goes_on_as_under_torchrun(deepspeed_scene, "deepspeed_loop.py", KILLED)
