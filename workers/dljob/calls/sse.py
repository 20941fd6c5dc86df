"""Server-sent events of an HTTP answer, decoded from its bytes; the size of an event is bounded."""

from __future__ import annotations

MAX_EVENT_BYTES = 64 << 20
"""Most bytes of one event: an answer that never ends a line must not fill the caller's memory."""


class LineTooLongError(Exception):
    """An event is longer than the limit."""


class SseDecoder:
    """Splits the bytes of an answer into the data of its events; comments, names and ids of events are left out."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._line_parts: list[bytes] = []
        """Parts of a line that has not ended yet: joined once, however many reads it takes."""
        self._pending_bytes = 0
        """Bytes of `_line_parts` and `_data_lines`."""
        self._data_lines: list[bytes] = []
        """Lines of data of an event that has not ended yet."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of the events that end in the next bytes. An event that is cut off is never returned.

        Raises:
            LineTooLongError: an event is longer than the limit.
        """
        # Servers send each event by itself, and it mostly arrives in one chunk.
        is_one_line = chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") and chunk.count(b"\n") == 2
        if is_one_line and not self._pending_bytes:
            self._check_size(len(chunk))
            return [chunk[6:-2]]
        lines = chunk.split(b"\n")
        if len(lines) == 1:
            self._add_line_part(chunk)
            return []
        if self._line_parts:
            lines[0] = b"".join((*self._line_parts, lines[0]))
            self._line_parts.clear()
        unfinished_line = lines.pop()
        events: list[bytes] = []
        for line in lines:
            text = line.removesuffix(b"\r")
            if text.startswith(b"data:"):
                self._data_lines.append(text[6:] if text.startswith(b"data: ") else text[5:])
            elif not text and self._data_lines:
                # Almost all events have one line of data.
                events.append(self._data_lines[0] if len(self._data_lines) == 1 else b"\n".join(self._data_lines))
                self._data_lines.clear()
        self._pending_bytes = sum(map(len, self._data_lines))
        self._add_line_part(unfinished_line)
        return events

    def _add_line_part(self, part: bytes) -> None:
        self._pending_bytes += len(part)
        self._check_size(self._pending_bytes)
        if part:
            self._line_parts.append(part)

    def _check_size(self, size: int) -> None:
        if size > self._max_event_bytes:
            raise LineTooLongError(f"an event has more than {self._max_event_bytes:,} bytes")
