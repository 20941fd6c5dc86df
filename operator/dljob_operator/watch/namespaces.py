"""The namespaces that the operator serves: all, or those that a label selector selects.

The API server evaluates the selector: a watch with it reports a namespace that begins to match as added, and one that
ceases to match as deleted.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

from dljob.kube.api import AGAIN, Kube
from dljob.kube.resources import NAMESPACES
from dljob.tasks import ErrorLog
from dljob_operator.watch.cache import Cache
from dljob_operator.watch.workqueue import WorkQueue

log = logging.getLogger(__package__)


class ServedNamespaces:
    """The namespaces that `selector` selects; an empty one selects all."""

    def __init__(self, selector: str, cache: Cache, queue: WorkQueue) -> None:
        self.selector = selector
        self._cache = cache
        self._queue = queue
        self._names = set[str]()
        self.known = not selector
        """Whether the selected namespaces were listed; before that none is served."""

    def __contains__(self, namespace: object) -> bool:
        return not self.selector or namespace in self._names

    async def follow(self, kube: Kube) -> None:
        """Follow the selected namespaces until cancelled; DLJobs of one that comes or goes get a pass."""
        errors = ErrorLog("the watch of namespaces", log)
        while True:
            try:
                listed = await kube.list(NAMESPACES, labels=self.selector)
                names = {body["metadata"]["name"] for body in listed}
                for name in names ^ self._names:
                    self._put(name, selected=name in names)
                self.known = True
                errors.worked()
                async with aclosing(kube.watch(NAMESPACES, labels=self.selector, known_before=listed)) as changes:
                    async for kind, body in changes:
                        self._put(body["metadata"]["name"], selected=kind != "DELETED")
            except Exception as error:  # noqa: BLE001 - a list that is refused today may be granted tomorrow
                errors.failed(error)
            await asyncio.sleep(AGAIN)

    def _put(self, namespace: str, *, selected: bool) -> None:
        if selected == (namespace in self._names):
            return
        (self._names.add if selected else self._names.discard)(namespace)
        for key in list(self._cache.jobs.entries):
            if key.namespace == namespace:
                self._queue.add(key)
