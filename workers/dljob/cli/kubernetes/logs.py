"""`dljob logs` on a cluster."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from dljob.api.kubernetes import jobs, master_log, whole_logs
from dljob.api.kubernetes import logs as reader
from dljob.cli import output
from dljob.cli.kubernetes.place import about
from dljob.cli.where import JobTarget

if TYPE_CHECKING:
    from dljob.api.logs import Since
    from dljob.kube.api import Kube


class Selection(TypedDict):
    """Ranks whose output is shown, and how much of it."""

    role: str | None
    rank: int | None
    tail: int | None
    since: Since | None


def logs(job: str, where: JobTarget, *, follow: bool, **which: Unpack[Selection]) -> None:
    """Show the ranks' output, from the running job or from the kept logs."""

    async def asked(kube: Kube, found: dict[str, Any]) -> None:
        if not follow:
            for line in await reader.read(kube, found, **which):
                output.data(str(line))
            # The ConfigMap keeps only the ends of an ended job's logs.
            where_whole = whole_logs.told(found) if jobs.ended(found) else ""
            if where_whole:
                output.say(where_whole)
            return
        async with aclosing(reader.follow(kube, found, **which)) as lines:
            async for line in lines:
                output.data(str(line))

    about(where, job, asked)


def master(job: str, where: JobTarget, *, follow: bool, tail: int | None, since: float | None) -> None:
    """PrimeMaster's own log, from the living job or from what was kept of it."""

    async def asked(kube: Kube, found: dict[str, Any]) -> None:
        if not follow:
            for line in await master_log.read(kube, found, tail=tail, since=since):
                output.data(line)
            return
        async with aclosing(master_log.follow(kube, found, tail=tail, since=since)) as lines:
            async for line in lines:
                output.data(line)

    about(where, job, asked)
