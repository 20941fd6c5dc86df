"""Processes of one cluster: each starts with a log and a pid note in the cluster's folder, by which it is ended."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

GO = {"GOGC": "400"}
"""Environment of Go programs, unless the caller's says otherwise: a fifth of a control plane's processor time went into
collecting garbage, while its memory is freed with the test."""
PORTS = range(20000, 32000)  # below the ephemeral ports of outgoing connections


def birth(pid: int) -> str:
    """Return a process's start time in kernel ticks; empty when it is gone or a zombie.

    A pid alone does not identify a process, because the kernel reuses pids.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def start(run: Path, name: str, command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> int:
    """Start a process in its own session with its output in `log/`; returns its pid.

    Its note is in `pid/` before this returns.
    """
    for folder in ("log", "pid"):
        (run / folder).mkdir(parents=True, exist_ok=True)
    argv = [str(c) for c in command]
    to_log = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(run / "log" / name), to_log, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
        *((os.POSIX_SPAWN_CLOSE, fd) for fd in inherited()),
    ]
    pid = os.posix_spawnp(argv[0], argv, {**GO, **os.environ, **(env or {})}, file_actions=files, setsid=True)
    note(run, name, pid)
    return pid


def inherited() -> list[int]:
    """Return inheritable descriptors of the caller, such as a lock, which a process that runs on must not hold."""
    found: list[int] = []
    for fd in sorted(int(p.name) for p in Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # The descriptor of the listing itself is closed by now.
            if fd > 2 and os.get_inheritable(fd):
                found.append(fd)
    return found


def note(run: Path, name: str, pid: int) -> None:
    """Write the note of a process of this cluster."""
    (run / "pid" / name).write_text(json.dumps({"pid": pid, "birth": birth(pid)}))


def find(run: Path, name: str) -> int:
    """Return the pid of a noted process that lives; 0 when there is none."""
    try:
        note = json.loads((run / "pid" / name).read_text())
    except (OSError, ValueError):
        return 0
    return note["pid"] if note["birth"] and birth(note["pid"]) == note["birth"] else 0


def stop(run: Path, name: str, seconds: float = 20) -> None:
    """End a noted process and wait until it is gone.

    It gets SIGKILL: a test cluster needs no orderly shutdown, and PID 1 of a namespace ignores other signals.
    """
    if pid := find(run, name):
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)  # Reap it if this process started it.
        until(lambda: not find(run, name), seconds, f"the end of {name} (pid {pid})")
    (run / "pid" / name).unlink(missing_ok=True)


def stop_all(run: Path) -> list[str]:
    """End all noted processes, newest first; returns their names."""
    notes = sorted((run / "pid").glob("*"), key=lambda p: p.stat().st_mtime_ns, reverse=True)
    ended = [n.name for n in notes if find(run, n.name)]
    for note in notes:
        stop(run, note.name)
    return ended


def until(
    check: Callable[[], object], seconds: float, what: str, run: Path | None = None, names: Sequence[str] = ()
) -> None:
    """Poll until a check holds.

    Raises:
        RuntimeError: time is up, or one of the named processes has ended; with the end of the logs.
    """
    end = time.monotonic() + seconds
    while not check():
        dead = [n for n in names if run and not find(run, n)]
        if dead or time.monotonic() > end:
            why = f"{', '.join(dead)} ended" if dead else f"not after {seconds:.0f} s"
            raise RuntimeError(f"waited for {what}: {why}\n{tails(run, dead or names) if run else ''}".rstrip())
        time.sleep(0.05)


def tails(run: Path, names: Sequence[str]) -> str:
    """Return the last lines of the processes' logs."""
    parts: list[str] = []
    for name in names:
        lines = (run / "log" / name).read_text(errors="replace").splitlines() if (run / "log" / name).exists() else []
        parts.append(f"--- {run / 'log' / name}\n" + "\n".join(lines[-8:]))
    return "\n".join(parts)


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that nothing listens on."""
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"no {count} free ports in {PORTS.start} to {PORTS.stop - 1}")
