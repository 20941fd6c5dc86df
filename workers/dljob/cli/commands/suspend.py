"""`dljob suspend`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from dljob.cli.where import HERE, Where


def suspend(job: str, /, *, where: Where = HERE, wait: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Give a job's machines back on Kubernetes: what is in memory is saved, and nothing of it is left but the DLJob.

    Its spec may be changed then. It goes on from its last checkpoint with `dljob resume`.

    Args:
        job: name or uid.
        where: on which cluster.
        wait: return when nothing of it is left.
    """
    from dljob.cli.kubernetes.suspension import must_be_remote, suspend

    must_be_remote("suspend", job, where)
    suspend(job, where, wait=wait)
