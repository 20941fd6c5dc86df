"""Server-sent events out of the bytes of an HTTP answer, bounded."""

from __future__ import annotations

from typing import NoReturn

LINE_LIMIT = 64 << 20
"""Most bytes of one event: an answer that never ends a line is not to fill the caller's memory."""


class LineTooLongError(Exception):
    """An event is longer than the limit."""


class SseDecoder:
    """Splits the bytes of an answer into the data of its events; comments, names and ids of events are left out."""

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._rest: list[bytes] = []
        """Parts of a line that has not ended yet: joined once, however many reads it takes."""
        self._length = 0
        self._data: list[bytes] = []
        """Lines of data of an event that has not ended yet."""

    def feed(self, part: bytes) -> list[bytes]:
        """Return the data of the events that end in this part. An event that is cut off is never returned.

        Raises:
            LineTooLongError: an event is longer than the limit.
        """
        # Servers send each event by itself, and it mostly arrives so.
        if part.startswith(b"data: ") and part.endswith(b"\n\n") and not self._length and part.count(b"\n") == 2:
            return [part[6:-2]] if len(part) <= self._limit else self._too_long()
        lines = part.split(b"\n")
        if len(lines) == 1:
            self._keep(part)
            return []
        if self._rest:
            lines[0] = b"".join((*self._rest, lines[0]))
            self._rest.clear()
        last = lines.pop()
        events: list[bytes] = []
        for whole in lines:
            line = whole[:-1] if whole.endswith(b"\r") else whole
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif not line and self._data:
                # A list of one is by far the most frequent.
                events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data.clear()
        self._length = sum(map(len, self._data))
        self._keep(last)
        return events

    def _keep(self, part: bytes) -> None:
        self._length += len(part)
        if self._length > self._limit:
            self._too_long()
        if part:
            self._rest.append(part)

    def _too_long(self) -> NoReturn:
        raise LineTooLongError(f"an event has more than {self._limit:,} bytes")
