"""The thread that marks the times of logs and cuts long ones, in a process whose own output or children write them."""

from __future__ import annotations

import errno
import os
import stat
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dljob.logs import marks
from dljob.logs.cut import cut

PERIOD_S = 1.0
"""The resolution of the time marks."""
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS)


@dataclass(slots=True)
class _Log:
    start: int
    """The offset at which the process began to write."""
    marked: int
    """The size at the last mark."""
    is_whole: bool = False
    """Whether it cannot be cut."""
    told_reason: str = ""
    """Why it was not cut, as its reader was told."""


class LogWatch:
    """Limits the logs that this process or a child of it writes, and marks their times."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs: dict[Path, _Log] = {}
        self._running = False

    def begin(self, path: str, start: int) -> None:
        """Watch a log to which a process begins to write at offset `start`."""
        if not path:
            return
        with self._lock:
            self._logs[Path(path)] = _Log(start, start)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="dljob-logs", daemon=True).start()

    def look(self) -> None:
        """Mark logs that have grown and cut those that are too long. A log that cannot be cut says so, once."""
        with self._lock:
            # A copy: marking and cutting may take long on a slow disk, and `begin` must not wait for it.
            logs = dict(self._logs)
        for path, log in logs.items():
            try:
                _mark(path, log)
                if not log.is_whole:
                    cut(path, log.start)
            except FileNotFoundError:
                with self._lock:
                    self._logs.pop(path, None)
            except OSError as error:
                log.is_whole = error.errno in _UNSUPPORTED
                _tell(path, log, error)

    def _run(self) -> None:
        last_error = ""
        while True:
            time.sleep(PERIOD_S)
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - a log that grows is no reason to end a rank
                if last_error != (last_error := f"{type(error).__name__}: {error}"):
                    print(f"[dljob] cannot mark and shorten logs: {last_error}", file=sys.stderr)  # noqa: T201


def _tell(path: Path, log: _Log, error: OSError) -> None:
    """Say in a log, once, why it is not shortened. In its place may be a pipe, or a link to another file."""
    reason = "this file system cannot punch holes into files" if log.is_whole else error.strerror or str(error)
    if log.told_reason == reason:
        return
    log.told_reason = reason
    until = "" if log.is_whole else " until that has passed"
    with suppress(OSError):  # then there is nowhere to say it
        out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if stat.S_ISREG(os.fstat(out).st_mode):
                os.write(out, f"[dljob] {reason}: this log is not shortened{until}\n".encode())
        finally:
            os.close(out)


def _mark(path: Path, log: _Log) -> None:
    """Note the size of a log that has grown. Raises FileNotFoundError when it is gone."""
    info = os.lstat(path)
    if stat.S_ISREG(info.st_mode) and info.st_size != log.marked:
        log.marked = info.st_size
        with suppress(OSError):  # a full disk: `--since` shows more than was asked for
            marks.add(path, info.st_size)
