"""PrimeMaster's log of a job on Kubernetes, as text: from the gateway while the job runs, then from the kept logs."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from dljob.api.kubernetes import jobs, logs
from dljob.api.kubernetes.logs import MASTER, OLDER
from dljob.api.logs import Since
from dljob.api.master_log import NO_LOG_HINT, shown
from dljob.errors import NotFoundError

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]


async def read(kube: Kube, job: Json, *, tail: int | None = None, since: float | None = None) -> list[str]:
    """Return the entries so far as text, oldest first; with `tail`, only the last `tail`.

    Args:
        kube: the cluster.
        job: the DLJob.
        tail: a number of entries.
        since: unix seconds; earlier entries are omitted.

    Raises:
        NotFoundError: there is no such log, or none was kept.
        SilentError: the job runs, and its head does not answer.
        UsageError: the dljob of its image is too old for that.
    """
    texts = await logs.texts_of(kube, job, (OLDER, MASTER), tail, _timed(since))
    if MASTER not in texts:
        raise NotFoundError(f"no log of PrimeMaster of job {jobs.place_of(job)}", hint=NO_LOG_HINT)
    lines = [line for key in (OLDER, MASTER) for line in logs.last_lines(texts.get(key, ""), tail)]
    return list(deque(shown(lines, since), maxlen=tail))


async def follow(kube: Kube, job: Json, *, tail: int | None = None, since: float | None = None) -> AsyncGenerator[str]:
    """Yield the entries so far (with `tail`, only the last) and those to come, until the job has ended.

    Raises:
        NotFoundError: the job was deleted.
        UsageError: the dljob of its image is too old for that.
    """
    followed = logs.Followed([MASTER], tail, _timed(since))
    async with contextlib.aclosing(jobs.each_second(kube, job)) as moments:
        async for now in moments:
            for entry in shown([line.text for line in await followed.hear(kube, now)], since):
                yield entry
    for entry in shown([line.text for line in followed.finish(await logs.saved(kube, job))], since):
        yield entry


def _timed(since: float | None) -> Since | None:
    """Return the moment for `logs`, without the remark about unknown times: `shown` filters entries by their own."""
    return None if since is None else Since(since, lambda _untimed: None)
