"""The output of ranks, read from the job's folder: by role and rank, the last lines, and on as they are written."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dljob.errors import NotFoundError

POLL_S = 0.2
"""How often `follow` looks for new output; a terminal needs no more."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a rank's output, without its end."""

    role: str
    rank: int
    text: str

    def __str__(self) -> str:
        return f"[{self.role}/{self.rank}] {self.text}"


@dataclass(slots=True)
class _Reader:
    """A log that grows: what has been read of it, and the line that has no end yet."""

    role: str
    rank: int
    path: Path
    at: int = 0
    rest: bytes = field(default=b"")

    def read(self) -> list[Line]:
        """The lines that were finished since the last time. A log that was cut off is read from its start."""
        if self.path.stat().st_size < self.at:
            self.at, self.rest = 0, b""
        with self.path.open("rb") as log:
            log.seek(self.at)
            data = log.read()
        self.at += len(data)
        *whole, self.rest = (self.rest + data).split(b"\n")
        return [self._line(line) for line in whole]

    def last(self) -> list[Line]:
        """The line that never got its end."""
        line, self.rest = self.rest, b""
        return [self._line(line)] if line else []

    def _line(self, data: bytes) -> Line:
        return Line(self.role, self.rank, data.decode("utf-8", "replace").rstrip("\r"))


def _logs(folder: Path, role: str | None, rank: int | None) -> dict[Path, tuple[str, int]]:
    """The logs that are asked for, by role and rank."""
    found: list[tuple[str, int, Path]] = []
    for path in (folder / "logs").glob("*.log"):
        name, _, number = path.stem.rpartition("-")
        if name and number.isdigit() and role in (None, name) and rank in (None, int(number)):
            found.append((name, int(number), path))
    return {path: (name, number) for name, number, path in sorted(found)}


def read(folder: Path, *, role: str | None = None, rank: int | None = None, tail: int | None = None) -> list[Line]:
    """The lines there are, rank by rank; with `tail`, the last so many of each.

    Raises:
        NotFoundError: no log of that role and rank.
    """
    lines: list[Line] = []
    logs = _logs(folder, role, rank)
    for path, (name, number) in logs.items():
        reader = _Reader(name, number, path)
        own = [*reader.read(), *reader.last()]
        lines += own if tail is None else own[max(0, len(own) - tail) :]
    if not logs:
        raise _nothing(folder, role, rank)
    return lines


def follow(
    folder: Path, over: Callable[[], bool], *, role: str | None = None, rank: int | None = None, tail: int | None = None
) -> Iterator[Line]:
    """The lines there are (with `tail`, the last of each rank) and those to come, until the job is over."""
    readers: dict[Path, _Reader] = {}
    while True:
        ended = over()  # asked first: what is written before the end is read after it
        for path, (name, number) in _logs(folder, role, rank).items():
            new = path not in readers
            reader = readers.setdefault(path, _Reader(name, number, path))
            lines = reader.read()
            yield from lines[max(0, len(lines) - tail) :] if new and tail is not None else lines
        if ended:
            for reader in readers.values():
                yield from reader.last()
            return
        time.sleep(POLL_S)


def _nothing(folder: Path, role: str | None, rank: int | None) -> NotFoundError:
    there = sorted({name for name, _ in _logs(folder, None, None).values()})
    wanted = "/".join(str(x) for x in (role, rank) if x is not None)
    what = f"no output of {wanted}" if wanted else "no output yet"
    return NotFoundError(
        f"{what} in {os.fspath(folder / 'logs')}", hint=f"there is output of: {', '.join(there)}" if there else ""
    )
