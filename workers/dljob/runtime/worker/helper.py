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
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dljob.runtime.forked_workers import clean_process
from dljob.runtime.forked_workers.clean_process import CleanProcess
from dljob.runtime.forked_workers.server import FOLDER
from dljob.runtime.process.outcome import signal_name
from dljob.runtime.process.preload import Preload
from dljob.runtime.worker import forkserver
from dljob.runtime.worker.forkserver import MESSAGE_BYTES, send_order

log = logging.getLogger(__package__)

# Not by -P, which the ranks would inherit: no file of the current folder may stand in for json.
_BOOT = """import sys
sys.path[:] = filter(None, sys.path)
import json
boot = json.loads(sys.argv.pop())
path = boot.pop("path")
sys.path[:] = dict.fromkeys([*sys.path, *path]) if boot.pop("keeps_path") else path or sys.path
from dljob.runtime.worker.forkserver import main
main(**boot)
"""
_RAY_VARIABLES = ("RAY_JOB_ID", "RAY_RAYLET_PID", FOLDER)
"""Variables of Ray's own workers. In a rank they would mislead a Ray that user code starts."""

EARLY_IMPORTS_S = 120.0
"""Most seconds from the start of a server to the end of its early imports, a template's included.

Then it is replaced by one that imports nothing, and each rank imports for itself: a file system that needs 100 s for
torch keeps the gain, and a slower one loses only that.
"""
END_S = 10.0
"""Most seconds to wait for the process of a server whose link has broken."""
Event = Mapping[str, Any]
Process = CleanProcess | subprocess.Popen[bytes]


def environ_of(env: Mapping[str, str], without: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the environment of a fork server below this process: with these variables, and without those."""
    return {name: value for name, value in {**os.environ, **env}.items() if name not in (*_RAY_VARIABLES, *without)}


class Helper:
    """A fork server below this process.

    One thread calls `on_event` with each event of the server, and `on_gone` at the server's end. A server whose early
    imports hang or end it is replaced, once, by one that imports nothing early. Ranks do not inherit the variables
    named in `without`. `python` is another interpreter, which has `import_path` behind an import path of its own and
    finds dljob by the PYTHONPATH in `env`. Without it, the server is forked from a template that has torch, where
    there is one, and has `import_path` (this process's by default).
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
        self._preload = preload
        self._process: Future[Process] = Future()
        self._importing: tuple[str, float] = "", 0.0
        """Which module the server imports, empty before the first, and since when."""
        self._lock = threading.Lock()
        self._link: socket.socket | None = None
        self._closed = False
        self._pid, self._pidfd = 0, -1
        self.import_count: int = 0
        """How many of `preload.imports` the server has done, from the first on."""
        self.failure = ""
        """Which early import hung or ended the first server; empty if none did."""
        self.failure_code: int | None = None
        """The exit code of the server that an early import ended."""
        self.up = threading.Event()
        path = import_path if import_path or python else sys.path
        start = functools.partial(_start, environ_of(env, without), python, path)
        threading.Thread(target=self._run, args=(start,), name="dljob-helper", daemon=True).start()

    @property
    def pid(self) -> int:
        """The fork server's pid; 0 until it is up."""
        return self._pid

    def order(self, op: str, rank: int, incarnation: int, **details: Any) -> None:
        """Send an order to a server that is up. One that cannot be sent is dropped: `on_gone` follows."""
        if self._link is not None and self.up.is_set():
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
            return self._process.result(timeout_s).wait(timeout_s)
        return None

    def _run(self, start: Callable[[Preload], tuple[socket.socket, Process]]) -> None:
        self._follow_server(start, self._preload)
        if self.failure:
            log.warning("%s: each rank imports for itself", self.failure)
            self._process = Future()
            self._follow_server(start, replace(self._preload, modules=(), imports=(), failure=self.failure))
        self._on_gone()

    def _follow_server(self, start: Callable[[Preload], tuple[socket.socket, Process]], preload: Preload) -> None:
        """Start a server and deliver its events until its end; note which early import was its end, if one was."""
        self._importing = "", time.monotonic()
        try:
            link, process = start(preload)
        except OSError as error:
            self._process.set_exception(error)
            log.error("the fork server does not start: %s", error)
            return
        with self._lock:
            self._link = link
        self._process.set_result(process)
        if self._closed:
            self.close()
        hangs = self._await_up(link, self._importing[1] if preload.modules or preload.imports else None)
        while self.up.is_set() and (message := _receive(link)):
            self._on_event(json.loads(message))
        module, began_at = self._importing
        seconds = time.monotonic() - began_at
        link.close()  # at which a server ends that still imports
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):  # a template that is stopped would hold its end back
            code = process.wait(END_S)
        if self.up.is_set() or self._closed:
            return
        if hangs or (module and code is None):
            # Before the server's first news, a template may have imported these for it.
            module = module or ", ".join(preload.modules) or "what the script imports"
            self.failure = f"importing {module} in the fork server had not ended after {seconds:.0f} s"
        elif module and code is not None:
            how = f"by {signal_name(code - 128)}" if code > 128 else f"with exit code {code}"
            self.failure = f"importing {module} ended the fork server {how} after {seconds:.1f} s"
            self.failure_code = code

    def _await_up(self, link: socket.socket, imports_since: float | None) -> bool:
        """Wait until a server has done its early imports, or has ended; return whether one hangs.

        Args:
            link: The link to the server.
            imports_since: When its start began; None if it imports nothing early.
        """
        while not self.up.is_set():
            if imports_since is not None:
                link.settimeout(max(0.001, imports_since + EARLY_IMPORTS_S - time.monotonic()))
            try:
                message = _receive(link)
            except TimeoutError:
                return True
            if not message:
                return False
            event = json.loads(message)
            if event["event"] == "importing":
                self._importing = event["module"], time.monotonic()
            else:
                link.settimeout(None)
                self._on_up(event)
        return False

    def _on_up(self, event: Event) -> None:
        self._pid = event["pid"]
        with contextlib.suppress(OSError):  # it has ended again
            self._pidfd = os.pidfd_open(self._pid)
        early = event["early"]
        self.import_count = early["count"]
        if early["packages"] or early["stop_reason"]:
            packages = ", ".join(early["packages"]) or "nothing"
            rest = f"; not more: {early['stop_reason']}" if early["stop_reason"] else ""
            log.info("imported for the ranks of a script, before they are forked: %s%s", packages, rest)
        self.up.set()


def _start(
    environ: Mapping[str, str], python: str, import_path: Sequence[str], preload: Preload
) -> tuple[socket.socket, Process]:
    """Return a server's link and process: from a template where there is one, which may have to import torch first."""
    options = {"preload": asdict(preload), "path": [folder for folder in import_path if folder]}
    if not python:
        link, server_link = _make_link()
        with server_link, Path(os.devnull).open("rb") as null:
            files = null.fileno(), 1, 2, server_link.fileno()
            process = clean_process.forked((forkserver.__name__, options), preload.modules, environ, files)
        if process is not None:
            return link, process
        # Not this link again: a template that is slow may fork a server for it yet.
        link.close()
    link, server_link = _make_link()
    with server_link:
        boot = {**options, "fd": server_link.fileno(), "keeps_path": bool(python)}
        return link, subprocess.Popen(
            [python or sys.executable, "-c", _BOOT, json.dumps(boot)],
            env=environ,
            stdin=subprocess.DEVNULL,
            pass_fds=(server_link.fileno(),),
            start_new_session=True,
        )


def _make_link() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a link: SEQPACKET keeps message boundaries, and supervisors write to the server's, too."""
    link, server_link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (link, server_link):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MESSAGE_BYTES)
    return link, server_link


def _receive(link: socket.socket) -> bytes:
    """Return the next event, empty if the link has broken. Raises TimeoutError."""
    try:
        return link.recv(MESSAGE_BYTES)
    except TimeoutError:
        raise
    except OSError:
        return b""
