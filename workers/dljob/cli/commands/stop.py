"""`dljob stop`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from dljob.cli import output
from dljob.cli.attach import attached, local
from dljob.cli.where import HERE, Where


def stop(job: str, /, *, where: Where = HERE, wait: Annotated[bool, Parameter(negative="")] = False) -> None:
    """End a running job; its journal, logs and what it saved stay in its folder.

    Args:
        job: name or uid.
        where: on which side.
        wait: return when nothing of it is left.
    """
    if where.remote:
        from dljob.cli.kubernetes.orders import stop as remote

        remote(job, where, wait=wait)
        return
    record = local("stop", job)
    with attached(record) as handle:
        handle.stop()
        if wait:
            handle.wait()
    output.say(f"job {record.name} {'stopped' if wait else 'is being stopped'}; its folder: {record.dir}")
