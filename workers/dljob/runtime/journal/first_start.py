"""Guards the first start of a job: it happens once, and an empty journal does not say that it has not happened yet.

In Ray's store the journal goes with the job's other keys at its end. So a PrimeMaster that finds no records looks for
the job's record, which is there from before the first master until the job is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dljob.errors import DLJobError
from dljob.runtime.journal.job_record import REGISTRY

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from dljob.runtime.backend.interface import KeyValue
    from dljob.runtime.journal.journal import Journal
    from dljob.runtime.process.messages import JobInfo


class JobOverError(DLJobError):
    """The job is over and its keys are gone: a PrimeMaster that is left over must leave, and write nothing."""


async def refuse_ended(kv: KeyValue, uid: str) -> None:
    """Raise JobOverError where the job's record is gone."""
    if await kv.get(REGISTRY + uid) is None:
        raise JobOverError(f"job {uid} is over: its keys in Ray's store are gone")


async def begin(journal: Journal, kv: KeyValue, info: JobInfo, record: Mapping[str, Any]) -> None:
    """Journal the beginning of a job. The journal is claimed and read before.

    Raises:
        JobOverError: Its records went with the job's keys.
    """
    await refuse_ended(kv, info.uid)
    await journal.commit([record])
