"""`dljob stack`: stacks of a job's ranks."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from dljob.cli.attach import attached, local
from dljob.cli.commands.restart import check_target
from dljob.cli.stacks import Form, show
from dljob.cli.where import HERE, JobTarget
from dljob.errors import NotFoundError


def stack(
    job: str,
    target: str = "job",
    /,
    *,
    where: JobTarget = HERE,
    form: Annotated[Form, Parameter(name=("--output", "-o"))] = "text",
) -> None:
    """Show the stacks of all threads of a running job's ranks, without stopping them.

    Args:
        job: name or uid.
        target: job, a role such as rollout, or a rank such as rollout/2.
        where: this machine, or a cluster.
        form: text, json or yaml: each rank with its stacks.
    """
    if where.remote:
        from dljob.cli.kubernetes.stack import stack as remote

        remote(job, target, where, form)
        return
    record = local("stack", job)
    with attached(record) as handle:
        check_target(target, handle.status())
        found = handle.connection.stacks(target)
    # The job ended after `attached` had found it running.
    if not found:
        raise NotFoundError(f"job {record.name} has ended", hint=f"see dljob status {record.name}")
    show(found, form)
