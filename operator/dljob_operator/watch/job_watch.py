"""Watch of the DLJobs of a namespace, one object after another.

kopf holds all objects of a page, and the last body of each object for seconds. A DLJob is up to 1.5 MiB of whatever its
user likes, and 25 times as much as Python objects. Here each is parsed, reduced (`Cache.put_job`) and let go.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

from dljob.kube.api import AGAIN, DLJOBS, Kube
from dljob.tasks import ErrorLog
from dljob_operator.watch.feed import WatchFeed

log = logging.getLogger(__package__)


async def watch_jobs(kube: Kube, namespace: str | None, feed: WatchFeed) -> None:
    """Give each change of the DLJobs of a namespace, or of all (None), to `feed`, for ever.

    A stream that ends is resumed where it ended. One that brings nothing, since the server has forgotten that place,
    begins anew with all present objects; what was deleted meanwhile is found by `Relist`.
    """
    errors = ErrorLog("the watch of dljobs", log)
    since = ""
    while True:
        last = ""
        try:
            async with aclosing(kube.changes(DLJOBS, namespace, since)) as changes:
                async for kind, body in changes:
                    last = body["metadata"]["resourceVersion"]
                    if kind != "DELETED":
                        feed.on_index(body)
                    feed.on_event(kind, body)
            errors.worked()
        except Exception as error:  # noqa: BLE001 - one unreadable event must not end the watch
            errors.failed(error)
        if not last:
            await asyncio.sleep(AGAIN)
        since = last
