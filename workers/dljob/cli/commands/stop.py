"""`dljob stop`: stop a running job."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from dljob.cli import output
from dljob.cli.target import HERE, JobTarget


def stop(job: str, /, *, where: JobTarget = HERE, wait: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Stop a running job; its journal, logs and checkpoints stay in its folder.

    Args:
        job: name or uid.
        where: this machine, or a cluster.
        wait: return only when the job has ended.
    """
    with where.job("stop", job) as found:
        found.stop(wait=wait)
        output.say(f"job {found.place} {'stopped' if wait else 'is being stopped'}; {found.remains}")
