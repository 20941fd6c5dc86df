"""The fork host's client of its fork server: starts it, sends orders, and delivers its events."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dljob.runtime.forked_workers import clean_process
from dljob.runtime.forked_workers.clean_process import CleanProcess
from dljob.runtime.forked_workers.server import FOLDER
from dljob.runtime.process.preload import Preload
from dljob.runtime.worker import forkserver
from dljob.runtime.worker.forkserver import MESSAGE_BYTES, send_order

log = logging.getLogger(__package__)

_BOOT = """import json, sys
boot = json.loads(sys.argv.pop())
sys.path[:] = boot.pop("path") or [path for path in sys.path if path]
from dljob.runtime.worker.forkserver import main
main(**boot)
"""
_RAYS = ("RAY_JOB_ID", "RAY_RAYLET_PID", FOLDER)
"""Variables of Ray's own workers. In a rank they would mislead a Ray that user code starts."""

Event = Mapping[str, Any]


def environ_of(env: Mapping[str, str], without: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the environment of a fork server below this process: with these variables, and without those."""
    return {name: value for name, value in {**os.environ, **env}.items() if name not in (*_RAYS, *without)}


class Helper:
    """A fork server below this process.

    One thread calls `on_event` with each event of the server, and `on_gone` at the server's end. Ranks do not inherit
    the variables named in `without`. `python` is another interpreter, which keeps an import path of its own and finds
    dljob by the PYTHONPATH in `env`. Without it, the server is forked from a template that has torch, where there is
    one.
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
        environ = environ_of(env, without)
        self._link, self._theirs = ours, theirs
        self._made: Future[CleanProcess | subprocess.Popen[bytes]] = Future()
        self._on_event = on_event
        self._on_gone = on_gone
        self._pid = 0
        self.imported: int = 0
        """How many of `preload.imports` the server has done, from the first on."""
        self.up = threading.Event()
        make = functools.partial(self._make, preload, environ, python)
        threading.Thread(target=self._read, args=(make,), name="dljob-helper", daemon=True).start()

    def _make(
        self, preload: Preload, environ: Mapping[str, str], python: str
    ) -> CleanProcess | subprocess.Popen[bytes]:
        """Return the server's process: forked from a template where there is one, which may have to import torch."""
        fd, told = self._theirs.fileno(), asdict(preload)
        if not python:
            with Path(os.devnull).open("rb") as null:
                program = (forkserver.__name__, {"preload": told})
                made = clean_process.forked(program, preload.modules, environ, (null.fileno(), 1, 2, fd))
            if made is not None:
                return made
        boot = {"path": [] if python else [p for p in sys.path if p], "fd": fd, "preload": told}
        return subprocess.Popen(
            [python or sys.executable, "-c", _BOOT, json.dumps(boot)],
            env=environ,
            stdin=subprocess.DEVNULL,
            pass_fds=(fd,),
            start_new_session=True,
        )

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
        with contextlib.suppress(subprocess.TimeoutExpired, TimeoutError):
            return self._made.result(timeout_s).wait(timeout_s)
        return None

    def _read(self, make: Callable[[], CleanProcess | subprocess.Popen[bytes]]) -> None:
        try:
            self._made.set_result(make())
        except OSError as error:
            self._made.set_exception(error)
            log.error("the fork server does not start: %s", error)
        self._theirs.close()
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
        with contextlib.suppress(OSError):
            self._made.result().wait()
        self._on_gone()


def _tell(early: Mapping[str, Any]) -> None:
    """Log what the server has imported for its ranks, and why not more."""
    if early["kept"] or early["left"]:
        kept, rest = ", ".join(early["kept"]) or "nothing", f"; not more: {early['left']}" if early["left"] else ""
        log.info("imported for the ranks of a script, before they are forked: %s%s", kept, rest)
