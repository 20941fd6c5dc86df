"""What a job shows to the outside without a question: `events.jsonl`, `status.json`, and the notes of a long poll.

A note's number follows from the journal, so a master that replays gives each note the number it had, and writes to the
file only what is not in it yet.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dljob.master.state.actions import Note

EVENTS = "events.jsonl"
STATUS = "status.json"
KEPT = 2000
_ODD = "backslashreplace"
"""Half a character, as in a name of a file that is no UTF-8: JSON's own escape for it."""


def write_atomically(path: Path, text: str) -> None:
    """Replace a file at once: readers see the old or the new one, whole; of several writers the last one counts."""
    temp = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        temp.write_text(text, encoding="utf-8", errors=_ODD)
        temp.replace(path)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise


class Timeline:
    """Notes with numbers from 1, and the last status, both also in the job's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        self._notes: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.seq = 0
        self._filed = _last_seq(folder / EVENTS)
        self._files = ThreadPoolExecutor(1, thread_name_prefix="dljob-files")

    def resume(self, seq: int, noted: Iterable[dict[str, Any]]) -> None:
        """Go on behind a note after which a snapshot was written; `noted`: what the file has."""
        self.seq = seq
        self._notes.clear()
        self._notes.extend(note for note in noted if note["seq"] <= seq)

    def add(self, note: Note, now: float) -> None:
        """Number a note; `flush` puts it into the file."""
        self.seq += 1
        said = {k: v for k, v in asdict(note).items() if v not in ("", None)}
        self._notes.append({"seq": self.seq, "time": round(now, 3), **said})

    def after(self, seq: int) -> list[dict[str, Any]]:
        """The notes with a greater number, as far as they are kept in memory."""
        return [note for note in self._notes if note["seq"] > seq]

    async def flush(self) -> None:
        """Append to the file what is not there; a folder that cannot be written does not stop a job."""
        fresh = self.after(self._filed)
        if not fresh:
            return
        self._filed = self.seq
        lines = "".join(json.dumps(note, ensure_ascii=False) + "\n" for note in fresh)
        await self._run(lambda: _append(self._folder / EVENTS, lines))

    async def status(self, status: Mapping[str, Any]) -> None:
        """Write the status for those who read without Ray."""
        path = self._folder / STATUS
        await self._run(lambda: write_atomically(path, json.dumps(status, ensure_ascii=False, indent=1)))

    def close(self) -> None:
        """Return when what was handed to the files is in them."""
        self._files.shutdown()

    async def _run(self, function: Any) -> None:
        with suppress(OSError):
            await asyncio.get_running_loop().run_in_executor(self._files, function)


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8", errors=_ODD) as file:
        file.write(text)


def _last_seq(path: Path) -> int:
    """The number of the last whole note in the file; a line that was cut off is ended first."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return 0
    if lines[-1]:
        with suppress(OSError):
            _append(path, "\n")
    for line in reversed(lines):
        with suppress(ValueError, KeyError, TypeError):
            return int(json.loads(line)["seq"])
    return 0
