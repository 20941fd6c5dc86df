"""The title of a process, as ps reads it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dljob.linux.process_title import set_title

PROGRAM = """
import os, subprocess, sys
from dljob.linux.process_title import set_title
os.environ["KEPT"] = "kept"
set_title(sys.argv[1])
ps = ["ps", "-ww", "-o", "args=", "-p", str(os.getpid())]
print(subprocess.run(ps, capture_output=True, text=True).stdout.rstrip())
print(sys.argv[1] == sys.argv[-1], os.environ["KEPT"], os.environ["PATH"] != "")
"""


@pytest.mark.parametrize("title", ["dljob: train.py default/1", "x", "dljob: ñ.py a/0", "y" * 3000])
def test_ps_shows_the_title_and_neither_arguments_nor_environment_change(title: str) -> None:
    command = [sys.executable, "-c", PROGRAM, title]
    shown, kept = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert shown == title
    assert kept == "True kept True"


def test_a_title_longer_than_the_command_line_is_cut() -> None:
    command = [sys.executable, "-c", PROGRAM.replace("set_title(sys.argv[1])", "set_title('z' * 9000)"), "x"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    assert set(shown) == {"z"}
    assert len(shown) < 2000


def test_without_proc_the_title_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Path("/proc/self/cmdline").read_bytes()
    monkeypatch.setattr(Path, "read_text", lambda _: "1 (python) S 1")
    set_title("dljob: train.py default/1")
    assert Path("/proc/self/cmdline").read_bytes() == before
