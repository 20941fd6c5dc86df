"""`make setup` tells what it does before each step that takes long."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_each_step_of_setup_is_announced() -> None:
    ran = subprocess.run(
        ["make", "--dry-run", "--always-make", "setup"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    commands = ran.stdout.splitlines()
    for long in (" -m venv ", " install ", " sync "):
        (at,) = [n for n, command in enumerate(commands) if long in command]
        assert commands[at - 1].startswith('echo "setup '), commands
    assert "--quiet" not in next(command for command in commands if " sync " in command)
