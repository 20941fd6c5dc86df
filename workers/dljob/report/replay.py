"""The past of a job, rebuilt from the journal in its folder: its state behind each event, or at one moment.

A journal of this code is folded again, event by event, as PrimeMaster did. Other code might decide otherwise: of its
journal the state is taken as it was written, one for each batch of events.
"""

from __future__ import annotations

import shlex
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dljob.errors import JournalError, NotFoundError, UsageError
from dljob.linux.plain_files import parse_json, read_json
from dljob.master.persistence.changes import Written
from dljob.master.persistence.codec import decode_event, decode_state, encode_state
from dljob.master.persistence.migration import take
from dljob.master.state.actions import Note
from dljob.master.state.state import JobState
from dljob.master.status import rfc3339
from dljob.master.transition import initial, transition
from dljob.plan.plan import plan
from dljob.report import journal_files
from dljob.report.journal_files import JournalPart, PartContent
from dljob.runtime.journal import samples
from dljob.runtime.journal.code_version import code_version
from dljob.spec.model import DLJobManifest
from dljob.telemetry.records import Record

_NO_STATE = "the job never started, or the files of its journal were not copied with its folder"


@dataclass(slots=True)
class PastMoment:
    """A state that the job was in. Valid until the next one is asked for: it can be unpacked into four."""

    seq: int
    """Number of the last event of the timeline (`dljob events`) so far."""
    at: float
    """Unix seconds."""
    event: dict[str, Any] | None
    """The journal's event that led here (`t` is its kind); None at the oldest moment that is kept."""
    notes: tuple[Note, ...]
    """What it added to the timeline."""
    _state: JobState | Callable[[], JobState]

    @property
    def state(self) -> JobState:
        """The whole state.

        Raises:
            JournalError: Another version wrote it, and this one cannot read it.
        """
        if not isinstance(self._state, JobState):
            self._state = self._state()
        return self._state

    def __iter__(self) -> Iterator[Any]:
        """Unpack into number, time, state and event."""
        return iter((self.seq, self.at, self.state, self.event))


class Past:
    """The past of the job in a folder.

    Args:
        folder: The job's folder.
        core: Version of the code that reads; parts of another one are replayed by the changes that were written.
    """

    def __init__(self, folder: Path, core: str | None = None) -> None:
        self.folder = folder
        self.core = code_version() if core is None else core
        self.parts = _parts(folder)
        self.manifest = _manifest(folder, self.cores)
        self._uid = str(_read(folder / "status.json").get("uid") or _read(folder / "job.json").get("uid") or "")
        self._plan = plan(self.manifest)

    @cached_property
    def oldest(self) -> PastMoment:
        """The oldest moment that is kept."""
        for moment in self._fold(0):
            return moment
        raise self._empty()

    @property
    def cut(self) -> bool:
        """Whether parts before the oldest moment were dropped, or are missing."""
        return self.parts[0].header.prev is not None

    @property
    def cores(self) -> list[str]:
        """The versions of dljob that wrote the journal, in their order."""
        return list(dict.fromkeys(part.header.core for part in self.parts))

    @property
    def foreign(self) -> bool:
        """Whether another version of dljob wrote any of it."""
        return self.cores != [self.core]

    # -- moments

    def states(self) -> Iterator[PastMoment]:
        """Yield the state behind each event, oldest first; the first is that of the oldest part, without an event."""
        return self._fold(0)

    def at(self, when: float) -> PastMoment:
        """Return the state at a time (unix seconds).

        Raises:
            UsageError: The time is before the oldest moment that is kept, or after the last one.
            JournalError: The journal is damaged before it.
        """
        if when < self.oldest.at:
            message = f"{_shown(when)} is before the oldest moment kept, {_shown(self.oldest.at)}"
            raise UsageError(message, hint=self._hint)
        times = self._times()
        moment, later = self.oldest, False
        for candidate in self._fold(self._start(max(0, bisect_right(times, when) - 1))):
            if candidate.at > when:
                later = True
                break
            moment = candidate
            moment.state  # noqa: B018 - read before the next moment replaces what it is made of
        if not later and when > (end := self.end(moment)):
            hint = f"leave out --at for the last moment; {self._hint}"
            raise UsageError(f"{_shown(when)} is after the last moment recorded, {_shown(end)}", hint=hint)
        return moment

    def end(self, last: PastMoment) -> float:
        """Return the last time that is recorded: of a job that has not ended that of the last sample.

        Args:
            last: the last moment.
        """
        row = None if last.state.phase.final else samples.last_row(self.folder)
        return last.at if row is None else max(last.at, row.at)

    def behind(self, seq: int) -> PastMoment:
        """Return the state behind an event of the timeline, by its number.

        Raises:
            UsageError: The timeline has no such number, or its part was dropped.
            JournalError: The journal is damaged before it.
        """
        oldest = self.oldest
        if seq < max(1, oldest.seq):
            raise UsageError(f"event {seq} is before the oldest one kept, {max(1, oldest.seq)}", hint=self._hint)
        last = 0
        for moment in self._fold(self._start(self._part_of(seq))):
            if moment.seq >= seq:
                moment.state  # noqa: B018 - as above
                return moment
            last = moment.seq
        raise UsageError(f"there is no event {seq}: the last one is {last}", hint=self._hint)

    def last(self) -> PastMoment:
        """Return the last state."""
        for moment in deque(self._fold(self._start(len(self.parts) - 1)), maxlen=1):
            return moment
        raise self._empty()

    def _empty(self) -> NotFoundError:
        return NotFoundError(f"the journal in {self.folder} has no state of the job", hint=_NO_STATE)

    @property
    def _hint(self) -> str:
        reason = "the parts before it were dropped" if self.cut else "the job began then"
        return f"the journal begins at {_shown(self.oldest.at)}: {reason}"

    # -- the journal's parts

    def _times(self) -> list[float]:
        """Return the time at which each part begins; one without a record begins when the next one does."""
        times: list[float] = []
        after = float("inf")
        for part in reversed(self.parts):
            after = after if (begin := journal_files.first_time(part)) is None else begin
            times.append(after)
        return times[::-1]

    def _part_of(self, seq: int) -> int:
        """Return the last part that begins with a smaller number of the timeline."""
        low, high = 0, len(self.parts) - 1
        while low < high:
            middle = (low + high + 1) // 2
            records = journal_files.content(self.parts[middle]).records
            numbers = (record["seq"] for record in records if record["k"] == "notes")
            # A part without a number is one whose writer died at once: the parts before it decide.
            if (number := next(numbers, None)) is not None and number < seq:
                low = middle
            else:
                high = middle - 1
        return low

    def _start(self, index: int) -> int:
        """Return the last part up to this one from which a state can be rebuilt."""
        while index and not journal_files.begins(journal_files.content(self.parts[index]).records):
            index -= 1
        return index

    def _fold(self, index: int) -> Iterator[PastMoment]:
        reader = _PartReader(self)
        last = 0
        for part in self.parts[index:]:
            content = journal_files.content(part)
            for moment in reader.read(part, content):
                yield moment
                last = moment.seq
            if content.damage is not None:
                folder = shlex.quote(str(self.folder))
                before = f"\n  the last event before it: dljob replay {folder} --event {last}" if last else ""
                hint = f"{content.damage.hint}{before}"
                raise JournalError(content.damage.message, offset=content.damage.offset, hint=hint)

    def initial(self, at: float, *, own_nodes: bool) -> JobState:
        """Return the job's first state."""
        return initial(self._plan, self.manifest.spec, self._uid, at, own_nodes=own_nodes)


class _PartReader:
    """Reads parts one after the other, and yields a moment for each event or batch."""

    def __init__(self, past: Past) -> None:
        self.past = past
        self._state: JobState | None = None
        self._written: Written | None = None
        self._plan = ""
        self._seq = 0
        self._at = 0.0
        self._begun = False
        self._text = ""

    def read(self, part: JournalPart, content: PartContent) -> Iterator[PastMoment]:
        """Yield the moments of a part."""
        has_own_nodes = any(record.get("ownNodes") for record in content.records)
        fresh = self.past.initial(0.0, own_nodes=has_own_nodes)
        step = self._folded if part.header.core == self.past.core else self._laid
        event: dict[str, Any] | None = None
        for record in content.records:
            self._at = record.get("at", self._at)
            match record["k"]:
                case "begin":
                    fresh = self.past.initial(record["at"], own_nodes=has_own_nodes)
                    self._state, self._plan = fresh, record["plan"]
                    self._written = Written(encode_state(fresh))
                case "snapshot":
                    self._snapshot(record, fresh, is_own_core=step == self._folded)
                case "notes":
                    self._seq = record["seq"]
                    yield from self._first(fresh)
                case "event":
                    yield from self._first(fresh)
                    if step == self._folded:
                        yield self._folded(record)
                    event = record["e"]
                case "change" if step == self._laid:
                    yield self._laid(record, event, fresh)
                case _:
                    pass

    def _first(self, fresh: JobState) -> Iterator[PastMoment]:
        if not self._begun and self._written is not None:
            self._begun = True
            yield PastMoment(self._seq, self._at, None, (), self._state or self._reading(self._written, fresh))

    def _snapshot(self, record: Record, fresh: JobState, *, is_own_core: bool) -> None:
        self._text = record["d"] if record["i"] == 0 else self._text + record["d"]
        if record["i"] < record["of"] - 1:
            return
        data = parse_json(self._text)
        self._text, self._written, self._plan = "", Written(data), record["plan"]
        self._state = None
        if is_own_core:
            self._check(fresh)
            self._state = decode_state(data, fresh.job)

    def _check(self, fresh: JobState) -> None:
        if self._plan != fresh.job.plan.digest:
            message = f"the journal is of plan {self._plan}, the folder's spec gives plan {fresh.job.plan.digest}"
            raise JournalError(message, offset=0, hint="spec.json is not that of the journal")

    def _folded(self, record: Record) -> PastMoment:
        if self._state is None:
            raise JournalError("the journal's oldest part begins with no snapshot", offset=0)
        step = transition(self._state, decode_event(record["e"]), record["at"])
        self._state = step.state
        notes = tuple(action for action in step.actions if isinstance(action, Note))
        self._seq += len(notes)
        return PastMoment(self._seq, self._at, record["e"], notes, step.state)

    def _laid(self, record: Record, event: dict[str, Any] | None, fresh: JobState) -> PastMoment:
        if self._written is None:
            raise JournalError("the journal's oldest part begins with no snapshot", offset=0)
        self._written.lay(record["d"])
        self._state = None
        notes = tuple(Note(*note) for note in record["notes"])
        self._seq += len(notes)
        return PastMoment(self._seq, self._at, event, notes, self._reading(self._written, fresh))

    def _reading(self, written: Written, fresh: JobState) -> Callable[[], JobState]:
        """Return the function that reads the state as it was written, in as far as this version knows its fields."""
        plan_of, at = self._plan, self._at

        def read() -> JobState:
            restored = take(written.data(), fresh, plan_of, at)
            if restored.anew:
                message = f"the state of {_shown(at)}: {restored.anew}"
                raise JournalError(message, offset=0, hint="use the dljob that wrote it")
            return restored.state

        return read


def progress_at(folder: Path, at: float) -> dict[tuple[str, int], tuple[int, dict[str, float]]]:
    """Return the last step of each rank at a time (unix seconds), by the samples; empty without samples."""
    series = samples.read(folder)
    index = bisect_right(series.times, at) - 1
    if index < 0:
        return {}
    metrics = {name: value for name, values in series.progress.items() if (value := values[index]) is not None}
    return {
        (role, rank): (step, metrics)
        for role, ranks in series.steps.items()
        for rank, steps in enumerate(ranks)
        if (step := steps[index]) is not None
    }


def states(folder: Path) -> Iterator[PastMoment]:
    """Yield the state behind each event of the journal in a job's folder, oldest first (`Past.states`)."""
    return Past(folder).states()


def _parts(folder: Path) -> list[JournalPart]:
    journal = folder / "journal"
    if not journal.is_dir():
        hint = "a job that never started has none; with spec.master.journal.path it is below that path: copy it there"
        raise NotFoundError(f"{folder} has no journal", hint=hint)
    damage: list[JournalError] = []
    parts = journal_files.parts(journal, damage)
    if damage:
        raise damage[0]
    if not parts:
        raise NotFoundError(f"the journal in {journal} is empty", hint=_NO_STATE)
    return parts


def _shown(at: float) -> str:
    return str(rfc3339(at))


def _manifest(folder: Path, cores: list[str]) -> DLJobManifest:
    file, problem = folder / "spec.json", "the job's spec cannot be read"
    try:
        return DLJobManifest.model_validate(read_json(file))
    except OSError as error:
        message = f"{file}: {problem}: {error.strerror}"
        raise NotFoundError(message, hint="a replay needs spec.json beside the journal") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        message = f"{file}: {problem}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise NotFoundError(message, hint=f"use the dljob that wrote it: {', '.join(cores)}") from error
    except ValueError as error:
        raise NotFoundError(f"{file}: {problem}: {error}", hint="the file is damaged: copy the folder again") from error


def _read(file: Path) -> dict[str, Any]:
    try:
        return dict(read_json(file))
    except (OSError, ValueError, TypeError):
        return {}
