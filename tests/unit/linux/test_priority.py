"""The priority of PrimeMaster, the gateway and the node agents, and of ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from dljob.linux import priority


def test_every_thread_of_the_process_is_raised_and_a_refusal_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []

    def refused(*words: int) -> None:
        asked.append(words)
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "setpriority", refused)
    done = threading.Event()
    beside = threading.Thread(target=done.wait)
    beside.start()
    priority.raise_priority()
    done.set()
    beside.join()
    threads = (threading.get_native_id(), beside.native_id)
    assert {(os.PRIO_PROCESS, thread, priority.NICENESS) for thread in threads} <= set(asked)


def in_a_child(program: str) -> str:
    """Return what a program prints that begins as a process without a right to a higher priority."""
    begin = (
        "import os, resource, threading\n"
        "from dljob.linux.priority import PriorityError, RankNiceness\n"
        "rank = RankNiceness()\n"
        "def lose_rights():\n"
        "    resource.setrlimit(resource.RLIMIT_NICE, (0, 0))\n"
        "    if os.geteuid() == 0:\n"
        "        os.setgroups([])\n"
        "        os.setuid(65534)\n"
    )
    command = [sys.executable, "-c", begin + program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_niceness_is_added_once_to_all_threads_that_share_it_and_to_what_they_start() -> None:
    printed = in_a_child(
        "base, done, ready = os.nice(0), threading.Event(), threading.Event()\n"
        "def other():\n"
        "    os.setpriority(os.PRIO_PROCESS, 0, min(19, base + 1))\n"
        "    ready.set()\n"
        "    done.wait()\n"
        "beside = [threading.Thread(target=done.wait), threading.Thread(target=other)]\n"
        "for thread in beside: thread.start()\n"
        "ready.wait()\n"
        "rank.add(0)\n"
        "changes = [os.nice(0) - base]\n"
        "for _ in range(2):\n"
        "    rank.add(2)\n"
        "    changes += [os.getpriority(os.PRIO_PROCESS, thread.native_id) - base for thread in beside]\n"
        "print(*changes, os.nice(0) - base, int(os.popen('nice').read()) - base)\n"
        "done.set()\n"
    )
    most = 19 - os.nice(0)
    assert [int(word) for word in printed.split()] == [min(most, each) for each in (0, 2, 1, 2, 1, 2, 2)]


def test_a_higher_priority_that_the_system_refuses_is_an_error_that_says_what_is_missing() -> None:
    printed = in_a_child(
        "base = os.nice(0)\n"
        "lose_rights()\n"
        "try:\n"
        "    rank.add(-3)\n"
        "except PriorityError as error:\n"
        "    print(error)\n"
        "print(os.nice(0) - base)\n"
    )
    message, change = printed.splitlines()
    niceness = os.nice(0) - 3
    assert message.startswith(f"nice: -3 asks for niceness {niceness} instead of {niceness + 3}: Permission denied. ")
    assert "CAP_SYS_NICE" in message
    assert f"RLIMIT_NICE {20 - niceness} (ulimit -e)" in message
    assert change == "0"
