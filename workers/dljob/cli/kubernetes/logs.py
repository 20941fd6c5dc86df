"""`dljob logs` on a cluster."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from dljob.api.kubernetes import jobs, whole_logs
from dljob.api.kubernetes import logs as reader
from dljob.cli import output
from dljob.cli.kubernetes.place import about
from dljob.cli.where import Where

if TYPE_CHECKING:
    from dljob.kube.api import Kube


def logs(job: str, where: Where, *, role: str | None, rank: int | None, tail: int | None, follow: bool) -> None:
    """The ranks' output, from the living job or from what was kept of it."""

    async def asked(kube: Kube, found: dict[str, Any]) -> None:
        if not follow:
            for line in await reader.read(kube, found, role=role, rank=rank, tail=tail):
                output.data(str(line))
            where_whole = whole_logs.told(found) if jobs.ended(found) else ""
            if where_whole:
                output.say(where_whole)
            return
        async with aclosing(reader.follow(kube, found, role=role, rank=rank, tail=tail)) as lines:
            async for line in lines:
                output.data(str(line))

    about(where, job, asked)
