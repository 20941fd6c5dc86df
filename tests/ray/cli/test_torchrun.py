"""`dljob torchrun` beside torchrun itself: the same script, the same words, the same lines."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from raylets import RayHere

pytestmark = [pytest.mark.ray, pytest.mark.torch, pytest.mark.timeout(240)]

SCRIPT = Path(__file__).parents[1] / "users" / "torchrun_user.py"
DLJOB = [sys.executable, "-m", "dljob.cli", "torchrun"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    made = tmp_path_factory.mktemp("torchrun")
    (made / "sub").mkdir()
    (made / "sub" / "train.py").write_text(SCRIPT.read_text())
    (made / "sub" / "__init__.py").write_text("")
    chosen = made / "a python"
    chosen.write_text(f'#!/bin/sh\nOURS="a python" exec {sys.executable} "$@"\n')
    chosen.chmod(0o755)
    return made


def run(command: list[str], folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *words],
        cwd=folder,
        env={**os.environ, "DLJOB_HOME": str(folder / "home"), "NO_COLOR": "1", **env},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def seen(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """What the ranks printed, by rank. Warnings of torch's may be among it: a rank's log holds its stderr too."""
    assert done.returncode == 0, done.stderr
    told = re.findall(r"^\[default\d\]:({.*})$", done.stdout, re.MULTILINE)
    return sorted(map(json.loads, told), key=lambda rank: rank["env"]["RANK"])


@pytest.mark.parametrize(("what", "python"), [(["sub/train.py"], None), (["-m", "sub.train"], "a python")])
def test_a_script_sees_what_it_sees_under_torchrun(
    ray_here: RayHere, folder: Path, what: list[str], python: str | None
) -> None:
    script = [*what, "--lr", "3", "--debug", "--out=${local_rank}"]
    words = ["--tee=3", "--standalone", "--nproc-per-node=2", "--max-restarts=1", *script]
    chosen = {"PYTHON_EXEC": str(folder / python)} if python else {}
    theirs = seen(run(TORCHRUN, folder, *words, OURS="1", **chosen))
    ours = seen(run(DLJOB, folder, "--to", ray_here.address, *words, **chosen))
    for rank in theirs if python is None else []:
        rank["env"]["OURS"] = None  # a Ray that was there before has its own environment
    assert [(rank["argv"][-1], rank["env"]["OURS"]) for rank in ours] == [("--out=0", python), ("--out=1", python)]
    assert ours == theirs


def test_a_rank_that_is_killed_is_started_again_with_all_and_only_as_often_as_allowed(
    ray_here: RayHere, folder: Path
) -> None:
    env = f"FAULT=1 {sys.executable} -u sub/train.py"
    shell = ["--no-python", "--tee=3", "--to", ray_here.address, "--nnodes=2", "--nproc-per-node=1"]
    again = seen(run(DLJOB, folder, *shell, "--max-restarts=1", "env", *env.split()))
    assert [rank["env"]["TORCHELASTIC_RESTART_COUNT"] for rank in again] == ["1", "1"]
    assert [(rank["env"]["WORLD_SIZE"], rank["sum"]) for rank in again] == [("2", 3.0), ("2", 3.0)]
    failed = run(DLJOB, folder, *shell, "--name", "once", "env", *env.split())
    assert failed.returncode == 1
    assert "{" not in failed.stdout
    assert "error: job once failed: " in failed.stderr
    assert "default/1" in failed.stderr


def test_on_a_ray_of_its_own_the_shell_s_variables_are_the_script_s_and_the_logs_are_linked(folder: Path) -> None:
    words = ["--nproc-per-node=2", "--log-dir", "logs", "--tee", "1:3", "--redirects", "0:3", "sub/train.py"]
    done = run(DLJOB, folder, *words, OURS="yes")
    assert all(line.startswith("[default1]:") for line in done.stdout.splitlines())
    (told,) = seen(done)
    assert (told["env"]["OURS"], told["cwd"]) == ("yes", str(folder))
    (kept,) = (folder / "logs").iterdir()
    assert '"LOCAL_RANK": "0"' in (kept / "default-0.log").read_text()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_script_in_the_usual_form_goes_on_from_its_checkpoint_and_says_what_it_failed_of(
    ray_here: RayHere, folder: Path
) -> None:
    """record, env://, signal handlers, DDP, FSDP, saved and resumed: one rank is killed at step 3."""
    out = folder / "out"
    out.mkdir()
    script = str(SCRIPT.with_name("torchrun_forms.py"))
    words = ["--to", ray_here.address, "--nproc-per-node=2", "--no-python"]
    done = run(DLJOB, folder, *words, "--max-restarts=1", sys.executable, "-u", script, str(out))
    assert done.returncode == 0, done.stderr
    told = sorted(map(json.loads, re.findall(r"^{.*}$", done.stdout, re.MULTILINE)), key=lambda own: own["rank"])
    assert [(own["rank"], own["life"], own["first"], len(own["ddp"])) for own in told] == [(0, 1, 3, 3), (1, 1, 3, 3)]
    assert [own["ddp"] for own in told] == [own["fsdp"] for own in told], "both go on from the same step"

    failed = run(DLJOB, folder, *words, "env", "FAULT=record", sys.executable, "-u", script, str(folder / "none"))
    assert failed.returncode == 1
    assert "ValueError: the data set is empty" in failed.stdout + failed.stderr
