"""Kubernetes Events about DLJobs: one object for equal ones, which counts them."""

from __future__ import annotations

import itertools
import logging
import os
import socket
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from dljob.control import names
from dljob.control.model import Event, Object
from dljob.kube.api import DLJOBS, EVENTS, ApiError, Json, Kube, NotThereError
from dljob_operator.workqueue import Key

log = logging.getLogger(__name__)

SAME_SECONDS = 1800.0
"""Equal events are one series while there are at most so many seconds between them; the server keeps them an hour."""
COUNT_SECONDS = 60.0
"""The count of a series is written at most that often."""
_NOTE = 1024
"""Bytes of a note in UTF-8: the API's limit, though it speaks of characters (1.36)."""


@dataclass(slots=True)
class _Series:
    name: str
    count: int
    last: float
    written: float


class Recorder:
    """Writes Events; one that cannot be written is logged, and nothing waits for it."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._series: dict[Key, dict[tuple[str, Event], _Series]] = {}
        self._instance = (os.environ.get("POD_NAME") or socket.gethostname())[:128]
        self._numbers = itertools.count()

    async def tell(self, key: Key, job: Object, event: Event) -> None:
        """Tell of an event, or count it when it is one again."""
        now = time.time()
        told = self._series.setdefault(key, {})
        which = (job["metadata"]["uid"], event)
        for stale in [each for each, series in told.items() if now - series.last > SAME_SECONDS]:
            del told[stale]
        try:
            if which in told and await self._counted(key, told[which], now):
                return
            told.pop(which, None)
            made = await self._kube.create(EVENTS, self._body(key, job, event, now), key.namespace)
            told[which] = _Series(made["metadata"]["name"], 1, now, now)
        except ApiError as error:
            log.warning("%s: cannot tell %s: %s", key, event.reason, error.message)

    def forget(self, key: Key) -> None:
        """The DLJob is gone."""
        self._series.pop(key, None)

    async def _counted(self, key: Key, series: _Series, now: float) -> bool:
        """Count one more; returns whether the Event is there: the server drops them in time, and people do."""
        series.count += 1
        series.last = now
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
            "metadata": {"name": f"{key.name}.{time.time_ns():x}{next(self._numbers) % 256:02x}"},
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
    """A note as the API takes it, with an ellipsis where it was cut."""
    data = note.encode()
    return note if len(data) <= _NOTE else data[: _NOTE - len("…".encode())].decode(errors="ignore") + "…"
