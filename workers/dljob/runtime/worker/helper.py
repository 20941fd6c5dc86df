"""The fork host's client of its fork server: starts it, sends orders, and delivers its events."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from dljob.runtime.process.preload import Preload
from dljob.runtime.worker.forkserver import MESSAGE_BYTES, send_order

log = logging.getLogger(__package__)

_BOOT = """import json, sys
boot = json.loads(sys.argv.pop())
sys.path[:] = boot.pop("path") or [path for path in sys.path if path]
from dljob.runtime.worker.forkserver import main
main(**boot)
"""
_RAYS = ("RAY_JOB_ID", "RAY_RAYLET_PID")
"""Variables that Ray sets for its own workers. In a rank they would mislead a Ray that user code starts."""

Event = Mapping[str, Any]


class Helper:
    """A fork server below this process.

    One thread calls `on_event` with each event of the server, and `on_gone` at the server's end. Ranks do not inherit
    the variables named in `without`. `python` is another interpreter, which keeps an import path of its own and finds
    dljob by the PYTHONPATH in `env`.
    """

    def __init__(
        self,
        preload: Preload,
        env: Mapping[str, str],
        on_event: Callable[[Event], None],
        on_gone: Callable[[], None],
        without: tuple[str, ...] = (),
        *,
        python: str = "",
    ) -> None:
        # SEQPACKET keeps message boundaries, and supervisors in other processes can write to the same socket.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MESSAGE_BYTES)
        boot = {"path": [] if python else [p for p in sys.path if p], "fd": theirs.fileno(), "preload": asdict(preload)}
        environ = {k: v for k, v in {**os.environ, **env}.items() if k not in (*_RAYS, *without)}
        self._process = subprocess.Popen(
            [python or sys.executable, "-c", _BOOT, json.dumps(boot)],
            env=environ,
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        theirs.close()
        self._link = ours
        self._on_event = on_event
        self._on_gone = on_gone
        self._pid = 0
        self.imported: int = 0
        """How many of `preload.imports` the server has done, from the first on."""
        self.up = threading.Event()
        threading.Thread(target=self._read, name="dljob-helper", daemon=True).start()

    @property
    def pid(self) -> int:
        """The fork server's pid; 0 until it is up."""
        return self._pid

    def order(self, op: str, rank: int, incarnation: int, **details: Any) -> None:
        """Send an order. One that cannot be sent is dropped: the server is gone, and `on_gone` follows."""
        send_order(self._link, {"op": op, "rank": rank, "incarnation": incarnation, **details})

    def close(self) -> None:
        """Close the connection, at which the fork server ends all ranks and then itself."""
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the fork server's end; return its exit code, None after `timeout_s`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def _read(self) -> None:
        while True:
            try:
                message = self._link.recv(MESSAGE_BYTES)
            except OSError:
                message = b""
            if not message:
                break
            event = json.loads(message)
            if event["event"] == "up":
                self._pid = event["pid"]
                self.imported = event["early"]["done"]
                _tell(event["early"])
                self.up.set()
            else:
                self._on_event(event)
        self._link.close()
        self._process.wait()
        self._on_gone()


def _tell(early: Mapping[str, Any]) -> None:
    """Log what the server has imported for its ranks, and why not more."""
    if early["kept"] or early["left"]:
        kept, rest = ", ".join(early["kept"]) or "nothing", f"; not more: {early['left']}" if early["left"] else ""
        log.info("imported for the ranks of a script, before they are forked: %s%s", kept, rest)
