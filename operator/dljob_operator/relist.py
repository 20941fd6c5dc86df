"""The second pair of eyes: everything is listed now and then, and compared with what the watches told.

A watch that breaks at the wrong moment loses a deletion (kopf 1.45 compares no list with what it knew).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dljob.control.model import Object
from dljob.kube.api import ApiError
from dljob.kube.objects import Objects
from dljob_operator.cache import Shelf, key_of, keys
from dljob_operator.workqueue import Key, WorkQueue

log = logging.getLogger(__name__)

EVERY = 300.0
"""Seconds, give or take a fifth."""
DEAF = 2
"""So many lists in a row told changes of a kind whose watch told nothing meanwhile: that watch is dead."""
AGAIN = 1.0
"""Seconds between two tries of the first lists; longer each time."""
LONGEST = 10.0


@dataclass(frozen=True, slots=True)
class Sight:
    """A kind of objects, and where what is seen of it goes."""

    objects: Objects
    labels: str
    shelf: Shelf[Any]
    put: Callable[[Object], Key | None]
    drop: Callable[[Key, str], Key | None]


class Relist:
    """Lists the kinds, puts what is new and drops what is gone, and brings up whom it concerns."""

    def __init__(self, queue: WorkQueue, namespaces: Sequence[str | None], missed: Callable[[str, int], None]) -> None:
        self._queue = queue
        self._namespaces = namespaces
        self._missed = missed
        self._heard: dict[str, int] = {}
        self._deaf: dict[str, int] = {}
        self.waits_for = "the first lists"
        """What keeps the caches from being complete; empty once they are."""

    @property
    def deaf(self) -> str:
        """The kind whose watch is dead; empty: none is."""
        return next((kind for kind, times in self._deaf.items() if times >= DEAF), "")

    async def fill(self, sights: Sequence[Sight]) -> bool:
        """List everything once, however long that takes; returns whether a kind was not served at first.

        What lists tell counts only once all kinds are listed: a DLJob is not to be looked at before its RayCluster.
        """
        absent = False
        for sight in sights:
            pause = AGAIN
            while True:
                try:
                    await self._compare(sight)
                    break
                except ApiError as error:
                    absent = absent or error.status == 404
                    self.waits_for = f"cannot list {sight.objects.resource.plural}: {error.message}"
                    log.warning("%s", self.waits_for)
                except Exception:  # an answer that makes no sense today may make some tomorrow
                    self.waits_for = f"the list of {sight.objects.resource.plural} cannot be read"
                    log.exception("%s", self.waits_for)
                await asyncio.sleep(pause)
                pause = min(LONGEST, 2 * pause)
        self.waits_for = ""
        return absent

    async def run(self, sights: Callable[[], Sequence[Sight]], every: float = EVERY) -> None:
        """Do so for ever; `sights` is asked each time."""
        while True:
            await asyncio.sleep(every * random.uniform(0.8, 1.2))  # noqa: S311 - jitter
            for sight in sights():
                try:
                    await self.once(sight)
                except ApiError as error:
                    log.warning("cannot list %s: %s", sight.objects.resource.plural, error.message)
                except Exception:  # one list that makes no sense must not end all later ones
                    log.exception("the list of %s cannot be read", sight.objects.resource.plural)

    async def once(self, sight: Sight) -> int:
        """Compare one kind; returns how many changes no watch had told. Raises ApiError."""
        news = await self._compare(sight)
        kind = sight.objects.resource.kind
        heard = sight.shelf.heard
        silent = heard == self._heard.get(kind, -1)
        self._heard[kind] = heard
        self._deaf[kind] = self._deaf.get(kind, 0) + 1 if news and silent else 0
        if news:
            self._missed(kind, news)
            log.info("a list of %s told %d changes that the watch had not", kind, news)
        return news

    async def _compare(self, sight: Sight) -> int:
        before = list(keys(sight.shelf))
        there: dict[Key, str] = {}
        concerned: list[Key | None] = []
        gone: set[str] = set()  # a later page has what the watch told the end of since the first was asked for
        sight.shelf.gone.append(gone)
        try:
            for namespace in self._namespaces:
                async for page in sight.objects.pages(namespace, sight.labels):
                    for item in page["items"]:
                        there[key_of(item)] = uid = item["metadata"]["uid"]
                        concerned.append(None if uid in gone else sight.put(item))
        finally:
            sight.shelf.gone = [each for each in sight.shelf.gone if each is not gone]
        concerned += [sight.drop(key, uid) for key, uid in before if there.get(key) != uid]
        news = [key for key in concerned if key is not None]
        for key in news:
            self._queue.add(key)
        return len(news)
