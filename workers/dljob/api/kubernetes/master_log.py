"""PrimeMaster's own log of a job on Kubernetes, in words: from where PrimeMaster is, afterwards from what was kept."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from dljob.api.kubernetes import jobs, logs
from dljob.api.kubernetes.logs import MASTER, OLDER
from dljob.api.logs import Since
from dljob.api.master_log import EARLIER, shown
from dljob.errors import NotFoundError

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]


async def read(kube: Kube, job: Json, *, tail: int | None = None, since: float | None = None) -> list[str]:
    """The entries there are, oldest first, each as text; with `tail`, the last so many.

    Args:
        kube: the cluster.
        job: the DLJob.
        tail: a number of entries.
        since: unix seconds; entries before it are left out.

    Raises:
        NotFoundError: there is no such log, or none was kept.
        SilentError: the job lives, and its head cannot be asked.
        UsageError: the dljob of its image is too old to give it.
    """
    texts = await logs.texts_of(kube, job, (OLDER, MASTER), tail, _timed(since))
    if MASTER not in texts:
        raise NotFoundError(f"no log of PrimeMaster of job {jobs.place_of(job)}", hint=EARLIER)
    lines = [line for key in (OLDER, MASTER) for line in logs.last_lines(texts.get(key, ""), tail)]
    return list(deque(shown(lines, since), maxlen=tail))


async def follow(kube: Kube, job: Json, *, tail: int | None = None, since: float | None = None) -> AsyncGenerator[str]:
    """The entries there are (with `tail`, the last so many) and those to come, until the job has ended.

    Raises:
        NotFoundError: the job was deleted.
        UsageError: the dljob of its image is too old to give it.
    """
    followed = logs.Followed([MASTER], tail, _timed(since))
    async with contextlib.aclosing(jobs.each_second(kube, job)) as moments:
        async for now in moments:
            for entry in shown([line.text for line in await followed.hear(kube, now)], since):
                yield entry
    for entry in shown([line.text for line in followed.finish(await logs.saved(kube, job))], since):
        yield entry


def _timed(since: float | None) -> Since | None:
    """Each entry has its time: nothing of it is shown for not knowing when it was written."""
    return None if since is None else Since(since, lambda _untimed: None)
