"""Launchers as programs of roles: `validate` warns of them, and says what to write."""

from __future__ import annotations

import pytest

from dljob.spec.loading.load import load_all
from dljob.spec.rules.launchers import launcher_warnings


@pytest.mark.parametrize(
    ("program", "launcher"),
    [
        ("command: [accelerate, launch, --num_processes=2, train.py]", "accelerate launch"),
        ("command: [/opt/bin/accelerate, launch, train.py]", "accelerate launch"),
        ("command: [python, -m, accelerate.commands.launch, train.py]", "accelerate launch"),
        ("module: accelerate.commands.launch", "accelerate launch"),
        ("command: [python, -m, accelerate.commands.accelerate_cli, launch, train.py]", "accelerate launch"),
        ("command: [deepspeed, --num_gpus=2, train.py]", "deepspeed"),
        ('command: [sh, -c, "cd /code && exec deepspeed train.py"]', "deepspeed"),
        ("command: [python, -m, deepspeed.launcher.runner, train.py]", "deepspeed"),
        ("command: [python, train.py, --strategy, deepspeed, --deepspeed, ds.json]", ""),
        ('command: [sh, -c, "cd /code && accelerate launch train.py"]', "accelerate launch"),
        ("command: [trl, sft, --output_dir, out]", "trl"),
        ("command: [python, -m, trl, grpo]", "trl"),
        ("module: trl.cli", "trl"),
        ("command: [torchrun, --nproc-per-node=2, train.py]", "torchrun"),
        ("command: [python, -m, torch.distributed.run, train.py]", "torchrun"),
        ("command: [torchrun, launch.py, accelerate, launch]", "torchrun"),
        ("module: train.py", ""),
        ("class: train.Trainer", ""),
        ("command: [python, trl_sft.py, --torchrun-like]", ""),
        ("command: [accelerate, env]", ""),
    ],
)
def test_a_launcher_as_a_program_is_named_with_what_to_write(program: str, launcher: str) -> None:
    (manifest,) = load_all(
        f"apiVersion: dljob.io/v1alpha1\nkind: DLJob\nmetadata: {{name: j}}\n"
        f"spec: {{roles: [{{name: a, entrypoint: {{{program}}}}}]}}\n"
    )
    found = list(launcher_warnings(manifest.spec))
    assert [one.message.partition(" starts ranks")[0] for one in found] == ([launcher] if launcher else [])
    assert all("type: Elastic" in one.hint and one.loc == ("spec", "roles", 0, "entrypoint") for one in found)
