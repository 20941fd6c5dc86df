"""The fork host's client of its fork server: starts it, sends orders, and delivers its events."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
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

# Not by -P, which the ranks would inherit: no file of the current folder may stand in for json.
_BOOT = """import sys
sys.path[:] = filter(None, sys.path)
import json
boot = json.loads(sys.argv.pop())
sys.path[:] = boot.pop("path") or sys.path
from dljob.runtime.worker.forkserver import main
main(**boot)
"""
_RAYS = ("RAY_JOB_ID", "RAY_RAYLET_PID", FOLDER)
"""Variables of Ray's own workers. In a rank they would mislead a Ray that user code starts."""

END_S = 10.0
"""Most seconds to wait for the process of a server whose link has broken."""
Event = Mapping[str, Any]
Process = CleanProcess | subprocess.Popen[bytes]


def environ_of(env: Mapping[str, str], without: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the environment of a fork server below this process: with these variables, and without those."""
    return {name: value for name, value in {**os.environ, **env}.items() if name not in (*_RAYS, *without)}


class Helper:
    """A fork server below this process.

    One thread calls `on_event` with each event of the server, and `on_gone` at the server's end. Ranks do not inherit
    the variables named in `without`. `python` is another interpreter, which keeps an import path of its own and finds
    dljob by the PYTHONPATH in `env`. Without it, the server is forked from a template that has torch, where there is
    one, and has `import_path` (this process's by default).
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
        import_path: Sequence[str] = (),
    ) -> None:
        self._on_event = on_event
        self._on_gone = on_gone
        self._made: Future[Process] = Future()
        self._lock = threading.Lock()
        self._link: socket.socket | None = None
        self._closed = False
        self._pid, self._pidfd = 0, -1
        self.imported: int = 0
        """How many of `preload.imports` the server has done, from the first on."""
        self.up = threading.Event()
        start = functools.partial(_start, preload, environ_of(env, without), python, import_path or sys.path)
        threading.Thread(target=self._read, args=(start,), name="dljob-helper", daemon=True).start()

    @property
    def pid(self) -> int:
        """The fork server's pid; 0 until it is up."""
        return self._pid

    def order(self, op: str, rank: int, incarnation: int, **details: Any) -> None:
        """Send an order to a server that is up. One that cannot be sent is dropped: `on_gone` follows."""
        if self._link is not None:
            send_order(self._link, {"op": op, "rank": rank, "incarnation": incarnation, **details})

    def close(self) -> None:
        """Close the connection, at which the fork server ends all ranks and then itself."""
        with self._lock:
            self._closed = True
            if self._link is not None:
                with contextlib.suppress(OSError):
                    self._link.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """End the fork server at once, and its ranks with it: it may be no descendant of this process."""
        with contextlib.suppress(OSError):
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the fork server's end; return its exit code, None after `timeout_s`."""
        with contextlib.suppress(subprocess.TimeoutExpired, TimeoutError):
            return self._made.result(timeout_s).wait(timeout_s)
        return None

    def _read(self, start: Callable[[], tuple[socket.socket, Process]]) -> None:
        try:
            link, made = start()
        except OSError as error:
            self._made.set_exception(error)
            log.error("the fork server does not start: %s", error)
            self._on_gone()
            return
        with self._lock:
            self._link = link
        self._made.set_result(made)
        if self._closed:
            self.close()
        while message := _received(link):
            event = json.loads(message)
            if event["event"] == "up":
                self._came_up(event)
            else:
                self._on_event(event)
        link.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a template that is stopped would hold its end back
            made.wait(END_S)
        self._on_gone()

    def _came_up(self, event: Event) -> None:
        self._pid = event["pid"]
        with contextlib.suppress(OSError):  # it has ended again
            self._pidfd = os.pidfd_open(self._pid)
        self.imported = event["early"]["done"]
        _tell(event["early"])
        self.up.set()


def _start(
    preload: Preload, environ: Mapping[str, str], python: str, import_path: Sequence[str]
) -> tuple[socket.socket, Process]:
    """Return a server's link and process: from a template where there is one, which may have to import torch first."""
    told = {"preload": asdict(preload), "path": [] if python else [each for each in import_path if each]}
    if not python:
        ours, theirs = _pair()
        with theirs, Path(os.devnull).open("rb") as null:
            files = null.fileno(), 1, 2, theirs.fileno()
            made = clean_process.forked((forkserver.__name__, told), preload.modules, environ, files)
        if made is not None:
            return ours, made
        # Not this link again: a template that is slow may fork a server for it yet.
        ours.close()
    ours, theirs = _pair()
    with theirs:
        boot = {**told, "fd": theirs.fileno()}
        return ours, subprocess.Popen(
            [python or sys.executable, "-c", _BOOT, json.dumps(boot)],
            env=environ,
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )


def _pair() -> tuple[socket.socket, socket.socket]:
    """Return the ends of a link: SEQPACKET keeps message boundaries, and supervisors write to the server's end, too."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MESSAGE_BYTES)
    return ours, theirs


def _received(link: socket.socket) -> bytes:
    try:
        return link.recv(MESSAGE_BYTES)
    except OSError:
        return b""


def _tell(early: Mapping[str, Any]) -> None:
    """Log what the server has imported for its ranks, and why not more."""
    if early["kept"] or early["left"]:
        kept, rest = ", ".join(early["kept"]) or "nothing", f"; not more: {early['left']}" if early["left"] else ""
        log.info("imported for the ranks of a script, before they are forked: %s%s", kept, rest)
