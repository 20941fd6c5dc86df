"""`dljob resume`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from dljob.cli.where import HERE, Where
from dljob.errors import ExitCode


def resume(job: str, /, *, where: Where = HERE, wait: Annotated[bool, Parameter(negative="")] = False) -> ExitCode:
    """Let a suspended job go on: on new machines, from its last checkpoint, with its spec as it is now.

    Args:
        job: name or uid.
        where: on which cluster.
        wait: return when it runs, with 1 when it failed instead.
    """
    from dljob.cli.kubernetes.suspension import must_be_remote, resume

    must_be_remote("resume", job, where)
    return resume(job, where, wait=wait)
