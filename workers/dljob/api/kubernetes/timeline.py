"""What happened to a job: Kubernetes' Events about it, and its PrimeMaster's notes, as one timeline."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from dljob.api.kubernetes import gateway as gate
from dljob.api.kubernetes import jobs
from dljob.api.kubernetes.jobs import part
from dljob.errors import NotFoundError, UnreachableError

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]


def unix(text: object) -> float | None:
    """RFC 3339 as unix seconds; None for what is none."""
    with suppress(ValueError):
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    return None


def note_of(event: Mapping[str, Any]) -> Json:
    """An Event in the shape of PrimeMaster's notes, with its `type`, and its `count` when it was repeated."""
    series = part(event, "series")
    times = (series.get("lastObservedTime"), event.get("eventTime"), event.get("deprecatedLastTimestamp"),
             part(event, "metadata").get("creationTimestamp"))  # fmt: skip
    count = int(series.get("count") or event.get("deprecatedCount") or 1)
    return {
        "time": next((found for text in times if (found := unix(text)) is not None), 0.0),
        "type": str(event.get("type") or "Normal"),
        "reason": str(event.get("reason") or ""),
        "target": "job",
        "message": str(event.get("note") or ""),
        **({"count": count} if count > 1 else {}),
    }


def without_echoes(notes: list[Json], events: list[Json]) -> list[Json]:
    """The notes that the operator has not made Events of: same reason, and the note's words are in the Event's."""
    said = [(event["reason"], event["message"]) for event in events]
    return [n for n in notes if not any(n["reason"] == reason and n["message"] in words for reason, words in said)]


@dataclass(slots=True)
class Timeline:
    """What is new since the last time."""

    own: bool = True
    """Whether PrimeMaster is asked, too: Events come from the operator and need no token."""
    _seen: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    _seq: int = 0
    _attempt: int = 0
    """Whose notes `_seq` counts; 0: not known yet."""
    _events: list[Json] = field(default_factory=list[Json])
    silent: str = ""
    """Why PrimeMaster was not heard the last time; empty when it was."""

    async def news(self, kube: Kube, job: Json) -> list[Json]:
        """The new entries, by time."""
        events = await self._from_events(kube, job)
        self._events += events
        notes = await self._from_master(kube, job) if self.own else []
        return sorted([*events, *without_echoes(notes, self._events)], key=lambda note: note["time"])

    async def _from_events(self, kube: Kube, job: Json) -> list[Json]:
        from dljob.kube.api import EVENTS, ApiError

        meta = job["metadata"]
        try:
            found = await kube.list(EVENTS, meta["namespace"], fields=f"regarding.uid={meta['uid']}")
        except ApiError as error:
            if not jobs.passing(error.status):
                raise
            return []
        fresh: list[Json] = []
        for event in found:
            note = note_of(event)
            key = (str(event["metadata"]["uid"]), int(note.get("count", 1)))
            if key not in self._seen:
                self._seen.add(key)
                fresh.append(note)
        return fresh

    async def _from_master(self, kube: Kube, job: Json) -> list[Json]:
        notes: list[Json] = []
        attempt = jobs.begun(job) or self._attempt
        if attempt != self._attempt:  # its PrimeMaster counts from 1
            self._attempt, self._seq = attempt, 0
        try:
            head = await gate.reach(kube, job)
            while some := await head.notes(self._seq):  # it gives so many at once
                notes += some
                self._seq = max(int(note["seq"]) for note in some)
        except gate.NotYetError:
            self.silent = ""  # nobody is there who could know more
        except (UnreachableError, NotFoundError) as error:
            self.silent = error.message
        else:
            self.silent = ""
        return notes


async def follow(kube: Kube, job: Json) -> AsyncGenerator[Json]:
    """What happened, and what happens until the job has ended."""
    timeline = Timeline()
    async with aclosing(jobs.each_second(kube, job)) as moments:
        async for now in moments:
            for note in await timeline.news(kube, now):
                yield note
