"""Rebuilding the state from a journal: by folding its events if this code wrote them, else from its change records.

Only the code that folded an event first may fold it again: another version might decide otherwise, and its state would
contradict living processes, counted restarts and answers given. Another version therefore takes the state as it was
written (snapshot and changes). It folds only the events at the end without a change record: nobody acted upon those.
docs/adr/0043-journals-of-other-versions.md has the reasons.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from operator import is_not
from typing import Any

from dljob.errors import JournalError
from dljob.master.persistence.changes import Written, changes
from dljob.master.persistence.codec import decode_event, decode_state, encode_state
from dljob.master.persistence.migration import ERRORS, TAIL, MigratedState, fresh_state, read_event, take
from dljob.master.state import actions as ac
from dljob.master.state.state import JobState
from dljob.master.transition import transition
from dljob.runtime.controller.heartbeat_log import HeartbeatLog
from dljob.runtime.journal.job_record import notes_until
from dljob.runtime.journal.journal import Replay
from dljob.runtime.journal.setup import Setup
from dljob.runtime.journal.timeline import KEPT, Timeline
from dljob.telemetry.records import Record


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The start of a new master: the state, and the time of the last record (unix seconds)."""

    state: JobState
    last: float
    message: str = ""
    """Message about a journal of another version; empty for one of this version."""
    anew: str = ""
    """Why all ranks have to start again; empty where the state goes on."""


def change_record(before: JobState, after: JobState, actions: Iterable[object], at: float) -> Record:
    """Return the journal record of a batch's changes and notes, which other versions of dljob read."""
    notes = [
        [note.reason, note.target, note.message, note.level, note.seconds]
        for note in actions
        if isinstance(note, ac.Note)
    ]
    return {"k": "change", "at": at, "d": changes(before, after), "notes": notes}


class Rebuilding:
    """The way to a new master's state: a standby folds the journal ahead, and at its takeover only the rest."""

    def __init__(self, setup: Setup, timeline: Timeline) -> None:
        self._setup, self._timeline = setup, timeline
        self._ahead: _Replayed | None = None
        self.evidence = HeartbeatLog()
        """The last steps of ended ranks, of the journal that was read last."""

    def rebuild(self, replay: Replay) -> Rebuilt:
        """Return the state of the last master; also restore its notes, and the last steps of ended ranks.

        Raises:
            JournalError: The journal belongs to another plan, or a record of this version cannot be read.
        """
        if replay.foreign:
            self._begin_anew()
            return _Foreign(self._setup, self._timeline, self.evidence).read(replay)
        # By identity: records that were read again, or lie behind a fence, are other objects, and all is folded anew.
        ahead = self._ahead
        done = ahead.folded if ahead is not None else ()
        if ahead is None or len(done) > len(replay.records) or any(map(is_not, done, replay.records)):
            self._begin_anew()
            ahead, done = _Replayed(self._setup, self._timeline, self.evidence), ()
        self._ahead = None  # an error in the middle leaves half a state
        rebuilt = ahead.read(replay.records[len(done) :])
        ahead.folded = replay.records
        self._ahead = ahead
        return rebuilt

    def _begin_anew(self) -> None:
        self._ahead, self.evidence = None, HeartbeatLog()
        self._timeline.resume(0, ())


@dataclass
class _Reading:
    setup: Setup
    timeline: Timeline
    evidence: HeartbeatLog
    last: float = 0.0
    _text: str = ""

    def snapshot(self, record: Record) -> dict[str, Any] | None:
        """Return the state of a snapshot at its last part, None before: large states are split into records."""
        self._text = record["d"] if record["i"] == 0 else self._text + record["d"]
        return json.loads(self._text) if record["i"] == record["of"] - 1 else None

    def notes(self, record: Record) -> None:
        """Resume the timeline at the number of a `notes` record, with the notes in the job's folder."""
        seq: int = record["seq"]
        self.timeline.resume(seq, notes_until(self.setup.folder, seq, KEPT))

    def note(self, actions: Iterable[object], at: float) -> None:
        """Add the notes among some actions to the timeline."""
        for action in actions:
            if isinstance(action, ac.Note):
                self.timeline.add(action, at)


@dataclass
class _Replayed(_Reading):
    """A journal of this code: folding its events again gives the same state."""

    folded: tuple[Record, ...] = ()
    _state: JobState | None = None

    def read(self, records: Iterable[Record]) -> Rebuilt:
        """Fold all records; those of a later call follow those of an earlier one."""
        state = self._state or self.setup.initial(0.0)
        for record in records:
            state = self._take(state, record)
            self.last = record.get("at", self.last)
        self._state = state
        return Rebuilt(state, self.last)

    def _take(self, state: JobState, record: Record) -> JobState:
        match record["k"]:
            case "begin":
                self._check(record)
                return self.setup.initial(record["at"])
            case "snapshot":
                self._check(record)
                data = self.snapshot(record)
                return state if data is None else decode_state(data, self.setup.initial(0.0).job)
            case "notes":
                self.notes(record)
            case "event":
                # The actions are dropped: kills and reissue derive from the final state what may still be to do.
                step = transition(state, event := decode_event(record["e"]), record["at"])
                self.evidence.record_end(event, record["at"])
                self.note(step.actions, record["at"])
                return step.state
            case _:
                pass
        return state

    def _check(self, record: Record) -> None:
        journal_digest, plan_digest = record["plan"], self.setup.plan.digest
        if journal_digest != plan_digest:
            raise JournalError(f"the journal is of plan {journal_digest}, the job's plan is {plan_digest}", offset=0)


@dataclass
class _Foreign(_Reading):
    """A journal of another version of dljob, older or newer."""

    _written: Written | None = None
    _plan: str = ""
    _begun: float = 0.0
    _events: list[Record] = field(default_factory=list[Record])
    """Events after the last change record."""
    _trouble: str = ""

    def read(self, replay: Replay) -> Rebuilt:
        """Return the state as written, or where that cannot be read a new one with its essential parts."""
        for record in replay.records:
            try:
                self._take(record)
            except ERRORS as error:  # read on: a later snapshot heals whatever could not be read before it
                self._trouble = self._trouble or f"record {record.get('k')!r}: {error}"
            self.last = record.get("at", self.last)
        by = " and ".join(sorted(replay.cores))
        return self._rebuilt(f"the journal is of dljob {by}, this is dljob {replay.reader}")

    def _take(self, record: Record) -> None:
        match record["k"]:
            case "begin":
                self._plan, self._begun = record["plan"], record["at"]
            case "snapshot":
                # A whole snapshot heals an earlier record that could not be read, and includes the events before it.
                data = self.snapshot(record)
                if data is not None:
                    self._written, self._plan, self._trouble = Written(data), record["plan"], ""
                    self._events.clear()
            case "notes":
                self.notes(record)
            case "event":
                self._events.append(record)
                with suppress(JournalError):
                    self.evidence.record_end(read_event(record["e"]), record["at"])
            case "change" if self._written is not None:
                # As written, not folded: this version might decide otherwise than the one that acted upon it.
                self._written.lay(record["d"])
                self._events.clear()
                self.note((ac.Note(*note) for note in record["notes"]), record["at"])
            case _:
                pass

    def _rebuilt(self, version_words: str) -> Rebuilt:
        # The unfolded events are part of the state taken over: `begin_anew` must know of the starts and ends in them.
        fresh = self.setup.initial(self._begun or self.last)
        data = encode_state(fresh) if self._written is None else self._written.data()
        tail = [record["e"] for record in self._events]
        # A change that could not be laid leaves a state that never was: it is not gone on with.
        if self._trouble:
            migrated = fresh_state({**data, TAIL: tail}, fresh, self._trouble, self.last)
        else:
            migrated = take({**data, TAIL: tail}, fresh, self._plan, self.last)
            migrated = migrated if migrated.anew else self._fold_tail(migrated, fresh)
        return Rebuilt(migrated.state, self.last, _takeover_message(version_words, migrated), migrated.anew)

    def _fold_tail(self, migrated: MigratedState, fresh: JobState) -> MigratedState:
        """Fold the last events. One that cannot be read is left out: its sender had no answer, and sends it again."""
        state, left_out = migrated.state, list(migrated.left_out)
        for record in self._events:
            try:
                event = read_event(record["e"])
            except JournalError as error:
                left_out.append(error.message)
                continue
            try:
                step = transition(state, event, record["at"])
            except Exception as error:  # noqa: BLE001 - a state that this code never made may break it
                return fresh_state(
                    encode_state(state), fresh, f"{type(event).__name__} breaks it: {error!r}", self.last
                )
            state = step.state
            self.note(step.actions, record["at"])
        return MigratedState(state, tuple(left_out))


def _takeover_message(version_words: str, migrated: MigratedState) -> str:
    """Return the message about a journal of another version: what was taken over, and what was left out."""
    omissions = (
        f"; left out, as this version cannot read it: {', '.join(migrated.left_out)}" if migrated.left_out else ""
    )
    if migrated.anew:
        return f"{version_words}, and {migrated.anew}: all ranks start again from their last checkpoints{omissions}"
    return f"{version_words}: its state goes on as it was written{omissions}"
