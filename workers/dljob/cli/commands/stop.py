"""`dljob stop`: stop a running job."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from dljob.cli import output
from dljob.cli.attach import attached, local
from dljob.cli.where import HERE, JobTarget


def stop(job: str, /, *, where: JobTarget = HERE, wait: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Stop a running job; its journal, logs and checkpoints stay in its folder.

    Args:
        job: name or uid.
        where: this machine, or a cluster.
        wait: return only when the job has ended.
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
