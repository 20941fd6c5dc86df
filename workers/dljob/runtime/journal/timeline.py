"""A job's events and status for readers outside: `events.jsonl`, `status.json`, and the answers of long polls.

An event's number follows from the journal: a master that replays gives each event the same number again, and appends to
the file only what is not in it. A folder that hangs, as a network file system may, delays no decision: writes wait for
it in their order, and of the statuses only the last one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dljob.master.state.actions import Note
from dljob.runtime.journal.event_file import events_before, last_events
from dljob.runtime.journal.volume import FULL, reserve

log = logging.getLogger(__package__)

EVENTS = "events.jsonl"
STATUS = "status.json"
KEPT = 2000
"""Events in memory for long polls; older ones are in the file."""
RESERVED = ".status.room"
"""File whose blocks the status takes on a full volume."""
RESERVE = 64 << 10
"""Bytes of the volume that are kept for events, and for the status."""
LATE_S = 2.0
"""Seconds after which nothing waits for a write any longer, nor for those behind it until it is done."""
END_S = 10.0
"""Seconds that the end of the job waits for writes that are late."""
_ODD = "backslashreplace"
"""Half a character (in a file name that is not UTF-8) is written as JSON's own escape for it."""


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one step: readers see the old or the new one, whole. Of several writers the last wins."""
    # A random part: a fenced master and its successor may write at the same time.
    temp = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        temp.write_text(text, encoding="utf-8", errors=_ODD)
        temp.replace(path)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise


class Timeline:
    """Numbered events, from 1, and the last status; both also in the job's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with suppress(OSError):  # the journal decides whether a job can run; these files are only for readers
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._notes: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.seq = 0
        # By the file: an earlier master may have died before, or after, its last events reached it.
        self._filed = last_seq(folder / EVENTS)
        # One thread keeps the order of the writes, off the event loop: the volume may be slow.
        self._files = ThreadPoolExecutor(1, thread_name_prefix="dljob-files")
        self._last: Future[None] | None = None
        self._late = False
        """Whether the last write was waited for in vain."""
        self._statuses: deque[Mapping[str, Any]] = deque(maxlen=1)
        """The status that waits to be written."""

    def resume(self, seq: int, noted: Iterable[dict[str, Any]]) -> None:
        """Continue behind the event of a snapshot; `noted` are the events in the file."""
        self.seq = seq
        self._notes.clear()
        # Later ones follow again from the events that are replayed.
        self._notes.extend(note for note in noted if note["seq"] <= seq)

    def read_again(self) -> None:
        """Look again which events are in the file, and take those from it that come before the ones in memory.

        The master that this one followed has written more; or they were brought from the volume of checkpoints.
        """
        self._filed = last_seq(self._folder / EVENTS)
        first = self._notes[0]["seq"] if self._notes else self.seq + 1
        if room := KEPT - len(self._notes):
            earlier = events_before(self._folder / EVENTS, first, room, lambda _: True).events
            self._notes.extendleft(reversed(earlier))

    def add(self, note: Note, now: float) -> None:
        """Number an event; `flush` writes it to the file."""
        self.seq += 1
        note_fields = {k: v for k, v in asdict(note).items() if v not in ("", None)}
        self._notes.append({"seq": self.seq, "time": round(now, 3), **note_fields})

    def after(self, seq: int) -> list[dict[str, Any]]:
        """Return the events with a greater number, as far as they are in memory."""
        return [note for note in self._notes if note["seq"] > seq]

    async def flush(self) -> None:
        """Append new events to the file; a folder that cannot be written, or hangs, does not stop a job."""
        fresh = self.after(self._filed)
        if fresh:
            await self._write(lambda: self._append(fresh))

    async def status(self, status: Mapping[str, Any]) -> None:
        """Write the status for readers without Ray."""
        self._statuses.append(status)
        await self._write(self._write_status)

    def close(self) -> None:
        """Wait until all queued writes are in the files, at most END_S."""
        with suppress(RuntimeError):  # closed before
            self._last = self._files.submit(_quietly, (self._folder / RESERVED).unlink)
        self._files.shutdown(wait=False)
        if self._last is not None:
            wait([self._last], END_S)

    def _append(self, fresh: Sequence[Mapping[str, Any]]) -> None:
        """Append those events that no write before this one has; what a full volume refuses follows with the next."""
        notes = [note for note in fresh if note["seq"] > self._filed]
        lines = "".join(json.dumps(note, ensure_ascii=False) + "\n" for note in notes)
        if lines:
            _append(self._folder / EVENTS, lines)
            self._filed = notes[-1]["seq"]

    def _write_status(self) -> None:
        with suppress(IndexError):  # an earlier call has written it
            status = self._statuses.pop()
            text, path = json.dumps(status, ensure_ascii=False, indent=1), self._folder / STATUS
            try:
                write_atomically(path, text)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                self._write_into_reserve(path, text)
            self._reserve(len(text))

    def _reserve(self, size: int) -> None:
        """Keep a file with room for the next status: on a full volume the last one would say for ever that it runs."""
        with suppress(OSError):
            fd = os.open(self._folder / RESERVED, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                reserve(fd, max(2 * size, RESERVE))
            finally:
                os.close(fd)

    def _write_into_reserve(self, path: Path, text: str) -> None:
        reserved = self._folder / RESERVED
        with reserved.open("r+b", buffering=0) as file:
            file.write(text.encode("utf-8", _ODD))
            file.truncate()
        reserved.replace(path)

    async def _write(self, function: Callable[[], None]) -> None:
        self._late = self._late and self._last is not None and not self._last.done()
        self._last = self._files.submit(_quietly, function)
        if self._late:
            return
        done, _ = await asyncio.wait([asyncio.wrap_future(self._last)], timeout=LATE_S)
        if not done:
            self._late = True
            log.warning("%s takes no file for %.0f s: events and status follow once it does", self._folder, LATE_S)


def _quietly(function: Callable[[], None]) -> None:
    with suppress(OSError):  # as above: a full volume must not end the job by this way
        function()


def _append(path: Path, text: str) -> None:
    """Append lines to a file; a line that was cut off is ended first, else the first one would become a part of it."""
    with path.open("a+b", buffering=0) as file:
        if size := file.tell():
            file.seek(-1, os.SEEK_END)
            torn = file.read() != b"\n"
            text = f"\n{text}" if torn else text
        rest = memoryview(text.encode("utf-8", _ODD))
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            file.truncate(size)  # they are written again, whole, once there is room
            raise
        reserve(file.fileno(), RESERVE)


def last_seq(path: Path) -> int:
    """Return the number of the last whole event in a file; 0 without one."""
    return next((event["seq"] for event in last_events(path, 1)), 0)
