"""The part of `dljob chaos -k` that runs in a pod, as it is sent there: on this machine's own processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from inspect import getsource
from pathlib import Path
from typing import Any

import pytest

from dljob.runtime.faults import in_pod

USUAL = {"pids": [], "title": "", "all": False, "seconds": None, "factor": 2}


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    yield process
    for number in (signal.SIGCONT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            process.send_signal(number)
    process.wait()


def start(**order: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", getsource(in_pod), json.dumps({**USUAL, **order})]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def first(running: subprocess.Popen[str]) -> dict[str, Any]:
    assert running.stdout
    return json.loads(running.stdout.readline())


def next_change(pid: int, options: int) -> int:
    """Wait for the next end, stop or resumption of a child; returns its status."""
    return os.waitpid(pid, options)[1]


def test_a_process_is_killed_and_one_that_is_gone_left_out(victim):
    with start(do="kill", pids=[victim.pid, 2**22 - 1]) as running:
        answer = first(running)
    assert (answer["hit"], answer["wrong"], running.returncode) == ([victim.pid], "", 0)
    assert victim.wait() == -signal.SIGKILL


def test_a_stopped_process_goes_on_when_the_connection_breaks(victim):
    with start(do="stop", pids=[victim.pid], seconds=3600) as running:
        assert first(running)["hit"] == [victim.pid]
        assert os.WIFSTOPPED(next_change(victim.pid, os.WUNTRACED))
        assert running.stdin
        running.stdin.close()
        assert os.WIFCONTINUED(next_change(victim.pid, os.WCONTINUED))
    assert running.returncode == 0


def test_a_stop_without_a_time_stays(victim):
    with start(do="stop", pids=[victim.pid]) as running:
        first(running)
    assert os.WIFSTOPPED(next_change(victim.pid, os.WUNTRACED))
    assert os.waitpid(victim.pid, os.WCONTINUED | os.WNOHANG) == (0, 0)


def test_a_slow_process_runs_again_after_a_line(victim):
    with start(do="slow", pids=[victim.pid], seconds=3600, factor=4) as running:
        first(running)
        assert os.WIFSTOPPED(next_change(victim.pid, os.WUNTRACED))
        assert running.stdin
        running.stdin.write("\n")
        running.stdin.flush()
        running.wait()
    status = (Path("/proc") / str(victim.pid) / "stat").read_text().rpartition(")")[2].split()[0]
    assert status in "SR"


def test_of_several_processes_with_one_title_none_is_hit(tmp_path):
    for number, words in {"7": b"ray::PrimeMaster.wait\0", "8": b"ray::PrimeMaster\0", "9": b"/x/raylet\0--a"}.items():
        (tmp_path / number).mkdir()
        (tmp_path / number / "cmdline").write_bytes(words)
    (tmp_path / "self").mkdir()
    assert in_pod.titled("ray::PrimeMaster", tmp_path) == [7, 8]
    assert in_pod.titled("raylet", tmp_path) == [9]
    with start(do="kill", title="no such program") as running:
        assert first(running)["wrong"] == "0 processes are called no such program"
    assert running.returncode == 1


def test_all_of_a_container_are_its_first_processs_descendants(tmp_path):
    for number, parent in {1: 0, 2: 1, 3: 2, 40: 0, 41: 40, 50: 60}.items():
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "stat").write_text(f"{number} (a b) S {parent} 1 1")
    assert in_pod.of_container(tmp_path) == [2, 3]
