"""A supervisor process for each forked rank: it collects the rank's true exit status and ends all its descendants.

It is the parent of the rank, and the subreaper of what the rank leaves behind. When the rank ends, or must end,
everything below it ends too, daemons included. It is single-threaded and runs no user code.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from dljob.linux import descendants
from dljob.linux.process_title import set_title
from dljob.master.state.views import Outcome, Reason
from dljob.telemetry.wording import counted

TERM = signal.SIGUSR1
"""Signal to the supervisor: pass SIGTERM on to the rank's process group."""
KILL = signal.SIGTERM
"""Signal to the supervisor: SIGKILL everything below it. The kernel sends it, too, when the fork server dies."""
FAILING = signal.SIGUSR2
"""Signal of the rank to its supervisor: its report of the error that ends it is in the pipe, and its exit handlers run
now. Their time, in which its connections close, is not waited for."""
PIPE_BYTES = 65_536
"""What a pipe holds: the rank writes without a reader."""
WORDS_BYTES = 50_000
"""The longest report of a rank's end, beside those of errors before it (`watch_earlier_errors`)."""
SERVER_KILLED = "its fork server was killed"
"""Why a rank ended that was ended with its fork server."""
REAP_S = 5.0
"""Seconds to wait for processes that do not end on SIGKILL."""
MOST_LEFT = 5
"""Most processes that are named of those that a rank left running."""
HELPERS_S = 0.2
"""Seconds in which what a rank left running may end by itself, as multiprocessing's helpers do, after a good end."""

_SIGNALS = frozenset({signal.SIGCHLD, TERM, KILL, FAILING})


def fork_supervised(link: socket.socket, order: dict[str, Any]) -> int | None:
    """Fork a supervisor and below it a rank. Returns the supervisor's pid in the caller, None in the rank.

    The supervisor itself never returns. In the rank, `order["words"]` is the pipe for its report.
    """
    server = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        _become_rank(link, order, server)
    except BaseException:  # noqa: BLE001 - a second copy of the fork server must not run on
        os._exit(1)
    return None


def show_title(order: dict[str, Any]) -> None:
    """Have ps and nvidia-smi show this process as the rank of an order: `dljob: train.py default/1`."""
    set_title(f"dljob: {Path(order['entrypoint'][1]).name} {_name(order)}")


def _name(order: dict[str, Any]) -> str:
    return f"{order['env'].get('DLJOB_ROLE', '')}/{order['rank']}"


def _become_rank(link: socket.socket, order: dict[str, Any], server: int) -> None:
    """In the supervisor: fork the rank and watch it until its end. Returns only in the rank."""
    # Blocked before the fork, so that no signal is lost: the supervisor takes them by sigwait.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    descendants.prctl(descendants.PR_SET_PDEATHSIG, KILL)
    descendants.adopt_orphans()
    # The fork server may have died before the line above took effect; then nothing would ever end this process.
    if os.getppid() != server:
        os._exit(1)
    me = os.getpid()
    try:
        reader, writer = os.pipe()
        rank = os.fork()
    except OSError as error:
        refuse(link, order, error)
        os._exit(0)
    if rank == 0:
        descendants.prctl(descendants.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != me:
            os._exit(1)
        os.close(reader)
        link.close()
        # A session of its own: SIGTERM goes to the rank's whole group, and to nothing else.
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        order["words"], order["supervisor"] = writer, me
        show_title(order)
        return
    set_title(f"dljob: supervisor of {_name(order)}")
    # With the writer closed here, a read of the pipe ends once the rank has.
    os.close(writer)
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    _send(link, order, event="started", pid=rank)
    _watch(link, order, rank, reader, server)


def refuse(link: socket.socket, order: dict[str, Any], error: OSError) -> None:
    """Report the end of a rank for which no process can be made."""
    hint = ""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        hint = f"; of {most} (ulimit -n): files that its imports keep open are open in each rank, too"
    elif error.errno == errno.EAGAIN:
        hint = "; too many processes: ulimit -u, or pids.max of the container"
    message = f"its process cannot be made: {error.strerror}{hint}"
    words = Outcome(ok=False, reason=Reason.UNKNOWN, code=1, error_type=type(error).__name__, message=message)
    _send(link, order, event="ended", pid=0, status=1 << 8, words=asdict(words))


def _watch(link: socket.socket, order: dict[str, Any], rank: int, words: int, server: int) -> NoReturn:
    status, orphaned, is_ordered = _reap(rank), False, False
    report: dict[str, Any] = {}
    earlier: list[str] = []
    while status is None:
        number = signal.sigwait(_SIGNALS)
        is_ordered = is_ordered or number in (KILL, TERM)
        if number == KILL:
            orphaned = os.getppid() != server
            descendants.kill_all()
        elif number == TERM:
            _terminate(rank)
        elif number == FAILING and not report:
            report, earlier = _read_reports(words)
            _send(link, order, event="failing", pid=rank, words=report)
        status = _reap(rank)
    last_report, later = _read_reports(words)
    report, earlier = report or last_report, [*earlier, *later]
    if orphaned and not report:
        report = asdict(Outcome(ok=False, reason=Reason.UNKNOWN, message=SERVER_KILLED))
    leftovers = "" if is_ordered or status else left_words(_left_running())
    _end_rest()
    _send(link, order, event="ended", pid=rank, status=status, words=report, earlier=earlier, left=leftovers)
    os._exit(0)


def _terminate(rank: int) -> None:
    """Send SIGTERM to the rank's group (to the rank alone before it has one), and resume it if it is stopped."""
    for number in (signal.SIGTERM, signal.SIGCONT):
        try:
            os.killpg(rank, number)
        except OSError:
            with contextlib.suppress(OSError):
                os.kill(rank, number)


def _reap(rank: int) -> int | None:
    """Collect all ended children; return the rank's wait status if it is among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if ended[0] == rank:
                status = ended[1]
    return status


def left_words(names: Sequence[str]) -> str:
    """Return what a rank that ended well left running, by `command_and_pid`, in words; empty for nothing."""
    if not names:
        return ""
    number = counted(len(names), "process", plural="processes")
    shown = [*names[:MOST_LEFT], *([f"{len(names) - MOST_LEFT} more"] if len(names) > MOST_LEFT else [])]
    return f"{number} still ran after its end and {'was' if len(names) == 1 else 'were'} killed: {', '.join(shown)}"


def _left_running() -> list[str]:
    """Return the processes that still run after a rank's end, by `command_and_pid`."""
    end = time.monotonic() + HELPERS_S
    while (rest_s := end - time.monotonic()) > 0:
        _reap(0)
        if descendants.childless():
            return []
        signal.sigtimedwait({signal.SIGCHLD}, rest_s)
    return [descendants.command_and_pid(pid) for pid in descendants.below(os.getpid())]


def _end_rest() -> None:
    """Kill and collect the rank's leftover processes; give up after REAP_S on those that cannot be killed."""
    end = time.monotonic() + REAP_S
    while time.monotonic() < end:
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:  # orphans were re-parented to this process, so without children nothing is left
            return
        descendants.kill_all()
        signal.sigtimedwait({signal.SIGCHLD}, 0.05)


def _read_reports(fd: int) -> tuple[dict[str, Any], list[str]]:
    """Return what the rank reported of its end, and the errors before it (`watch_earlier_errors`)."""
    os.set_blocking(fd, False)
    words: dict[str, Any] = {}
    earlier: list[str] = []
    with contextlib.suppress(OSError, ValueError):
        for line in os.read(fd, PIPE_BYTES).splitlines():
            report = json.loads(line)
            if "earlier" in report:
                earlier.append(report["earlier"])
            else:
                words = report
    return words, earlier


def _send(link: socket.socket, order: dict[str, Any], **event: Any) -> None:
    fields = {"rank": order["rank"], "incarnation": order["incarnation"], **event}
    with contextlib.suppress(OSError):
        link.send(json.dumps(fields).encode())
