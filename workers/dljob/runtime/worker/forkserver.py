"""The fork server of a fork host: a clean process, started by exec, that forks ranks. Ray is never imported here.

It may import torch once, before it forks: sixteen ranks then start in a fraction of a second. It talks with its host
over one SEQPACKET socket: orders come in, events go out (also from the supervisors), and when the host is gone, so is
everything below.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
from collections.abc import Mapping
from typing import Any

from dljob.runtime.worker import script, supervise

MESSAGE_BYTES = 180_000
"""The longest message on the socket. A longer order, as of a large environment, comes as a descriptor of its text."""


def send_order(link: socket.socket, order: Mapping[str, Any]) -> None:
    """Send an order to a fork server, however long it is; one that is gone needs none any more."""
    text = json.dumps(order).encode()
    if len(text) <= MESSAGE_BYTES:
        with contextlib.suppress(OSError):
            link.send(text)
        return
    with os.fdopen(os.memfd_create("dljob-order", os.MFD_CLOEXEC), "wb") as file:
        file.write(text)
        file.seek(0)
        with contextlib.suppress(OSError):
            socket.send_fds(link, [b"-"], [file.fileno()])


def receive_order(link: socket.socket) -> dict[str, Any] | None:
    """The next order; None when the host is gone."""
    text, fds, _, _ = socket.recv_fds(link, MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
    for fd in fds:
        with os.fdopen(fd, "rb") as file:
            text = file.read()
    return json.loads(text) if text else None


class ForkServer:
    """Takes orders: `fork`, `term` (SIGTERM to a rank's group), `kill` (all of a rank, at once)."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._poll = select.poll()
        self._poll.register(link.fileno(), select.POLLIN)
        self._supervisors: dict[tuple[int, int], int] = {}
        self._pidfds: dict[int, tuple[int, int, int]] = {}

    def serve(self) -> dict[str, Any] | None:
        """Serve until the host is gone (None); in a forked rank: its order."""
        while True:
            for fd, _ in self._poll.poll():
                if fd in self._pidfds:
                    self._supervisor_ended(fd)
                    continue
                order = receive_order(self._link)
                if order is None:
                    self._kill_all()
                    return None
                if order["op"] == "fork":
                    if self._fork(order):
                        return order
                else:
                    self._signal(order)

    def _fork(self, order: dict[str, Any]) -> bool:
        """True in the rank."""
        pid = supervise.fork_supervised(self._link, order)
        if pid is None:
            for fd in self._pidfds:
                os.close(fd)
            return True
        key = (order["rank"], order["incarnation"])
        fd = os.pidfd_open(pid)
        self._supervisors[key] = pid
        self._pidfds[fd] = (*key, pid)
        self._poll.register(fd, select.POLLIN)
        return False

    def _signal(self, order: dict[str, Any]) -> None:
        pid = self._supervisors.get((order["rank"], order["incarnation"]))
        if pid is not None:
            os.kill(pid, supervise.TERM if order["op"] == "term" else supervise.KILL)

    def _supervisor_ended(self, fd: int) -> None:
        """A supervisor that ended well has said how its rank ended; else the rank was killed with it."""
        rank, incarnation, pid = self._pidfds.pop(fd)
        self._poll.unregister(fd)
        os.close(fd)
        _, status = os.waitpid(pid, 0)
        self._supervisors.pop((rank, incarnation), None)
        if status:
            event = {"event": "ended", "rank": rank, "incarnation": incarnation, "pid": 0, "status": signal.SIGKILL}
            with contextlib.suppress(OSError):
                self._link.send(json.dumps({**event, "words": {}}).encode())

    def _kill_all(self) -> None:
        for pid in self._supervisors.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, supervise.KILL)
        for pid in self._supervisors.values():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _step_aside(link: socket.socket) -> None:
    """Serve in a child, so that what Ray kills with the actor, its direct children, is not the fork server."""
    pid = os.fork()
    if pid:
        link.close()
        os._exit(1 if os.waitpid(pid, 0)[1] else 0)


def main(fd: int, preload: tuple[str, ...]) -> None:
    """Serve on a socket that was inherited; when the host is gone, end. Ranks end here too."""
    link = socket.socket(fileno=fd)
    link.set_inheritable(False)
    _step_aside(link)
    for module in preload:
        with contextlib.suppress(Exception):  # the rank's own import says what is wrong
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # ranks share the helper's objects as long as nobody touches them
    link.send(json.dumps({"event": "up", "pid": os.getpid()}).encode())
    order = ForkServer(link).serve()
    if order is None:
        os._exit(0)
    script.finish(script.run(order))
