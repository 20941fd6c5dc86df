"""Where a rank's output goes: one file per rank in the job's folder, through all its incarnations."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

from dljob.master.actions import RankStart
from dljob.runtime import kept_logs
from dljob.runtime.messages import JobInfo


def open_log(job: JobInfo, role: str, start: RankStart) -> tuple[int, str]:
    """Open `<job dir>/logs/<role>-<rank>.log` to append to and write a first line; its descriptor and its path.

    Where the job has a checkpoint path, it is noted that the log is to be kept there (`kept_logs`).
    (-1, "") when it cannot be written: then the output stays where it was.
    """
    path = Path(job.dir) / "logs" / f"{role}-{start.rank}.log"
    why = f", after: {start.restart_reason}" if start.restart_reason else ""
    line = f"[dljob] {time.strftime('%H:%M:%S')} {role}/{start.rank} starts, incarnation {start.incarnation}{why}\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        volume = os.environ.get(kept_logs.CHECKPOINT)
        if volume:
            place = kept_logs.root(volume, job.name, job.uid) / "logs" / f"attempt-{job.attempt}"
            kept_logs.begins(path, start.incarnation, os.fstat(fd).st_size, place)
        os.write(fd, line.encode())
    except OSError as error:
        print(f"[dljob] cannot write {path}: {error}; the output stays in Ray's log", file=sys.stderr)  # noqa: T201
        return -1, ""
    return fd, str(path)


def redirect_output(fd: int) -> None:
    """Send this process's stdout and stderr, of C code and children too, to a file; -1 changes nothing."""
    if fd < 0:
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
