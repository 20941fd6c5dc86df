"""One small process per forked rank: it learns the rank's true exit status and leaves nothing of the rank behind.

It is the parent of the rank and the adoptive parent of all that the rank leaves behind, so that when the rank ends, or
must end, everything below it ends too, daemons included. It is single-threaded and holds no user code.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from typing import Any, NoReturn

from dljob.runtime.linux import descendants

TERM = signal.SIGUSR1
"""To the supervisor: pass SIGTERM on to the rank's process group."""
KILL = signal.SIGTERM
"""To the supervisor: SIGKILL everything below it; also what it gets when the fork server dies."""
WORDS_BYTES = 60_000
"""What fits into a pipe at once: the last words of a rank are never longer."""
REAP_S = 5.0

_SIGNALS = frozenset({signal.SIGCHLD, TERM, KILL})


def fork_supervised(link: socket.socket, order: dict[str, Any]) -> int | None:
    """Fork a supervisor and below it a rank: the supervisor's pid in the caller, None in the rank.

    The supervisor itself never returns. `order["words"]` in the rank is the pipe for its last words.
    """
    server = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        _become_rank(link, order, server)
    except BaseException:  # noqa: BLE001 - nothing may run on in a second copy of the fork server
        os._exit(1)
    return None


def _become_rank(link: socket.socket, order: dict[str, Any], server: int) -> None:
    """In the supervisor: fork the rank and watch it, for good. Returns in the rank."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    descendants.prctl(descendants.PR_SET_PDEATHSIG, KILL)
    descendants.adopt_orphans()
    if os.getppid() != server:
        os._exit(1)
    reader, writer = os.pipe()
    me = os.getpid()
    rank = os.fork()
    if rank == 0:
        descendants.prctl(descendants.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != me:
            os._exit(1)
        os.close(reader)
        link.close()
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        order["words"] = writer
        return
    os.close(writer)
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    _send(link, order, event="started", pid=rank)
    _watch(link, order, rank, reader)


def _watch(link: socket.socket, order: dict[str, Any], rank: int, words: int) -> NoReturn:
    status = _reap(rank)
    while status is None:
        number = signal.sigwait(_SIGNALS)
        if number == KILL:
            descendants.kill_all()
        elif number == TERM:
            _terminate(rank)
        status = _reap(rank)
    said = _last_words(words)
    _end_rest()
    _send(link, order, event="ended", pid=rank, status=status, words=said)
    os._exit(0)


def _terminate(rank: int) -> None:
    """SIGTERM to the rank's group (to the rank alone while it has none yet), and wake it if it is stopped."""
    for number in (signal.SIGTERM, signal.SIGCONT):
        try:
            os.killpg(rank, number)
        except OSError:
            with contextlib.suppress(OSError):
                os.kill(rank, number)


def _reap(rank: int) -> int | None:
    """Collect all children that ended; the rank's wait status when it is among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if ended[0] == rank:
                found = ended[1]
    return found


def _end_rest() -> None:
    """Kill and collect what the rank left behind; give up after a while on what cannot be killed."""
    end = time.monotonic() + REAP_S
    while time.monotonic() < end:
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:  # all that was below has come to us, so there is nothing left
            return
        descendants.kill_all()
        signal.sigtimedwait({signal.SIGCHLD}, 0.05)


def _last_words(fd: int) -> dict[str, Any]:
    os.set_blocking(fd, False)
    with contextlib.suppress(OSError, ValueError):
        return json.loads(os.read(fd, WORDS_BYTES) or b"{}")
    return {}


def _send(link: socket.socket, order: dict[str, Any], **event: Any) -> None:
    said = {"rank": order["rank"], "incarnation": order["incarnation"], **event}
    with contextlib.suppress(OSError):
        link.send(json.dumps(said).encode())
