"""Guards the first start of a job: it happens once, and an empty journal does not say that it has not happened yet.

In Ray's store the journal goes with the job's other keys at its end. A folder may be empty since its volume is not
mounted on this node. So the store has two keys beside the journal: the job's record, which is there from before the
first master until the job is over, and a mark that the job has begun.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from dljob.errors import DLJobError
from dljob.runtime.journal.job_record import REGISTRY
from dljob.runtime.journal.journal import JournalBrokenError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from dljob.runtime.backend.interface import KeyValue
    from dljob.runtime.journal.journal import Journal
    from dljob.runtime.process.messages import JobInfo


class JobOverError(DLJobError):
    """The job is over and its keys are gone: a PrimeMaster that is left over must leave, and write nothing."""


def _mark(info: JobInfo) -> str:
    return f"dljob/{info.uid}/begun/{info.attempt}"  # each attempt has a journal of its own


async def refuse_ended(kv: KeyValue, uid: str) -> None:
    """Raise JobOverError where the job's record is gone."""
    if await kv.get(REGISTRY + uid) is None:
        raise JobOverError(f"job {uid} is over: its keys in Ray's store are gone")


async def highest_claim(journal: Journal, kv: KeyValue, info: JobInfo) -> int:
    """Return the highest number that is claimed; 0 only before the job has begun.

    Raises:
        JournalBrokenError: The journal cannot be read, or it is empty though the job has begun.
    """
    claimed = await journal.highest()
    if not claimed and await kv.get(_mark(info)) is not None:
        place = journal.store.place
        message = f"the journal in {place} is empty on {platform.node()}, though the job has begun"
        raise JournalBrokenError(message, hint=f"see that its volume is mounted there: ls -l {place}")
    return claimed


async def begin(journal: Journal, kv: KeyValue, info: JobInfo, record: Mapping[str, Any]) -> None:
    """Journal the beginning of a job, and mark it, before anything is done for it. The journal is claimed and read.

    Raises:
        JobOverError: Its records went with the job's keys.
    """
    await refuse_ended(kv, info.uid)
    await journal.commit([record])
    # After the record: a master that dies in between has done nothing, and the next one finds the record, or begins.
    await kv.put(_mark(info), b"1")
