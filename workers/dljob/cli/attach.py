"""From a job's entry in the registry to a handle on the living job, from another process."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dljob.api import registry
from dljob.api.registry import JobRecord
from dljob.cli.where import elsewhere
from dljob.errors import NotFoundError, UnreachableError

if TYPE_CHECKING:
    from dljob.api.handle import JobHandle


def local(verb: str, job: str) -> JobRecord:
    """A job of this machine, for a command.

    Raises:
        NotFoundError: there is none; says where else it may be.
    """
    try:
        return registry.find(job)
    except NotFoundError as error:
        other = elsewhere(verb, job)
        if not other:
            raise
        raise NotFoundError(f"{error.message} on this machine", hint=f"{error.hint}\n  {other}") from None


@contextmanager
def attached(record: JobRecord) -> Generator[JobHandle]:
    """The living job while the block runs.

    Raises:
        NotFoundError: it has ended.
        UnreachableError: its Ray does not answer.
    """
    refuse_dead(record)
    from dljob.api.handle import JobHandle
    from dljob.runtime.connect import joined
    from dljob.runtime.launch import attach

    with joined(record.address, dict(record.environment)):
        try:
            connection = attach(record.uid)
        except NotFoundError as error:
            raise UnreachableError(
                f"the Ray at {record.address} does not know job {record.name}", hint=f"its folder: {record.dir}"
            ) from error
        yield JobHandle(record, connection)


def refuse_dead(record: JobRecord) -> None:
    """Refuse a job that takes no orders any more.

    Raises:
        NotFoundError: it has ended, or its runner is gone.
    """
    if record.over:
        phase = record.status().get("phase")
        raise NotFoundError(f"job {record.name} has ended: {phase}", hint=f"see dljob status {record.name}")
    if record.stale:
        raise NotFoundError(
            f"job {record.name} is gone: its runner, pid {record.runner}, ended without a last word",
            hint=f"its journal and logs are in {record.dir}",
        )
