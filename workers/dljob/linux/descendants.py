"""The descendants of this process: adopting, finding and ending them.

Children must end with their rank: a child that outlives it keeps its sockets open, so nobody notices that it died.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterable
from pathlib import Path

# Source: linux/prctl.h.
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int) -> None:
    """Call Linux's prctl with one argument. A refusal is ignored: then descendants are only found through /proc."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


COMMAND_LENGTH = 60
"""Most characters of a process's command line in a message."""
_HELPERS = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver", b"loky.backend.", b"_inductor/compile_")
"""Words in the command lines of processes in which libraries serve their parent, whose exit handlers would end them."""
ROUNDS = 3
"""Number of searches for processes to kill."""
KILLED_S = 1.0
"""Most seconds for the kernel to end processes that were killed."""
_adopts = False
_letting_go = threading.Lock()


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parent ends (a subreaper)."""
    global _adopts  # noqa: PLW0603 - as the kernel has it: of the process
    _adopts = True
    prctl(PR_SET_CHILD_SUBREAPER, 1)


@contextlib.contextmanager
def letting_go() -> Generator[None]:
    """Adopt no orphan meanwhile: who is started and loses its parent in the block is no descendant of this process."""
    with _letting_go:
        prctl(PR_SET_CHILD_SUBREAPER, 0)
        try:
            yield
        finally:
            prctl(PR_SET_CHILD_SUBREAPER, int(_adopts))


def below(root: int) -> list[int]:
    """Return the pids of all living descendants of a process, parents before children."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if (entry := folder.name).isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                # The name, in parentheses, may itself contain spaces and parentheses: fields are counted from the last.
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
                # Zombies and dead processes hold nothing any more.
                if state not in "ZX":
                    children.setdefault(int(parent), []).append(int(entry))
    pids: list[int] = []
    waiting = [root]
    while waiting:
        batch = children.get(waiting.pop(), [])
        pids += batch
        waiting += batch
    return pids


def command_of(pid: int) -> str:
    """Return the beginning of a process's command line; its name where it has none."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes() or Path(f"/proc/{pid}/comm").read_bytes()
    except OSError:
        return "a process that has ended"
    line = " ".join(words.replace(b"\0", b" ").decode(errors="backslashreplace").split())
    return line if len(line) <= COMMAND_LENGTH else f"{line[:COMMAND_LENGTH]}..."


def command_and_pid(pid: int) -> str:
    """Return a process in words: `sleep 60 (pid 9)`."""
    return f"{command_of(pid)} (pid {pid})"


def descendants_cpu_s() -> float:
    """Return the CPU seconds of this process's descendants, of those that it has reaped, too.

    It reads their own files only, not all of /proc: ranks that wait ask every two seconds.
    """
    own_times = os.times()
    total, ticks, waiting = own_times.children_user + own_times.children_system, 0, [str(os.getpid())]
    while waiting:
        for file in Path("/proc", waiting.pop(), "task").glob("*/children"):
            with contextlib.suppress(OSError):
                waiting += (pids := file.read_text().split())
                for pid in pids:
                    # utime, stime, cutime and cstime: what a child has reaped is in its own.
                    fields = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
                    ticks += sum(map(int, fields[11:15]))
    return total + ticks / os.sysconf("SC_CLK_TCK")


def childless() -> bool:
    """Whether this process has no child, dead or alive, and so no descendant: orphans are re-parented to it.

    It spares a scan of /proc, which takes 20 ms on a machine with a thousand processes. User code that must end would
    go on meanwhile.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def kill_all(root: int | None = None) -> int:
    """SIGKILL every descendant of a process (default: this one), repeatedly while new ones appear.

    Returns:
        The number of signals sent.
    """
    sent = 0
    # Repeated: a process may fork between the scan and its own end.
    for _ in range(ROUNDS):
        if root is None and childless():
            break
        pids = below(root or os.getpid())
        if not pids:
            break
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                sent += 1
    return sent


def end_children_of_user_code(wait_s: float) -> list[str]:
    """Kill what user code has started and left running in a process that goes on; all of it had `wait_s` s to end.

    Spared is what a script's exit handlers would end: daemons of multiprocessing, and helpers of libraries.

    Returns:
        `command_and_pid` of each process that was killed.
    """
    if childless():
        return []
    _await_ends(_children_of_user_code(), wait_s)
    names: dict[int, str] = {}
    # Repeated: a process may fork between the scan and its own end.
    for _ in range(ROUNDS):
        pids = _children_of_user_code()
        names = {pid: command_and_pid(pid) for pid in pids} | names
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _await_ends(pids, KILLED_S)
    return list(names.values())


def _children_of_user_code() -> list[int]:
    process_module = sys.modules.get("multiprocessing.process")
    children = process_module.active_children() if process_module else ()
    daemon_flags = {child.pid: child.daemon for child in children}
    return [pid for pid in below(os.getpid()) if not daemon_flags.get(pid, _is_helper(pid))]


def _is_helper(pid: int) -> bool:
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return any(words in command for words in _HELPERS)
    return False


def _await_ends(pids: Iterable[int], seconds: float) -> None:
    """Return once all processes have ended, or after that many seconds in all."""
    deadline = time.monotonic() + seconds
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            pidfd = os.pidfd_open(pid)
            poll = select.poll()  # `select.select` takes no descriptor above 1023
            poll.register(pidfd, select.POLLIN)
            poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
            os.close(pidfd)


def end_forks_with_me() -> None:
    """Make future children of `os.fork` end with this process, however it ends.

    A forked child inherits Ray's sockets. While it lives, nobody notices that its parent was killed.
    """
    me = os.pidfd_open(os.getpid())

    # PR_SET_PDEATHSIG would follow the thread that forked, not this process.
    def in_child() -> None:
        threading.Thread(target=_follow, args=(me,), name="dljob-follow", daemon=True).start()

    os.register_at_fork(after_in_child=in_child)


def _follow(pidfd: int) -> None:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll()
    os._exit(128 + signal.SIGKILL)
