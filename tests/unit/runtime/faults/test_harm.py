"""Signals to processes: a child of the test is stopped, let go on, slowed and killed; the kernel says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dljob.runtime.faults.signals import Signals, processes_of_node


@pytest.fixture
def child() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process.pid
    process.kill()
    process.wait()


def change(pid: int) -> str:
    """The next change of a child's state."""
    _, status = os.waitpid(pid, os.WUNTRACED | os.WCONTINUED)
    if os.WIFSTOPPED(status):
        return "stopped"
    return "continued" if os.WIFCONTINUED(status) else signal.Signals(os.WTERMSIG(status)).name


def until(pid: int, last: str) -> list[str]:
    """The changes up to one; of two that come quickly the kernel may tell only the later."""
    seen = [change(pid)]
    while seen[-1] != last:
        seen.append(change(pid))
    return seen


def test_a_process_stopped_for_a_time_goes_on_after_it(child):
    hand = Signals()
    hand.stop([child], 1.0)  # what is continued before it came to stop, as on a busy machine, never changes its state
    assert set(until(child, "continued")) <= {"stopped", "continued"}
    hand.close()


def test_a_stopped_process_goes_on_when_the_injector_ends(child):
    hand = Signals()
    hand.stop([child], 600)
    assert change(child) == "stopped"
    hand.close()
    assert change(child) == "continued"


def test_a_process_stopped_for_ever_stays_stopped(child):
    hand = Signals()
    hand.stop([child], None)
    assert change(child) == "stopped"
    hand.close()
    hand.kill([child])
    assert change(child) == "SIGKILL"


def test_a_slowed_process_is_stopped_again_and_again_and_goes_on(child):
    hand = Signals()
    hand.slow([child], 2, 600)
    for _ in range(2):
        until(child, "stopped")
        until(child, "continued")
    hand.close()
    hand.kill([child])
    assert until(child, "SIGKILL")[-2:-1] != ["stopped"], "it was let go on at the end"


def test_a_slow_fault_ends_by_itself(child):
    hand = Signals()
    hand.slow([child], 3, 0.1)
    until(child, "continued")
    hand.close()
    hand.kill([child])
    assert until(child, "SIGKILL") == ["SIGKILL"]


def test_a_process_that_is_gone_is_not_harmed(child):
    hand = Signals()
    hand.kill([child])
    assert change(child) == "SIGKILL"
    hand.kill([child])
    hand.stop([child], None)


def test_the_processes_of_a_node_are_its_raylet_and_all_below():
    assert processes_of_node(os.getpid())[0] == os.getpid()


def test_a_node_is_announced_at_once_and_ends_after_its_seconds(child, monkeypatch):
    hooks: list[list[str]] = []

    class Hook:
        def __init__(self, command: list[str], **_: object) -> None:
            hooks.append(command)

        def kill(self) -> None:
            hooks.append(["killed"])

        wait = kill

    monkeypatch.setattr(subprocess, "Popen", Hook)
    hand = Signals()
    hand.leave("n-b", child, 1)
    assert [command[1:] for command in hooks] == [["-m", "dljob.runtime.leave", "1", "n-b"]]
    assert change(child) == "SIGKILL"
    hand.close()
    assert hooks[1:] == [["killed"], ["killed"]]


def test_a_node_that_was_announced_stays_when_the_injector_ends_first(child):
    hand = Signals()
    hand.leave("n-b", child, 600)
    hand.close()
    assert os.waitpid(child, os.WNOHANG) == (0, 0)
