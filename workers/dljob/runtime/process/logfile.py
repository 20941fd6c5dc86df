"""The log file of a rank: one per rank in the job's folder, through all its incarnations."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import time
from pathlib import Path
from typing import IO, Any, cast

from dljob.logs import archive, marks
from dljob.master.state.actions import RankStart
from dljob.runtime.process.messages import JobInfo
from dljob.runtime.process.outcome import read_end

STDIN = "stdin"
"""Link in a job's folder to the stdin of its command, where ranks are to inherit that."""
LOST = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
"""Errors of a write to the log that are the disk's: `VolumeFull` tells of them, and the rank goes on."""


def open_log(job: JobInfo, role: str, start: RankStart) -> tuple[int, str]:
    """Open `<job dir>/logs/<role>-<rank>.log` for appending and write a first line; return its descriptor and path.

    Its size is marked with the time (`logs.marks`). If the job has a checkpoint path, the log is registered to be kept
    there (`logs.archive`). Returns (-1, "") when the file cannot be written: then the output stays where it was.
    """
    path = Path(job.dir) / "logs" / _name(role, start.rank)
    restart_text = f", after: {start.restart_reason}" if start.restart_reason else ""
    line = f"[dljob] {time.strftime('%H:%M:%S')} {_begins(role, start.rank, start.incarnation)}{restart_text}\n"
    try:
        # Private to this user, as on the launcher's node. `mode` holds for the last folder alone.
        Path(job.dir).mkdir(parents=True, exist_ok=True, mode=0o700)
        path.parent.mkdir(exist_ok=True)
        # Appended to: all incarnations of the rank share the file.
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        # Before the first line is written: mark and archive count this incarnation's output from here.
        size = os.fstat(fd).st_size
        with contextlib.suppress(OSError):  # a full disk: then `--since` prints more than was asked for
            marks.add(path, size)
        volume = os.environ.get(archive.CHECKPOINT)
        if volume:
            place = archive.root(volume, job.name, job.uid) / "logs" / f"attempt-{job.attempt}"
            archive.begins(path, start.incarnation, size, place)
        os.write(fd, line.encode())
    except OSError as error:
        print(f"[dljob] cannot write {path}: {error}; the output stays in Ray's log", file=sys.stderr)  # noqa: T201
        return -1, ""
    return fd, str(path)


def error_file(log: str, incarnation: int) -> str:
    """Return the file beside a rank's log in which torch's `@record` writes the error of one incarnation.

    Empty where there is no log: `@record` writes none then, and in a folder that is missing it would fail itself.
    """
    return f"{log.removesuffix('.log')}.{incarnation}.error.json" if log else ""


def read_end_of_incarnation(logs: Path, role: str, rank: int, incarnation: int | None) -> str:
    """Return the tail of the output of one incarnation of a rank, None: the last; empty if nothing can be read."""
    try:
        text = read_end(logs / _name(role, rank))
    except OSError:
        return ""
    # Lines before the incarnation's own first line are those of earlier ones; where it is cut off, all are its own.
    begins = _begins(role, rank, incarnation)
    return text.rpartition(begins)[2].partition("\n")[2] if begins in text else text


def last_words(logs: Path, host: str, pid: int) -> str:
    """Return the line in which a process said why it ends, in the log of the rank of a host; empty without one."""
    with contextlib.suppress(OSError):
        lines = read_end(logs / f"{host.replace('/', '-')}.log").splitlines()
        return next((line for line in reversed(lines) if f" pid {pid} ends with code " in line), "")
    return ""


def _name(role: str, rank: int) -> str:
    return f"{role}-{rank}.log"


def _begins(role: str, rank: int, incarnation: int | None) -> str:
    return f"{role}/{rank} starts, incarnation {incarnation or ''}"


def redirect_output(fd: int) -> None:
    """Send stdout and stderr of this process, of C code and children too, to a file; -1 changes nothing."""
    if fd < 0:
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    open_streams()


class LogStream(io.FileIO):
    """stdout or stderr in a rank's log. What the disk refuses is dropped: a print is no reason for a rank to die."""

    def write(self, data: Any, /) -> int:
        """Write to the log; return the number of bytes that are taken, which a full disk does not keep."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in LOST:
                raise
            return memoryview(data).nbytes


_write = os.write
_log: os.stat_result | None = None
"""The log of this process's rank, from when it is behind stdout and stderr."""


def _write_or_drop(fd: int, data: Any, /) -> int:
    """Do as `os.write`, but drop what the disk of the rank's log refuses; files of the user's raise the error."""
    try:
        return _write(fd, data)
    except OSError as error:
        if error.errno not in LOST or _log is None or not os.path.samestat(os.fstat(fd), _log):
            raise
        return memoryview(data).nbytes


def open_streams(*, is_unbuffered: bool = False) -> None:
    """Let Python's stdout and stderr write to the log that is behind their descriptors, and `os.write` as they do.

    With `is_unbuffered` they do so as under `python -u`, with which torchrun starts scripts: dots that show a progress
    are there when they are printed.
    """
    global _log  # noqa: PLW0603 - descriptors belong to the process
    with contextlib.suppress(OSError):
        _log = os.fstat(1)
        os.write = _write_or_drop
    for name, fd in (("stdout", 1), ("stderr", 2)):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            before = getattr(sys, name)
            log = LogStream(fd, "wb", closefd=False)
            # Line by line, so that a process that is killed leaves its last lines in the log.
            stream = (
                io.TextIOWrapper(cast("IO[bytes]", log), before.encoding, before.errors, write_through=True)
                if is_unbuffered
                else io.TextIOWrapper(io.BufferedWriter(log), before.encoding, before.errors, line_buffering=True)
            )
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
