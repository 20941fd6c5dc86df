"""`dljob logs`: what the ranks wrote."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from dljob.api import logs as reader
from dljob.cli import output
from dljob.cli.attach import local
from dljob.cli.where import HERE, Where
from dljob.errors import UsageError


def logs(
    job: str,
    /,
    *,
    where: Where = HERE,
    role: str | None = None,
    rank: int | None = None,
    tail: int | None = None,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"), negative="")] = False,
) -> None:
    """Show the output of a job's ranks, each line after [role/rank].

    Args:
        job: name or uid.
        where: on which side.
        role: only of this role.
        rank: only of this rank.
        tail: only the last so many lines of each rank.
        follow: go on until the job is over.
    """
    if tail is not None and tail < 0:
        raise UsageError(f"--tail is a number of lines, not {tail}")
    if where.remote:
        from dljob.cli.kubernetes.logs import logs as remote

        remote(job, where, role=role, rank=rank, tail=tail, follow=follow)
        return
    record = local("logs", job)
    if not follow:
        for line in reader.read(record.folder, role=role, rank=rank, tail=tail):
            output.data(str(line))
        return
    for line in reader.follow(record.folder, lambda: record.over or record.stale, role=role, rank=rank, tail=tail):
        output.data(str(line))
