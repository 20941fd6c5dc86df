"""What a live page is made of: looks at a job in its folder on this machine, or by what its place answers."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from dljob.api.shown_job import Overview, ShownJob
from dljob.linux.plain_files import open_plain
from dljob.report import incidents, job_folder, lanes, page_data, series
from dljob.report.history import HistoryReader, JobHistory
from dljob.report.live.document import LaneTail, LiveDocument
from dljob.report.live.journal_tail import JournalTail
from dljob.runtime.control_socket import messages
from dljob.runtime.control_socket.client import NoAnswerError, SocketLine
from dljob.runtime.journal import samples
from dljob.runtime.journal.event_file import EarlierEvents, events_before, parse_event
from dljob.runtime.journal.timeline import EVENTS, STATUS
from dljob.spec.redaction import without_values
from dljob.spec.status import TERMINAL
from dljob.telemetry.job_samples import ACCOUNTS

NEWS_S = 10.0
"""Longest time, in seconds, that PrimeMaster is asked to wait for a new event."""
ASK_S = 1.0
"""Interval, in seconds, at which the place of a job without a folder here is asked."""
THIN_S = 30.0
"""Interval, in seconds, at which lanes are made anew that are too many to be shown whole."""
SAMPLES_S, SAMPLES_SHARE = 5.0, 100.0
"""Interval, in seconds, at which samples are read, and the least multiple of the time that it takes."""
SETTLED_S = 60.0
"""Seconds after a recovery in which its incident may still change: the log lines, the first step."""
BEGIN_BYTES = 2 << 20
"""Bytes of events that a page begins with: those of a long job are not all read."""
PIECE_BYTES = 16 << 20
"""Most bytes of events that one look reads."""
OLDER = 1000
"""Earlier events in one answer."""
ENDED = (*TERMINAL, "Suspended", "Lost")

Events = list[Mapping[str, Any]]
Explain = Callable[[Overview], Sequence[str]]
"""Returns the lines of `dljob why`."""


class SourceSilentError(Exception):
    """The job's PrimeMaster, or its head, does not answer now, for the reason in the message."""


class OlderEvents(NamedTuple):
    """A question for events before the one with number `before`, of those that the filter of the page lets through."""

    before: int
    words: tuple[str, ...] = ()
    """Lower-case words that must all occur."""
    reason: str = ""
    start: float = -math.inf
    end: float = math.inf

    def wants(self, event: Mapping[str, Any]) -> bool:
        """Whether an event has the words, the reason and a time within; as the page's script decides it."""
        if (self.reason and event.get("reason") != self.reason) or not self.start <= event.get("time", 0.0) <= self.end:
            return False
        text = " ".join(str(event.get(key) or "") for key in ("reason", "target", "message", "level")).lower()
        return all(word in text for word in self.words)


class LiveSource(Protocol):
    """A job that is followed. The methods block, and are called by one thread each."""

    def look(self, document: LiveDocument) -> bool:
        """Bring the document up to date; return whether anything changed. Raises SourceSilentError, or DLJobError."""
        ...

    def wait(self) -> None:
        """Wait until there may be news, for NEWS_S at most. Raises SourceSilentError."""
        ...

    def older(self, asked: OlderEvents) -> EarlierEvents:
        """Return events that the document does not have any more."""
        ...

    @property
    def over(self) -> bool:
        """Whether nothing will change any more."""
        ...


class FolderSource:
    """A job whose folder PrimeMaster writes on this machine: all is read from there, which costs PrimeMaster nothing.

    Its control socket is asked for one thing alone, whether there is a new event: that ends a pause at once, and shows
    that PrimeMaster lives.
    """

    def __init__(self, folder: Path, uid: str, status: Callable[[], Overview], explain: Explain) -> None:
        """`status` returns the status by the folder, `Lost` where the runner is gone."""
        self._folder, self._uid = folder, uid
        self._status, self._explain = status, explain
        self._tail = JournalTail(folder / "journal")
        self._reader = HistoryReader()
        self._events_at = 0
        """Offset in the file of events."""
        self._seq = 0
        self._stamp: object = None
        """Identity of the last status file."""
        self._trouble: list[str] = []
        manifest = job_folder.manifest_in(folder / "spec.json", self._trouble)
        self._plan = page_data.plan_of(manifest, self._trouble)
        self._spec: dict[str, Any] = dict(manifest.get("spec") or {})
        self._placed: tuple[dict[str, str], frozenset[str]] | None = None
        """Unit -> node, and the nodes, of the placement that is shown."""
        self._shown: dict[int, dict[str, Any]] = {}
        """Incidents as they were last computed."""
        self._drawn = False
        """Whether the document has lanes, so that their ends suffice."""
        self._phase = ""
        self._thinned_at = self._sampled_at = 0.0

    @property
    def over(self) -> bool:
        """Whether the last status is final."""
        return self._phase in ENDED

    def wait(self) -> None:
        """Ask PrimeMaster for an event behind the last one."""
        try:
            asked = messages.request(self._uid, "notes", (self._seq, NEWS_S))
            SocketLine(self._folder).ask(asked, NEWS_S + 2.0)
        except (NoAnswerError, OSError) as error:
            # Nobody writes a status any more: whether the runner is gone has to be looked at.
            self._stamp = None
            raise SourceSilentError(f"PrimeMaster does not answer: {error}") from error

    def refresh(self) -> None:
        """Ask for the status again, although its file is the same."""
        self._stamp = None

    def look(self, document: LiveDocument, merged: Callable[[Events], Events] = lambda fresh: fresh) -> bool:
        """Read what the files have new; `merged` adds events of other sources."""
        fresh = merged(self._new_events())
        for record in self._tail.read():
            self._reader.take(record)
        parts = self._by_status()
        history = self._reader.history if self._reader.history.lanes else None
        missing = ["lanes, stages: the folder has no journal"] if history is None else []
        parts["unrecorded"] = [*dict.fromkeys([*self._trouble, *self._tail.troubles]), *missing]
        # Nodes have news whenever their free resources change, of which the page shows nothing.
        if history and self._placed != (placed := (dict(history.units), frozenset(history.nodes))):
            parts["placement"], self._placed = page_data.placement_part(self._plan, {}, history), placed
        if history:
            parts["incidents"] = self._incidents(history)
        parts |= self._samples()
        tails = self._lanes(parts)
        if not document.revision:
            parts = {**self._constants(), **parts}
        return document.put(parts, fresh, tails)

    def _constants(self) -> dict[str, Any]:
        return {
            "format": page_data.FORMAT,
            "source": "data",
            "older": "older",
            "accounts": list(ACCOUNTS),
            "spec": without_values(self._spec) if self._spec else None,
            "lanes": None,
            "incidents": [],
            "placement": None,
            "whatifs": None,
        }

    def _samples(self) -> dict[str, Any]:
        """Return the series, made anew from time to time, the more seldom the more they cost, and at the job's end."""
        begin = time.monotonic()
        if begin < self._sampled_at and not self.over:
            return {}
        series_data = series.samples_part(samples.read(self._folder, series.MOST).data())
        self._sampled_at = begin + max(SAMPLES_S, SAMPLES_SHARE * (time.monotonic() - begin))
        return {"samples": series_data}

    def _incidents(self, history: JobHistory) -> list[dict[str, Any]]:
        """Return the incidents; only those that are new, last, or are just over are computed again."""
        now = history.until
        moving = {
            number: fault
            for number, fault in history.faults.items()
            if number not in self._shown or now - (fault["recovered_at"] or now) < SETTLED_S
        }
        new_incidents = incidents.of_history(history, now, moving)
        texts = job_folder.texts(self._folder, moving.items())
        self._shown |= {incident["id"]: incident for incident in incidents.with_texts(new_incidents, texts)}
        return [self._shown[number] for number in sorted(self._shown)]

    def _by_status(self) -> dict[str, Any]:
        """Return the parts that the status gives; nothing while its file is the same."""
        try:
            file_status = (self._folder / STATUS).stat()
            stamp: object = (file_status.st_ino, file_status.st_mtime_ns, file_status.st_size)
        except OSError:
            stamp = "missing"
        if stamp == self._stamp and self._phase:
            return {}
        overview = self._status()
        self._stamp, self._phase = stamp, overview.phase
        until = page_data.end_of(overview.status, time.time())
        return {
            "made": {"at": round(time.time(), 3), "by": "dljob open"},
            "live": not self.over,
            "job": {
                **page_data.job_part(overview.status, until, self._plan, self._explain(overview)),
                "phase": overview.phase,
            },
            "roles": page_data.roles_part(self._spec, overview.status, self._plan),
            "ledger": overview.status.get("ledger"),
        }

    def _lanes(self, parts: dict[str, Any]) -> list[LaneTail]:
        """Return the ends of lanes that changed; too many lanes are shown thinned, and made anew from time to time."""
        history, touched = self._reader.history, self._reader.touched
        many = sum(map(len, history.lanes.values())) > lanes.MOST
        if touched and (many or not self._drawn):
            if time.monotonic() >= self._thinned_at:
                parts["lanes"] = lanes.lanes(history, [])
                self._thinned_at = time.monotonic() + THIN_S * many
                self._drawn = True
                touched.clear()
            return []
        tails = [
            LaneTail(role, rank, 2 * keep, lanes.flat(history, history.lanes[role, rank][keep:]))
            for (role, rank), keep in touched.items()
        ]
        touched.clear()
        return tails

    def _new_events(self) -> Events:
        new_events: list[dict[str, Any]] = []
        try:
            with open_plain(self._folder / EVENTS) as file:
                if not self._seq:
                    self._events_at = max(self._events_at, file.seek(0, os.SEEK_END) - BEGIN_BYTES)
                file.seek(self._events_at)
                text = file.read(PIECE_BYTES)
        except OSError:
            return []
        # The last line may be in the making, and the first one may have begun before: that is no JSON then.
        # A piece without any line end is no part of an event.
        whole_lines = text[: text.rfind(b"\n") + 1] or (text if len(text) == PIECE_BYTES else b"")
        self._events_at += len(whole_lines)
        for line in whole_lines.splitlines():
            if (event := parse_event(line)) is not None and event["seq"] > self._seq:
                new_events.append(event)
                self._seq = event["seq"]
        return [*new_events]

    def older(self, asked: OlderEvents) -> EarlierEvents:
        """Search the file backwards."""
        return events_before(self._folder / EVENTS, asked.before, OLDER, asked.wants)


class AskedSource:
    """A job without a folder here: its place is asked as `dljob status` and `dljob events` ask it."""

    def __init__(self, job: ShownJob, explain: Explain, pause: Callable[[float], object] = time.sleep) -> None:
        self._job, self._explain, self._pause = job, explain, pause
        self._phase = ""
        self._events: list[dict[str, Any]] = []
        """All events of the last answer."""

    @property
    def over(self) -> bool:
        """Whether the last answer said so."""
        return self._phase in ENDED

    def wait(self) -> None:
        """Pause between two questions."""
        self._pause(ASK_S)

    def look(self, document: LiveDocument) -> bool:
        """Ask for the job's status and events."""
        shown = self._job.page()
        self._phase = shown.overview.phase
        record = job_folder.of_shown(shown, self._job.name, self._job.uid)
        now = time.time()
        data = page_data.page_data(record, now, version="dljob open", cause=self._explain(shown.overview))
        # When the page was made is no news.
        made_by = document.parts.get("made", data["made"])
        self._events = record.events
        parts = {key: value for key, value in data.items() if key not in ("events", "eventsLeftOut")}
        parts |= {"made": made_by, "live": not self.over, "source": "data", "older": "older"}
        return document.put(parts, self._events[document.told :])

    def older(self, asked: OlderEvents) -> EarlierEvents:
        """Return earlier ones of the last answer: it had all that the job's place can tell."""
        wanted_events = [event for event in self._events if event["seq"] < asked.before and asked.wants(event)]
        last_events = wanted_events[max(0, len(wanted_events) - OLDER) :]
        return EarlierEvents(last_events, last_events[0]["seq"] if len(wanted_events) > OLDER else 1)
