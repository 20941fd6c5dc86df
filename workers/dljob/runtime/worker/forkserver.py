"""The fork server of a fork host: a clean process, started by exec, that forks ranks. It never imports Ray.

It may import torch, and more of what the script imports, once before it forks, so that sixteen ranks start in a
fraction of a second. It announces each import: one that hangs, or ends the process, costs no more than this server. One
SEQPACKET socket connects it to its host: orders come in, events go out, also from the supervisors. When the host is
gone, the fork server ends all its ranks and itself.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Generator, Mapping
from typing import Any, NoReturn

from dljob.runtime.worker import early_imports, script, supervise

MESSAGE_BYTES = 180_000
"""The longest message on the socket. A longer order (a large environment) travels as a memfd that holds its text."""


def send_order(link: socket.socket, order: Mapping[str, Any]) -> None:
    """Send an order of any length to a fork server. A server that is gone needs no order: errors are dropped."""
    text = json.dumps(order).encode()
    if len(text) <= MESSAGE_BYTES:
        with contextlib.suppress(OSError):
            link.send(text)
        return
    fd = _in_memory(text)
    with contextlib.suppress(OSError):
        socket.send_fds(link, [b"-"], [fd])
    os.close(fd)


def _in_memory(text: bytes) -> int:
    """Return a descriptor from which a text can be read."""
    fd = os.memfd_create("dljob-order", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(text)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def receive_order(link: socket.socket) -> dict[str, Any] | None:
    """Return the next order; None when the host is gone."""
    text, fds, _, _ = socket.recv_fds(link, MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
    for fd in fds:
        with os.fdopen(fd, "rb") as file:
            text = file.read()
    if text == b"-":
        raise OSError(errno.EMFILE, "no file is left for an order (ulimit -n)")
    return json.loads(text) if text else None


class ForkServer:
    """Performs orders: `fork`, `term` (SIGTERM to a rank's process group), `kill` (SIGKILL to everything of a rank)."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._poll = select.poll()
        self._poll.register(link.fileno(), select.POLLIN)
        self._supervisors: dict[tuple[int, int], int] = {}
        self._pidfds: dict[int, tuple[int, int, int]] = {}
        self._has_stdin = False
        """Whether it was tried to open the stdin of the command for the ranks."""
        self._spare: int | None = None
        """A file for whose number there is use when no other is left."""
        self._keep_spare()

    def serve(self) -> dict[str, Any] | None:
        """Serve until the host is gone, then return None. In a forked rank it returns that rank's order."""
        while True:
            for fd, _ in self._poll.poll():
                if fd in self._pidfds:
                    self._supervisor_ended(fd)
                    continue
                order = self._next_order()
                if order is None:
                    self._kill_all()
                    return None
                if order["op"] == "fork":
                    if self._fork(order):
                        return order
                else:
                    self._signal(order)

    def _next_order(self) -> dict[str, Any] | None:
        # A long order comes as a file: it takes the place of the spare one where no other can be opened.
        self._drop_spare()
        order = receive_order(self._link)
        self._keep_spare()
        return order

    def _keep_spare(self) -> None:
        with contextlib.suppress(OSError):  # tried again after the next order
            self._spare = os.open(os.devnull, os.O_RDONLY)

    def _drop_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _fork(self, order: dict[str, Any]) -> bool:
        """Fork a rank and its supervisor; True in the rank."""
        if order.get("stdin") and not self._has_stdin:
            self._has_stdin = True
            take_stdin(order["stdin"])
        try:
            if self._spare is None:
                # Nothing would tell of the supervisor's end.
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            pid = supervise.fork_supervised(self._link, order)
        except OSError as error:
            supervise.refuse(self._link, order, error)
            return False
        self._drop_spare()
        if pid is None:
            # The rank must not hold descriptors of other ranks' supervisors.
            for fd in self._pidfds:
                os.close(fd)
            return True
        key = (order["rank"], order["incarnation"])
        fd = os.pidfd_open(pid)
        self._keep_spare()
        self._supervisors[key] = pid
        self._pidfds[fd] = (*key, pid)
        self._poll.register(fd, select.POLLIN)
        return False

    def _signal(self, order: dict[str, Any]) -> None:
        pid = self._supervisors.get((order["rank"], order["incarnation"]))
        if pid is not None:
            os.kill(pid, supervise.TERM if order["op"] == "term" else supervise.KILL)

    def _supervisor_ended(self, fd: int) -> None:
        """Report the rank of a supervisor that was killed itself; one that ended well has reported its rank."""
        rank, incarnation, pid = self._pidfds.pop(fd)
        self._poll.unregister(fd)
        os.close(fd)
        # The pid is collected only here, so it cannot be reused while it stands in `_supervisors`.
        _, status = os.waitpid(pid, 0)
        self._supervisors.pop((rank, incarnation), None)
        # A supervisor that ended well has exit status 0; any other end left its rank unreported.
        if status:
            event = {"event": "ended", "rank": rank, "incarnation": incarnation, "pid": 0, "status": signal.SIGKILL}
            with contextlib.suppress(OSError):
                self._link.send(json.dumps({**event, "words": {}}).encode())

    def _kill_all(self) -> None:
        # Signal all before waiting for any, so that they end side by side.
        for pid in self._supervisors.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, supervise.KILL)
        for pid in self._supervisors.values():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def take_stdin(path: str) -> None:
    """Open a file or pipe as stdin, which all ranks inherit: as under torchrun they share its position.

    Otherwise stdin is /dev/null, where a read ends at once instead of waiting for ever.
    """
    with contextlib.suppress(OSError):
        # O_NONBLOCK: a FIFO without a writer would block this process.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        os.set_blocking(fd, True)
        os.dup2(fd, 0)
        os.close(fd)


def _step_aside(link: socket.socket, held_fd: int) -> None:
    """Go on in a child: Ray kills the actor's direct children with it, which would skip the orderly end of ranks.

    Args:
        link: The socket to the host.
        held_fd: What only the process stays with that waits for the child: whoever reads its other end sees that end.
    """
    pid = os.fork()
    if pid == 0:
        if held_fd >= 0:
            os.close(held_fd)
        return
    link.close()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os._exit(code if code >= 0 else 128 - code)  # as a shell tells a signal


@contextlib.contextmanager
def _end_with_host(link: socket.socket) -> Generator[None]:
    """Have the kernel end this process once the host closes the link: an import that hangs asks nobody.

    The host sends no order before it has heard that the server is up.
    """
    fcntl.fcntl(link, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(link, fcntl.F_SETSIG, signal.SIGKILL)
    flags = fcntl.fcntl(link, fcntl.F_GETFL)
    fcntl.fcntl(link, fcntl.F_SETFL, flags | os.O_ASYNC)
    poll = select.poll()
    poll.register(link, 0)
    if poll.poll(0):  # closed before that
        os._exit(0)
    yield
    fcntl.fcntl(link, fcntl.F_SETFL, flags)


def main(fd: int, preload: Mapping[str, Any], held_fd: int = -1, began: dict[str, str] | None = None) -> None:
    """Serve on an inherited socket until the host is gone. Forked ranks end in this function, too.

    Args:
        fd: The socket.
        preload: What to import, see `Preload`.
        held_fd: Where a template has forked this process, its connection to the host.
        began: And the environment before its imports.
    """
    link = socket.socket(fileno=fd)
    # A command that a rank becomes by exec must not keep the host's socket open.
    link.set_inheritable(False)
    _step_aside(link, held_fd)
    began = began or dict(os.environ)
    with _end_with_host(link):
        early = early_imports.import_early(
            preload, lambda name: _send_event(link, {"event": "importing", "module": name})
        )
    # A collection in a rank would write to the headers of all shared objects and so copy their pages.
    gc.collect()
    gc.freeze()
    result = {"packages": early.packages, "count": early.import_count, "stop_reason": early.stop_reason}
    _send_event(link, {"event": "up", "pid": os.getpid(), "early": result})
    order = ForkServer(link).serve()
    if order is None:
        os._exit(0)
    order["notice"] = ""
    # Which import has failed is wanted beside whatever happens to that import in the rank.
    if preload["failure"] or (early.stop_reason and (order["rank"], order["incarnation"]) == (0, 1)):
        order["notice"] = f"[dljob] left to be imported by each rank: {early.stop_reason}\n"
    if order["fresh"] or early.unfit:
        _exec_fresh_interpreter(order, began)
    # What an import has set stays, as if the rank had imported.
    order["env"] = {name: value for name, value in order["env"].items() if began.get(name) != value}
    _run_rank(order, early.output)


def _send_event(link: socket.socket, event: Mapping[str, Any]) -> None:
    link.send(json.dumps(event).encode())


# Not by -P, which the rank's own processes would inherit: no file of the current folder may stand in for json.
_FRESH_PROGRAM = """import sys
sys.path[:] = filter(None, sys.path)
import json
boot = json.loads(sys.argv.pop())
sys.path[:] = boot["path"]
from dljob.runtime.worker.forkserver import run_fresh_rank
run_fresh_rank(boot["fd"])
"""


def _exec_fresh_interpreter(order: dict[str, Any], env: Mapping[str, str]) -> NoReturn:
    """Go on as a rank in which nothing has been imported: its script has changed, or no rank may be forked."""
    fd = _in_memory(json.dumps(order).encode())
    for inherited_fd in (fd, order["words"]):
        os.set_inheritable(inherited_fd, True)
    boot = json.dumps({"path": sys.path, "fd": fd})
    os.execve(sys.executable, [sys.executable, "-c", _FRESH_PROGRAM, boot], dict(env))  # noqa: S606 - no shell wanted


def run_fresh_rank(fd: int) -> NoReturn:
    """Run a rank in a process of its own, from its order in a file."""
    with os.fdopen(fd, "rb") as file:
        order = json.load(file)
    os.set_inheritable(order["words"], False)
    supervise.show_title(order)
    _run_rank(order, b"")


def _run_rank(order: dict[str, Any], output: bytes) -> NoReturn:
    """Run a rank, whose log begins with the notice of its order and what imports have printed for it."""
    script.finish(script.run({**order, "output": order["notice"].encode(errors="replace") + output}))
