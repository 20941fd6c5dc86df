"""`dljob stack`: stacks of a job's ranks."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from dljob.cli import output
from dljob.cli.target import HERE, JobTarget

Form = Literal["text", "json", "yaml"]


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
    with where.job("stack", job) as target_job:
        found = target_job.stacks(target)
    if form != "text":
        output.structured(found, form)
        return
    for rank, text in found.items():
        output.data(f"== {rank}\n{text.rstrip()}")
