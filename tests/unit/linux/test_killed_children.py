"""Children that SIGKILL has ended, by the objects that an exception's frames hold."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import subprocess
from collections.abc import Callable

import pytest

from dljob.linux.killed_children import pids

FORK = multiprocessing.get_context("fork")


def command(number: int) -> tuple[int, object]:
    process = subprocess.Popen(["sleep", "60"])
    process.send_signal(number)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    return process.pid, process


def loader(number: int) -> tuple[int, object]:
    process = FORK.Process(target=signal.pause)
    process.start()
    pid = process.pid or 0
    os.kill(pid, number)
    process.join()
    return pid, process


class Holder:
    def __init__(self, part: object) -> None:
        self.parts = {"a": [part]}


class Hostile:
    @property
    def __dict__(self) -> dict[str, object]:  # type: ignore[override]
        raise RuntimeError


Make = Callable[[int], tuple[int, object]]


def caught(
    make: Callable[[int], tuple[int, object]], number: int, hold: Callable[[object], object]
) -> tuple[int, object]:
    pid, process = make(number)
    hostile, held = Hostile(), hold(process)
    del process
    try:
        raise queue.Empty(type(hostile), type(held))
    except queue.Empty as error:
        return pid, pids(error)
    finally:
        if isinstance(held, subprocess.Popen):
            held.wait()


@pytest.mark.parametrize("make", [command, loader])
def test_a_killed_child_is_found(make: Make) -> None:
    pid, found = caught(make, signal.SIGKILL, lambda process: process)
    assert found == (pid,)


def test_a_killed_child_is_found_in_what_holds_it() -> None:
    pid, found = caught(loader, signal.SIGKILL, Holder)
    assert found == (pid,)


@pytest.mark.parametrize("make", [command, loader])
def test_a_child_that_ended_otherwise_is_none(make: Make) -> None:
    assert caught(make, signal.SIGTERM, lambda process: process)[1] == ()
