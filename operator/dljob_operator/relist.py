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
        before = list(keys(sight.shelf))
        there: dict[Key, str] = {}
        concerned: list[Key | None] = []
        for namespace in self._namespaces:
            async for page in sight.objects.pages(namespace, sight.labels):
                for item in page["items"]:
                    there[key_of(item)] = item["metadata"]["uid"]
                    concerned.append(sight.put(item))
        concerned += [sight.drop(key, uid) for key, uid in before if there.get(key) != uid]
        news = [key for key in concerned if key is not None]
        for key in news:
            self._queue.add(key)
        if news:
            kind = sight.objects.resource.kind
            self._missed(kind, len(news))
            log.info("a list of %s told %d changes that the watch had not", kind, len(news))
        return len(news)
