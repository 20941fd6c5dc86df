"""Starts operators fast: each is forked from a process that has imported kopf and the operator already.

The imports take seconds of CPU, and a sweep starts some hundred operators. stdin has a JSON line for each: `{"id",
"flags", "env", "log"}`, or `{"kill": id}`; stdout one for each that ended: `{"id", "code"}`.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
import traceback
from typing import Any, NoReturn

import mortal


def child(order: dict[str, Any]) -> NoReturn:
    """Run an operator in the forked child."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for fd in (1, 2):
            os.dup2(log, fd)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.update(order["env"])
        mortal.run(order["flags"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - nothing of a child goes on in the parent's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Fork operators as ordered until stdin ends."""
    awake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(wake)
    looks = selectors.DefaultSelector()
    looks.register(0, selectors.EVENT_READ)
    looks.register(awake, selectors.EVENT_READ)
    pids: dict[int, int] = {}
    text = b""
    while True:
        for key, _ in looks.select():
            data = os.read(key.fd, 1 << 16)
            if key.fd == awake:
                continue
            if not data:
                for pid in pids.values():
                    os.kill(pid, signal.SIGKILL)
                return
            *lines, text = (text + data).split(b"\n")
            for line in lines:
                obey(json.loads(line), pids)
        collect(pids)


def obey(order: dict[str, Any], pids: dict[int, int]) -> None:
    """Start or end an operator."""
    if "kill" in order:
        if pid := pids.get(order["kill"]):
            os.kill(pid, signal.SIGKILL)
        return
    pid = os.fork()
    if not pid:
        child(order)
    pids[order["id"]] = pid


def collect(pids: dict[int, int]) -> None:
    """Report the operators that ended."""
    for number, pid in list(pids.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            del pids[number]
            print(json.dumps({"id": number, "code": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    main()
