"""The code blocks of README and the how-tos that want a Ray, all of them on one that `dljob run` would bring."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pages import BLOCKS
from patience import patience

KITS = Path(__file__).parents[1] / "kits"
pytestmark = [pytest.mark.ray, pytest.mark.torch, pytest.mark.timeout(600)]


@pytest.mark.slow
def test_the_blocks_of_the_pages_run_on_this_machine(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "DLJOB_"))}
    done = subprocess.run(
        [sys.executable, KITS / "pages_run.py", tmp_path],
        env={**env, "DLJOB_HOME": os.fspath(tmp_path / "home"), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=patience(300),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["wrong"] == {}, "\n".join(said["wrong"].values())
    assert said["ran"] >= 25
    assert {block.id for block in BLOCKS if block.key == "in a job"} <= set(said["blocks"])
