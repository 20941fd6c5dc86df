"""The traced calls in a job's folder, or in its record on a checkpoint volume."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from dljob.calls.trace_rows import RowsDropped, TracedFile, decode
from dljob.linux.plain_files import bounded_lines, open_plain, read_plain
from dljob.logs.archive import CALLS
from dljob.runtime.journal.kept_record import ATTEMPT, EARLIER
from dljob.telemetry.wording import counted

LINE_BYTES = 1 << 20
"""Longest line that is read: no call has so long a row."""


def load(folder: Path) -> tuple[list[TracedFile], list[str]]:
    """Return the traced calls, by process of a rank, and what is missing of them, for a reader."""
    files, unread = list[TracedFile](), list[str]()
    for path in sorted(_place(folder).glob("*.jsonl")):
        try:
            with open_plain(path) as stream:
                file = decode(bounded_lines(stream, LINE_BYTES))
        except OSError as error:
            unread.append(f"calls: {path.name}: {error.strerror}")
            continue
        if file is None:
            unread.append(f"calls: {path.name} is damaged, or of another version of dljob")
        else:
            files.append(file)
    dropped = sum(row.calls for file in files for row in file.rows if isinstance(row, RowsDropped))
    damaged = sum(file.damaged_lines for file in files)
    if dropped:
        unread.append(f"calls: {dropped} sampled ones were dropped: there was no room for them")
    if damaged:
        unread.append(f"calls: {counted(damaged, 'damaged line')} left out, as a killed process leaves them")
    return files, unread


def _place(folder: Path) -> Path:
    """Return the folder of the traced calls: on a volume each attempt has its own."""
    if folder.parent.name == EARLIER:
        return folder.parents[1] / CALLS / folder.name
    with suppress(OSError, ValueError):  # no record on a volume
        return folder / CALLS / f"attempt-{int(read_plain(folder / ATTEMPT))}"
    return folder / CALLS
