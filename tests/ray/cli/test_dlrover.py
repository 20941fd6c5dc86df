"""A script of DLRover's unified API, unchanged: the forms of its tutorials, in one job on a Ray of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience

pytestmark = [pytest.mark.ray, pytest.mark.torch, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).parents[1] / "users" / "others" / "dlrover_user.py"


@pytest.mark.slow
def test_a_script_of_dlrover_runs_unchanged_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "dlrover_user.py").write_text(SCRIPT.read_text())
    (tmp_path / "out.d").mkdir()
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-m", "dljob.compat", "--dlrover", "dlrover_user.py", str(out)],
        cwd=tmp_path,
        env={**os.environ, "DLJOB_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=patience(180),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text()) == {
        "job": "Their_Job",
        "role": "TRAINER",
        "config": 3,
        "call": ["top", "top", "plain", "plain"],
        "scatter": [[3], [8]],
        "batch": [2, 4, 6, 8, 10, 10, 5],
        "proxy": ["Hello, you!", 5],
        "error": "'no such thing'",
        "queue": [["from 0", "from 1"], []],
        "stage": "RUNNING",
        "roles": {"actor_rollout": 2, "helper": 1, "TRAINER": 1, "ELASTIC": 2},
        "nobody": [],
        "ended": ["pong"],
    }
    ranks = [json.loads((tmp_path / "out.d" / f"rank-{rank}").read_text()) for rank in (0, 1)]
    for rank, (begun, seen, steps) in enumerate(ranks):
        # Rank 0 may not have saved step 3 when rank 1 was killed behind it.
        assert begun in (2, 3)
        assert (seen, steps) == ([2 * step + rank for step in range(begun, 5)], 5 - begun)
    assert (tmp_path / "out.d" / "dlrover_latest.txt").read_text() == "2"
    assert (tmp_path / "out.d" / "2" / "rank_0.pt").is_file()
