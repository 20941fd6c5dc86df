"""`dljob stop`: stop a running job."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from dljob.cli import output
from dljob.cli.target import HERE, JobTarget


def stop(job: str, /, *, place: JobTarget = HERE, wait: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Stop a running job; its journal, logs and checkpoints stay in its folder.

    Args:
        job: name or uid.
        place: this machine, or a cluster.
        wait: return only when the job has ended.
    """
    with place.job("stop", job) as handle:
        handle.stop(wait=wait)
        output.say(f"job {handle.place} {'stopped' if wait else 'is being stopped'}; {handle.remains}")
