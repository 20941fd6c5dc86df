"""A copy of a job's record on this machine, brought up to date by the answers of PrimeMaster's gateway."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dljob.runtime.journal.record_files import NAME
from dljob.runtime.journal.timeline import EVENTS, STATUS, write_atomically

MOST_BYTES = 64 << 20
"""Bytes of a record that are copied: of a longer one the newest parts of the journal, and the newest events."""
AT_ONCE = 16
"""Files in one question, which has to fit into an address."""


class RecordCopy:
    """Copies one attempt's record into an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._have: dict[str, int] = {}
        """Path -> bytes that the copy has; of the status the time of its change."""
        self._files: dict[str, int] = {}
        """The last list of the record's files."""
        self._skipped: set[str] = set()

    def question(self) -> dict[str, int]:
        """Return the files to ask for next: those that the copy lacks, else those that grow."""
        # None before the first list: it says how much there is.
        names = self.behind() or self._growing()
        return {name: self._have.get(name, 0) for name in names[:AT_ONCE]}

    def behind(self) -> list[str]:
        """Return the files of which the copy has not all, by the last list."""
        return [
            name for name, now in self._files.items() if self._have.get(name, 0) != now and name not in self._skipped
        ]

    def take(self, news: Mapping[str, Any]) -> bool:
        """Take an answer; return whether it brought anything."""
        first = not self._files
        self._files = {str(name): int(now) for name, now in news["files"].items() if NAME.fullmatch(str(name))}
        self._skip()
        parts = [part for part in news["parts"] if NAME.fullmatch(str(part["file"]))]
        for part in parts:
            self._write(str(part["file"]), int(part["from"]), base64.b64decode(part["data"]))
        return first or bool(parts)

    def tidy(self) -> None:
        """Delete what the record has no more, once the copy has its successors."""
        for name in self._have.keys() - self._files.keys() - {STATUS}:
            del self._have[name]
            (self.folder / name).unlink(missing_ok=True)

    def _growing(self) -> list[str]:
        parts = [name for name in self._files if name.endswith(".jsonl") and name != EVENTS]
        # Of each folder the last one: the others are whole.
        newest = {name.rpartition("/")[0]: name for name in sorted(parts)}
        return [name for name in (STATUS, EVENTS, *newest.values()) if name in self._files]

    def _skip(self) -> None:
        """Leave out what is too much, from the oldest on; a part of the journal that the copy has stays."""
        bytes_left = MOST_BYTES
        # By number: `closed/000001.jsonl.gz` is older than `000002.jsonl`.
        journal = [name for name in self._files if name.startswith("journal/")]
        for name in sorted(journal, key=lambda name: name.rpartition("/")[2], reverse=True):
            bytes_left -= self._files[name]
            if bytes_left < 0 and name not in self._have:
                self._skipped.add(name)
        if EVENTS not in self._have and self._files.get(EVENTS, 0) > MOST_BYTES // 2:
            # The file has a hole at its beginning, which readers skip as a torn line.
            self._have[EVENTS] = self._files[EVENTS] - MOST_BYTES // 2

    def _write(self, name: str, begin: int, data: bytes) -> None:
        file = self.folder / name
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if name == STATUS:
            write_atomically(file, data.decode("utf-8", "replace"))
            self._have[name] = self._files.get(name, 0)
            return
        # From the beginning: another file of that name.
        with file.open("r+b" if begin and file.exists() else "wb") as target:
            target.seek(begin)
            target.write(data)
        self._have[name] = begin + len(data)
