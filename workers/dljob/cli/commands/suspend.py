"""`dljob suspend` and `dljob resume`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from dljob.cli.where import HERE, JobTarget
from dljob.errors import ExitCode


def suspend(job: str, /, *, where: JobTarget = HERE, wait: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Suspend a job on Kubernetes: save its checkpoints, release its machines, and keep only the DLJob.

    Its spec can be changed meanwhile. `dljob resume` continues it from its last checkpoint.

    Args:
        job: name or uid.
        where: the cluster.
        wait: return only when all its pods are gone.
    """
    from dljob.cli.kubernetes.suspension import must_be_remote, suspend

    must_be_remote("suspend", job, where)
    suspend(job, where, wait=wait)


def resume(job: str, /, *, where: JobTarget = HERE, wait: Annotated[bool, Parameter(negative="")] = False) -> ExitCode:
    """Resume a suspended job on new machines, from its last checkpoint, with its spec as it is now.

    Args:
        job: name or uid.
        where: the cluster.
        wait: return only when it runs; exits with 1 if it failed instead.
    """
    from dljob.cli.kubernetes.suspension import must_be_remote, resume

    must_be_remote("resume", job, where)
    return resume(job, where, wait=wait)
