"""Output of ranks, read from the job's folder by role and rank: whole, the last lines, or as it grows.

A log is read in pieces, never into memory as a whole: a line is broken after `LINE_BYTES`, and the unfinished line of a
progress bar after `REWRITTEN_BYTES`. Parts cut out of the middle of a log are a hole in the file (`dljob.logs.cut`),
and are skipped.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections import deque
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from dljob.errors import NotFoundError
from dljob.linux.plain_files import open_plain, read_json
from dljob.logs.cut import next_data
from dljob.logs.marks import place_since
from dljob.spec.status import TERMINAL

POLL_S = 0.2
"""Poll interval of `follow`, in seconds; enough for a terminal."""
PIECE = 1 << 20
LINE_BYTES = 16 << 20
"""Longest line that is kept together: a rank may write for hours without a line end."""
REWRITTEN_BYTES = 64 << 10
"""Size from which an unfinished line is broken at its last carriage return."""
MARK_BYTES = 256
"""Bytes in which dljob's first line of a process is recognized."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a rank's output, without its line end."""

    role: str
    rank: int
    text: str

    def __str__(self) -> str:
        return f"[{self.role}/{self.rank}] {self.text}"


@dataclass(slots=True)
class LogTail:
    """Reading position in a log that grows, and its unfinished last line."""

    role: str
    rank: int
    path: Path
    at: int = 0
    rest: bytes = field(default=b"")

    @property
    def name(self) -> str:
        """The rank in the usual form: role/rank."""
        return f"{self.role}/{self.rank}"

    def pieces(self) -> Iterator[bytes]:
        """Yield the data written since the last call; nothing if the log is not a regular file."""
        try:
            # O_NONBLOCK: user code can put a FIFO in the place of a log, and opening it would block for ever.
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        with os.fdopen(fd, "rb", buffering=0) as log:
            # Of the open file, not of the path: it could be replaced between the two.
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                return
            # Shorter than the offset reached: the file was replaced or truncated, and is read from its start.
            if info.st_size < self.at:
                self.at, self.rest = 0, b""
            while data := self._piece(log.fileno(), info.st_size):
                yield data

    def _piece(self, fd: int, size: int) -> bytes:
        """Return the next data before `size`, up to where a hole begins."""
        if self.at >= size:
            return b""
        # A log that was cut keeps its size, and has a hole (ADR 58): reading it would yield NUL bytes.
        start, end = next_data(fd, self.at, size)
        data = os.pread(fd, min(PIECE, end - start), start)
        self.at = start + len(data)
        return data

    def lines(self) -> Iterator[LogLine]:
        """Yield the lines completed since the last call."""
        for data in self.pieces():
            *full_lines, rest = (self.rest + data).split(b"\n")
            self.rest = rest
            yield from map(self.line, full_lines)
            # What has no line end must not grow in memory.
            while len(self.rest) > REWRITTEN_BYTES:
                end = self.rest.rfind(b"\r", 0, min(len(self.rest) - 1, LINE_BYTES)) + 1 or LINE_BYTES
                if len(self.rest) <= end:
                    break
                broken, self.rest = self.rest[:end], self.rest[end:]
                yield self.line(broken)

    def last(self) -> list[LogLine]:
        """Return the unfinished last line, if any."""
        line, self.rest = self.rest, b""
        return [self.line(line)] if line else []

    def line(self, data: bytes) -> LogLine:
        """Make a line of bytes; those that are not UTF-8 become escapes, one for each byte."""
        return LogLine(self.role, self.rank, data.decode("utf-8", "backslashreplace").rstrip("\r"))


def find_logs(folder: Path, role: str | Container[str] | None = None, rank: int | None = None) -> dict[Path, LogTail]:
    """Return the logs in a job's folder, by path; only those of a role (or of several) and a rank."""
    roles: Container[str] | None = (role,) if isinstance(role, str) else role
    logs: list[LogTail] = []
    for path in (folder / "logs").glob("*.log"):
        name, _, number = path.stem.rpartition("-")  # a role's name may itself contain a dash
        if name and number.isdigit() and (roles is None or name in roles) and rank in (None, int(number)):
            logs.append(LogTail(name, int(number), path))
    # `glob` yields in no particular order.
    return {log.path: log for log in sorted(logs, key=lambda log: (log.role, log.rank))}


@dataclass(frozen=True, slots=True)
class Since:
    """A moment from which output is shown."""

    moment: float
    """Unix seconds."""
    say: Callable[[str], None]
    """Called with a message about a log without known times, which is then shown whole."""

    def begin(self, log: LogTail) -> None:
        """Set where to begin to read a log."""
        place = place_since(log.path, self.moment)
        log.at = place or 0
        if place is None:
            self.say(UNTIMED.format(log.name))


UNTIMED = "the output of {} has no known times: its log is shown whole"


def read(
    folder: Path,
    *,
    role: str | None = None,
    rank: int | None = None,
    tail: int | None = None,
    since: Since | None = None,
    alive: bool = False,
) -> Iterator[LogLine]:
    """Return the lines so far, rank by rank; with `tail`, the last `tail` lines of each rank.

    Args:
        folder: the job's.
        role: only this role.
        rank: only this rank.
        tail: the number of lines; None: all.
        since: only output since then.
        alive: whether the job's runner lives, so that there is no status only because the job has just begun.

    Raises:
        NotFoundError: the job has no such rank, or its folder has no log.
    """
    logs = find_logs(folder, role, rank)
    # Raised here: an error inside the generator would only appear at its first line.
    if not logs and not _is_silent(folder, role, rank, alive=alive):
        raise _nothing(folder, role, rank)
    return (line for log in logs.values() for line in _read(log, tail, since))


def _read(log: LogTail, tail: int | None, since: Since | None) -> Iterator[LogLine]:
    if since is not None:
        since.begin(log)
    if tail is None:
        yield from log.lines()
        yield from log.last()
        return
    # Both bound the output, so the later beginning counts.
    log.at = max(log.at, _last_lines(log.path, tail))
    last_lines = deque(log.lines(), maxlen=tail + 1)
    last_lines.extend(log.last())
    yield from list(last_lines)[max(0, len(last_lines) - tail) :]


def _last_lines(path: Path, count: int) -> int:
    """Return an offset from which a file holds at least its last `count` lines."""
    try:
        with open_plain(path) as log:
            at = log.seek(0, os.SEEK_END)
            ends = 0
            # One line end more than lines: a whole last line has an end of its own.
            while at > 0 and ends <= count:
                at = max(0, at - PIECE)
                log.seek(at)
                ends += log.read(PIECE).count(b"\n")
            return at
    except OSError:
        return 0


def follow(
    folder: Path,
    over: Callable[[], bool],
    *,
    role: str | None = None,
    rank: int | None = None,
    tail: int | None = None,
    since: Since | None = None,
) -> Iterator[LogLine]:
    """Yield the lines so far (with `tail`, the last of each rank) and those to come, until the job is over."""
    readers: dict[Path, LogTail] = {}
    while True:
        ended = over()  # asked before the read: else lines written between the read and the end would be lost
        for path, log in find_logs(folder, role, rank).items():
            # Position and unfinished line are with the reader of the earlier turns; `log` is a new one.
            if path in readers:
                yield from readers[path].lines()
                continue
            # A rank that starts later has a new file, so the folder is listed again each time.
            readers[path] = log
            if since is not None:
                since.begin(log)
            if tail is not None:
                log.at = max(log.at, _last_lines(path, tail))
            yield from deque(log.lines(), maxlen=tail) if tail is not None else log.lines()
        if ended:
            # Only now is an unfinished line known to stay so.
            for reader in readers.values():
                yield from reader.last()
            return
        time.sleep(POLL_S)


def of_incarnation(log: BinaryIO, name: str, incarnation: int, most: int) -> bytes:
    """Return the last `most` bytes that one process of a rank wrote; of an unknown process, those of the whole log.

    Raises:
        OSError: the log cannot be read.
    """
    # One log holds all processes of a rank, each begun by a line of dljob with its incarnation; search from the end.
    mark = re.compile(rb"^\[dljob\] \d\d:\d\d:\d\d %s starts, incarnation (\d+)[,\n]" % re.escape(name.encode()), re.M)
    end = at = log.seek(0, os.SEEK_END)
    begin = 0
    while at > 0 and not begin:
        at = max(0, at - PIECE)
        log.seek(at)
        # MARK_BYTES more than a piece, for a mark that lies across two pieces.
        for found_at in reversed(list(mark.finditer(log.read(PIECE + MARK_BYTES)))):
            number = int(found_at[1])
            # A later process of the rank begins here, so that the wanted one has ended before.
            if number > incarnation:
                end = at + found_at.start()
            elif number == incarnation:
                begin = at + found_at.end() - 1
                break
    start = max(begin, end - most)
    log.seek(start)
    text = log.read(max(0, end - start))
    # The rest of the marking line is dljob's, not the rank's output.
    return text.partition(b"\n")[2] if start == begin and begin else text


def _is_silent(folder: Path, role: str | None, rank: int | None, *, alive: bool) -> bool:
    """Whether a job that is not over has these ranks, which have only not written anything yet."""
    try:
        status = read_json(folder / "status.json")
        sizes: dict[str, int] = {row["name"]: row["desired"] for row in status["roles"]}
        if status["phase"] in TERMINAL:
            return False
    except FileNotFoundError:
        return alive
    except (OSError, ValueError, LookupError, TypeError):
        return False
    return bool(sizes) if role is None else (rank or 0) < sizes.get(role, 0)


def _nothing(folder: Path, role: str | None, rank: int | None) -> NotFoundError:
    roles_with_output = sorted({log.role for log in find_logs(folder).values()})
    selection = "/".join(str(x) for x in (role, rank) if x is not None)
    problem = f"no output of {selection}" if selection else "no output yet"
    return NotFoundError(
        f"{problem} in {os.fspath(folder / 'logs')}",
        hint=f"there is output of: {', '.join(roles_with_output)}" if roles_with_output else "",
    )
