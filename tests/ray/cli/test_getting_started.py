"""The pages for newcomers: their commands run as written, in their order, and print what is shown."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pages import BLOCKS, Block
from patience import patience

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

HERE = "test_the_commands_of_the_page_run_in_their_order"


def masked(line: str) -> str:
    """A printed line without what differs from run to run: numbers, times, blanks, and the cause of a restart.

    A busy node may tell too late how a process ended; the tests of causes wait for it.
    """
    line = re.sub(r"(Restarting \S+ \[\w+\]): .*", r"\1", line)
    line = re.sub(r"\b(\d+h)?(\d+m\d+s|\d+m|[\d.]+ s)\b", "0 s", line)
    return " ".join(re.sub(r"\d[\d.:TZ-]*", "0", line).split())


def steps(page: str, test: str) -> list[tuple[str, list[str]]]:
    """Command -> the lines shown below it, of the blocks that name a test."""
    found: list[tuple[str, list[str]]] = []
    for block in (one for one in BLOCKS if (one.page, one.kind) == (page, "commands") and one.value.endswith(test)):
        for line in block.text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def block_of(page: str, kind: str) -> Block:
    return next(block for block in BLOCKS if block.page == page and block.kind == kind)


def walk(page: str, test: str, folder: Path) -> None:
    """Run the commands of a page as a reader does, and look for what it shows below each."""
    environment = {**os.environ, "DLJOB_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    for command, shown in steps(page, test):
        words = shlex.split(command, comments=True)
        if words[0] == "cd":
            folder = folder / words[1]
            continue
        done = subprocess.run(
            [sys.executable, "-m", "dljob.cli", *words[1:]],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=patience(180),
            check=False,
        )
        assert words[0] == "dljob"
        printed = {masked(line) for line in (done.stdout + done.stderr).splitlines()}
        assert [line for line in shown if masked(line) not in printed] == [], done.stdout + done.stderr


def test_the_commands_of_the_page_run_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "faults.yaml").write_text(block_of("getting-started.md", "faults").text)
    walk("getting-started.md", HERE, tmp_path)
    assert (tmp_path / "first" / "job.html").stat().st_size > 10_000


def test_the_tutorial_learns_and_loses_two_processes(tmp_path: Path) -> None:
    for name, kind in {"rl.py": "python", "dljob.yaml": "manifest", "faults.yaml": "faults"}.items():
        (tmp_path / name).write_text(block_of("tutorial.md", kind).text)
    walk("tutorial.md", "test_the_tutorial_learns_and_loses_two_processes", tmp_path)
    (status,) = [json.loads(path.read_text()) for path in tmp_path.glob("home/jobs/*/status.json")]
    assert status["progress"]["metrics"]["reward"] > 0.9
