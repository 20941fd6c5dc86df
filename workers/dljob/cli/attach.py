"""Handles of running jobs that another process started, found by the registry."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dljob.api import registry
from dljob.api.registry import RegistryEntry
from dljob.cli.where import elsewhere
from dljob.errors import NotFoundError

if TYPE_CHECKING:
    from dljob.api.handle import JobHandle


def local(verb: str, job: str) -> RegistryEntry:
    """Return a job of this machine for a command.

    Raises:
        NotFoundError: there is none; the hint says where else it may be.
    """
    try:
        return registry.find(job)
    except NotFoundError as error:
        # Only a hint: a command never looks on a cluster by itself (ADR 13).
        other = elsewhere(verb, job)
        if not other:
            raise
        raise NotFoundError(f"{error.message} on this machine", hint=f"{error.hint}\n  {other}") from None


@contextmanager
def attached(record: RegistryEntry) -> Generator[JobHandle]:
    """Open a handle of a running job.

    Raises:
        NotFoundError: the job has ended.
        UnreachableError: nothing answers for it.
    """
    refuse_dead(record)
    from dljob.api.handle import JobHandle
    from dljob.api.reach import reach

    with reach(record) as connection:
        yield JobHandle(record, connection)


def refuse_dead(record: RegistryEntry) -> None:
    """Refuse a job that can take no orders any more.

    Raises:
        NotFoundError: the job has ended, or its runner is gone.
    """
    if record.over:
        phase = record.status().get("phase")
        raise NotFoundError(f"job {record.name} has ended: {phase}", hint=f"see dljob status {record.uid[:8]}")
    if record.stale:
        raise NotFoundError(
            f"job {record.name} is gone: its runner, pid {record.runner}, ended without a final status",
            hint=f"its journal and logs are in {record.dir}",
        )
