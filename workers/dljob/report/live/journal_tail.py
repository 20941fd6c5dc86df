"""Reader of a journal that is being written: each call returns the records since the last one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dljob.errors import JournalError
from dljob.report import journal_files
from dljob.report.history import is_needed
from dljob.report.journal_files import JournalPart
from dljob.runtime.journal.stores import SUFFIX
from dljob.telemetry.records import Record


class JournalTail:
    """Follows the segments of a journal; `troubles` has what could not be read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._segment: JournalPart | None = None
        self._offset = self._line = 0
        self._seen: frozenset[str] = frozenset()
        self.troubles: list[str] = []

    def read(self) -> list[Record]:
        """Return the new records that a history is made of."""
        records: list[Record] = []
        names = frozenset(path.name for path in self._folder.glob(f"*{SUFFIX}"))
        # Parts are seldom begun: only then the chain is looked at again.
        if names != self._seen:
            damage: list[JournalError] = []
            chain = journal_files.parts(self._folder, damage)
            self._say([journal_files.older_is_gone(chain), *(error.message for error in damage)])
            at = self._segment.number if self._segment else 0
            for journal_part in chain:
                if journal_part.number < at:
                    continue
                if journal_part.number > at:
                    self._segment, self._offset, self._line = journal_part, 0, 0
                records += self._part(journal_part)
            # A part without a header is one that begins at this moment, or that no master came to write.
            self._seen = names if chain and chain[-1].path.name == max(names) else frozenset()
        elif self._segment:
            records += self._part(self._segment)
        return records

    def _part(self, journal_part: JournalPart) -> list[Record]:
        damage: list[JournalError] = []
        lines = journal_files.PartLines(journal_part, self._offset, self._line)
        records = list(lines.read(is_needed, damage))
        self._offset, self._line = lines.offset, lines.line
        self._say(error.message for error in damage)
        return records

    def _say(self, texts: Iterable[str]) -> None:
        self.troubles += [text for text in texts if text and text not in self.troubles]
