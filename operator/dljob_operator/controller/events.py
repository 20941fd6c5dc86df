"""Kubernetes Events about DLJobs; equal ones become one object with a count."""

from __future__ import annotations

import itertools
import logging
import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime

from dljob.kube.api import DLJOBS, EVENTS, ApiError, Json, Kube, NotThereError
from dljob.reconcile.state import names
from dljob.reconcile.state.model import Event, Object
from dljob_operator.watch.clock import MACHINE, OperatorClock
from dljob_operator.watch.workqueue import Key

log = logging.getLogger(__package__)

SAME_SECONDS = 1800.0
"""Longest time, in seconds, between equal events of one series; the server keeps an Event for an hour."""
COUNT_SECONDS = 60.0
"""Shortest interval, in seconds, between two writes of a count."""
MOST_SERIES = 64
"""Most series of a job that are remembered: a head chooses some of the words in them."""
_NOTE = 1024
"""Longest note in bytes of UTF-8: the API's limit, though its message speaks of characters (1.36)."""


@dataclass(slots=True)
class _Series:
    name: str
    count: int
    last: float
    written: float


class Recorder:
    """Writes Events. A failure is only logged: no pass may wait for an Event."""

    def __init__(self, kube: Kube, clock: OperatorClock = MACHINE) -> None:
        self._kube = kube
        self._now = clock.wall
        self._series: dict[Key, dict[tuple[str, Event], _Series]] = {}
        # The API allows 128 characters here, in `reason` and in `action`.
        self._instance = (os.environ.get("POD_NAME") or socket.gethostname())[:128]
        self._numbers = itertools.count()

    async def tell(self, key: Key, job: Object, event: Event) -> None:
        """Write an event, or count it when it is a repetition."""
        now = self._now()
        series_by_event = self._series.setdefault(key, {})
        # With the uid: a namesake of a deleted job begins its own series.
        which = (job["metadata"]["uid"], event)
        for stale in [event_key for event_key, series in series_by_event.items() if now - series.last > SAME_SECONDS]:
            del series_by_event[stale]
        try:
            if which in series_by_event and await self._counted(key, series_by_event[which], now):
                return
            series_by_event.pop(which, None)
            created_event = await self._kube.create(EVENTS, self._body(key, job, event, now), key.namespace)
            series_by_event[which] = _Series(created_event["metadata"]["name"], 1, now, now)
            if len(series_by_event) > MOST_SERIES:
                # If it comes again, it becomes another Event.
                del series_by_event[min(series_by_event, key=lambda event_key: series_by_event[event_key].last)]
        except ApiError as error:
            log.warning("%s: cannot write the Event %s: %s", key, event.reason, error.message)

    def forget(self, key: Key) -> None:
        """Forget a deleted DLJob."""
        self._series.pop(key, None)

    async def _counted(self, key: Key, series: _Series, now: float) -> bool:
        """Count a repetition; return whether the Event still exists: the server drops it in time, a user at will."""
        series.count += 1
        series.last = now
        # The next write brings the sum, so a burst of repetitions costs one call.
        if now - series.written < COUNT_SECONDS:
            return True
        series.written = now
        patch = {"series": {"count": series.count, "lastObservedTime": _micro(now)}}
        try:
            await self._kube.patch(EVENTS, series.name, key.namespace, patch)
        except NotThereError:
            return False
        return True

    def _body(self, key: Key, job: Object, event: Event, now: float) -> Json:
        regarding = {
            "apiVersion": DLJOBS.api_version,
            "kind": "DLJob",
            "namespace": key.namespace,
            "name": key.name,
            "uid": job["metadata"]["uid"],
            "resourceVersion": job["metadata"]["resourceVersion"],
        }
        note = event.message or event.reason
        return {
            "apiVersion": EVENTS.api_version,
            "kind": "Event",
            # Time and counter: two events of one pass can fall into the same tick of the clock.
            "metadata": {"name": f"{key.name}.{int(now * 1e9):x}{next(self._numbers) % 256:02x}"},
            "eventTime": _micro(now),
            "reportingController": names.CONTROLLER,
            "reportingInstance": self._instance,
            "regarding": regarding,
            "type": event.type,
            "reason": event.reason[:128],
            "action": event.action[:128],
            "note": shortened(note),
        }


def _micro(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def shortened(note: str) -> str:
    """Shorten a note to the API's limit, with an ellipsis."""
    data = note.encode()
    # The cut may fall inside a character; its first bytes are dropped.
    return note if len(data) <= _NOTE else data[: _NOTE - len("…".encode())].decode(errors="ignore") + "…"
