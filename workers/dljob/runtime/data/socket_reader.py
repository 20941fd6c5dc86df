"""A source behind a socket, by a protocol of lines, for a program that keeps its events and can repeat them.

    source("clicks", "tcp://host:7000")

    PARTITIONS               ->  name first next          a line for each partition, then an empty line
    READ name offset most    ->  offset next time size    a line for each event, which its `size` bytes follow; then
                                                          an empty line

Names have no spaces, offsets are whole numbers, times are unix seconds. `ERROR words` may stand in place of any answer.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, TypeVar
from urllib.parse import urlsplit

from dljob.errors import UsageError
from dljob.runtime.data.source_reader import Extent, SourceError, SourceEvent

ANSWER_S = 2.0
"""Longest wait for a part of an answer."""
LINE = 4096
"""Longest line of an answer, in bytes."""
MOST_EVENT = 256 << 20
"""Largest event, in bytes."""

Answer = TypeVar("Answer")


def open_source(uri: str, options: Mapping[str, Any]) -> SocketReader:
    """Open `tcp://HOST:PORT`."""
    if options:
        raise UsageError(f"source({uri!r}): a socket takes no option {next(iter(options))!r}")
    parts = urlsplit(uri)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not port or parts.path not in ("", "/"):
        raise UsageError(f"source({uri!r}): wanted a host and a port, as in tcp://host:7000")
    return SocketReader(host, port)


class SocketReader:
    """One connection, made at the first question, and anew after an error: an answer may be half there."""

    def __init__(self, host: str, port: int) -> None:
        self._where = (host, port)
        self._socket: socket.socket | None = None
        self._file: BinaryIO | None = None

    def partitions(self) -> Mapping[str, Extent]:
        """Return the partitions that the other side tells."""

        def answer(file: BinaryIO) -> dict[str, Extent]:
            extents: dict[str, Extent] = {}
            while words := _line(file):
                name, first, after = words
                extents[name] = Extent(int(first), int(after))
            return extents

        return self._asked("PARTITIONS", answer)

    def read(self, partition: str, offset: int, most: int) -> Sequence[SourceEvent]:
        """Return the events that the other side has."""

        def answer(file: BinaryIO) -> list[SourceEvent]:
            events: list[SourceEvent] = []
            while words := _line(file):
                at, after, time, size = words
                if not 0 <= int(size) <= MOST_EVENT:
                    raise SourceError(f"an event of {size} bytes at offset {at}, and at most {MOST_EVENT} are taken")
                value = file.read(int(size))
                if len(value) < int(size):
                    raise ConnectionError("the connection ended in the middle of an event")
                events.append(SourceEvent(partition, int(at), int(after), value, float(time)))
            return events

        return self._asked(f"READ {partition} {offset} {most}", answer)

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            if self._file is not None:
                self._file.close()
            if self._socket is not None:
                self._socket.close()
        self._socket = self._file = None

    def _asked(self, question: str, answer: Callable[[BinaryIO], Answer]) -> Answer:
        host, port = self._where
        try:
            if self._socket is None or self._file is None:
                self._socket = socket.create_connection(self._where, ANSWER_S)
                self._file = self._socket.makefile("rb")
            self._socket.sendall(f"{question}\n".encode())
            return answer(self._file)
        except (OSError, ValueError, SourceError) as error:
            self.close()
            words = error.message if isinstance(error, SourceError) else error
            raise SourceError(f"{host}:{port} to {question.split(maxsplit=1)[0]}: {words}") from error


def _line(file: BinaryIO) -> list[str]:
    """Return the words of the next line; none at the end of an answer."""
    line = file.readline(LINE)
    if not line.endswith(b"\n"):
        raise ConnectionError("the connection ended in the middle of an answer")
    words = line.decode().split()
    if words[:1] == ["ERROR"]:
        raise SourceError(" ".join(words[1:]))
    return words
