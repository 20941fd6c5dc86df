"""Timeline of a job: Kubernetes' Events about it, merged with its PrimeMaster's notes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dljob.api.kubernetes import gateway as gate
from dljob.api.kubernetes import jobs
from dljob.api.kubernetes.jobs import nested
from dljob.errors import NotFoundError, UnreachableError
from dljob.telemetry.wording import unix

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]


def note_of(event: Mapping[str, Any]) -> Json:
    """Convert an Event to the shape of PrimeMaster's notes, with its `type`, and `count` when it was repeated."""
    # The latest time first: a repeated Event counts as new, and its creation may be hours ago.
    series = nested(event, "series")
    times = (series.get("lastObservedTime"), event.get("eventTime"), event.get("deprecatedLastTimestamp"),
             nested(event, "metadata").get("creationTimestamp"))  # fmt: skip
    count = int(series.get("count") or event.get("deprecatedCount") or 1)
    return {
        "time": next((seconds for text in times if (seconds := unix(text)) is not None), 0.0),
        "type": str(event.get("type") or "Normal"),
        "reason": str(event.get("reason") or ""),
        "target": "job",
        "message": str(event.get("note") or ""),
        **({"count": count} if count > 1 else {}),
    }


def without_echoes(notes: list[Json], events: list[Json]) -> list[Json]:
    """Drop notes that the operator has also published as Events: same reason, and the Event contains the message."""
    published = [(event["reason"], event["message"]) for event in events]
    return [n for n in notes if not any(n["reason"] == reason and n["message"] in words for reason, words in published)]


@dataclass(slots=True)
class EventFeed:
    """Feed of a job's timeline; each call of `new_entries` returns the entries since the last one."""

    has_master_notes: bool = True
    """Whether to ask PrimeMaster as well; Events alone come from the operator and need no token."""
    _shown_keys: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    _seq: int = 0
    _attempt: int = 0
    """Attempt whose notes `_seq` counts; 0: not known yet."""
    _events: list[Json] = field(default_factory=list[Json])
    silent: str = ""
    """Why PrimeMaster did not answer the last time; empty when it did."""

    async def new_entries(self, kube: Kube, job: Json) -> list[Json]:
        """Return the new entries, sorted by time."""
        events = await self._from_events(kube, job)
        self._events += events
        notes = await self._from_master(kube, job) if self.has_master_notes else []
        # Against all Events so far: the operator may publish a note before it is read here, or seconds after.
        return sorted([*events, *without_echoes(notes, self._events)], key=lambda note: note["time"])

    async def _from_events(self, kube: Kube, job: Json) -> list[Json]:
        from dljob.kube.api import EVENTS, ApiError

        meta = job["metadata"]
        try:
            # By uid: Events of an earlier job of this name are kept for an hour.
            events = await kube.list(EVENTS, meta["namespace"], fields=f"regarding.uid={meta['uid']}")
        except ApiError as error:
            if not jobs.passing(error.status):
                raise
            return []  # the API server is away for a moment: the next call lists everything again
        fresh: list[Json] = []
        for event in events:
            note = note_of(event)
            # A repetition raises the count of the same Event, and is shown again.
            key = (str(event["metadata"]["uid"]), int(note.get("count", 1)))
            if key not in self._shown_keys:
                self._shown_keys.add(key)
                fresh.append(note)
        return fresh

    async def _from_master(self, kube: Kube, job: Json) -> list[Json]:
        notes: list[Json] = []
        # Between attempts there is no new number: the last one's notes may still come.
        attempt = jobs.begun(job) or self._attempt
        if attempt != self._attempt:  # a new PrimeMaster, which numbers its notes from 1
            self._attempt, self._seq = attempt, 0
        try:
            head = await gate.reach(kube, job)
            while some := await head.notes(self._seq):  # the gateway answers with a limited number of notes
                notes += some
                self._seq = max(int(note["seq"]) for note in some)
        except gate.NotYetError:
            self.silent = ""  # before the start there are no notes to miss
        except (UnreachableError, NotFoundError) as error:
            # Not an error: Events alone are still worth showing, and the caller says what is missing.
            self.silent = error.message
        else:
            self.silent = ""
        return notes


def last(entries: list[Json], tail: int | None) -> list[Json]:
    """Return the last `tail` entries; all of them for None."""
    return entries if tail is None else entries[max(0, len(entries) - tail) :]


async def follow(kube: Kube, job: Json, tail: int | None = None) -> AsyncGenerator[Json]:
    """Yield the timeline so far, or the last `tail` entries of it, and new entries until the job has ended."""
    timeline = EventFeed()
    async with aclosing(jobs.each_second(kube, job)) as moments:
        async for now in moments:
            for note in last(await timeline.new_entries(kube, now), tail):
                yield note
            tail = None
