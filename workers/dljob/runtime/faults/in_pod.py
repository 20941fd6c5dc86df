"""The part of `dljob chaos -k` that runs inside a pod: its source is sent as `python -c SOURCE ORDER`.

It imports the standard library alone, since a pod may hold another dljob, or none that `python` finds. The order is
JSON; the first line of the answer too. What it has stopped goes on when its time is over, when stdin has a line, or
when stdin ends, which is how it learns that the command is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

PERIOD_S = 0.2
"""Seconds of one cycle of a slowed process, as in `signals`."""
_NEW, _DELETE = 36, 37
"""RTM_NEWQDISC and RTM_DELQDISC of linux/rtnetlink.h."""
_ACKNOWLEDGED, _EXCLUSIVE = 0x5, 0x600
_ROOT = 0xFFFFFFFF


def titled(title: str, proc: Path = Path("/proc")) -> list[int]:
    """Return the processes whose command line begins with a title, or whose program has this name."""
    pids: list[int] = []
    for folder in proc.iterdir():
        with contextlib.suppress(OSError, ValueError):
            number = int(folder.name)
            program = (folder / "cmdline").read_bytes().split(b"\0")[0]
            # Ray's actors have a title, its own programs the path of their file.
            if program.startswith(title.encode()) or program.endswith(f"/{title}".encode()):
                pids.append(number)
    return sorted(pids)


def of_container(proc: Path = Path("/proc")) -> list[int]:
    """Return the descendants of the container's first process: no other `exec` is one of them.

    The first process itself takes no SIGSTOP from inside of its namespace.
    """
    parents: dict[int, int] = {}
    for folder in proc.iterdir():
        with contextlib.suppress(OSError, ValueError):
            number = int(folder.name)
            # The name in parentheses may hold spaces.
            parents[number] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    return sorted(pid for pid in parents if pid != 1 and _descends(pid, parents))


def _descends(pid: int, parents: dict[int, int]) -> bool:
    visited_pids: set[int] = set()
    while pid > 1 and pid not in visited_pids:
        visited_pids.add(pid)
        pid = parents.get(pid, 0)
    return pid == 1


def open_pidfds(pids: list[int]) -> dict[int, int]:
    """Return pid -> pidfd of those that exist: a reused pid is never hit."""
    pidfds: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            pidfds[pid] = os.pidfd_open(pid)
    return pidfds


def send(fds: dict[int, int], number: signal.Signals) -> None:
    """Send a signal to those that still exist."""
    for fd in fds.values():
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, number)


def wait_for_line(seconds: float | None) -> bool:
    """Wait for a line or the end of stdin; return whether it came within `seconds`."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def strike(order: dict[str, Any], fds: dict[int, int]) -> None:
    """Send the signals of a fault; those of a fault that lasts until its end."""
    if order["do"] == "kill":
        send(fds, signal.SIGKILL)
    elif order["do"] == "stop":
        send(fds, signal.SIGSTOP)
        # Without a time a stop stays, as on a machine: a hang that nobody ends.
        if order["seconds"] is not None:
            wait_for_line(order["seconds"])
            send(fds, signal.SIGCONT)
    else:
        end, factor = time.monotonic() + order["seconds"], order["factor"]
        while time.monotonic() < end:
            send(fds, signal.SIGSTOP)
            over = wait_for_line(PERIOD_S * (factor - 1) / factor)
            send(fds, signal.SIGCONT)
            if over or wait_for_line(PERIOD_S / factor):
                break


def qdisc(kind: int, name: str, index: int) -> int:
    """Set or delete the queueing discipline `blackhole` at the root of an interface; return the error number."""
    word = b"blackhole\0"
    attribute = struct.pack("HH", 4 + len(word), 1) + word
    attribute += b"\0" * (-len(attribute) % 4)
    body = struct.pack("BBHiIII", 0, 0, 0, index, 0, _ROOT, 0) + attribute
    flags = _ACKNOWLEDGED | (_EXCLUSIVE if kind == _NEW else 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as line:
        line.send(struct.pack("IHHII", 16 + len(body), kind, flags, 1, 0) + body)
        error: int = struct.unpack_from("i", line.recv(4096), 16)[0]
    if error and kind == _NEW:
        raise OSError(-error, f"{os.strerror(-error)}: interface {name}")
    return -error


def cut(seconds: float) -> None:
    """Drop all that the pod sends, for a time, or until SIGTERM; its loopback stays."""
    lines = [(index, name) for index, name in socket.if_nameindex() if name != "lo"]
    # Blocked before the first cut: a signal in between would leave it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    done: list[tuple[int, str]] = []
    try:
        for index, name in lines:
            qdisc(_NEW, name, index)
            done.append((index, name))
        _say({"hit": [name for _, name in done]})
        signal.sigtimedwait([signal.SIGTERM], seconds)
    finally:
        for index, name in done:
            qdisc(_DELETE, name, index)


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main(order: dict[str, Any]) -> int:
    """Carry out an order; return the exit code."""
    if order["do"] == "cut":
        cut(order["seconds"])
        return 0
    if order["do"] == "end":
        os.kill(1, signal.SIGTERM)
        return 0
    pids = [
        *order["pids"],
        *(titled(order["title"]) if order["title"] else []),
        *(of_container() if order["all"] else []),
    ]
    fds = open_pidfds(pids)
    # Of several processes with one title nobody knows whose they are.
    wrong = f"{len(fds)} processes are called {order['title']}" if order["title"] and len(fds) != 1 else ""
    _say({"hit": sorted(fds), "wrong": wrong, "time": time.time()})
    if not wrong:
        strike(order, fds)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
