"""`dljob stack`: where the ranks of a job are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from cyclopts import Parameter

from dljob.cli import output
from dljob.cli.attach import attached, local
from dljob.cli.commands.restart import check_target
from dljob.cli.where import HERE, Where
from dljob.errors import NotFoundError

Form = Literal["text", "json", "yaml"]


def stack(
    job: str,
    target: str = "job",
    /,
    *,
    where: Where = HERE,
    form: Annotated[Form, Parameter(name=("--output", "-o"))] = "text",
) -> None:
    """Show where the ranks of a running job are: the stacks of all their threads, without stopping them.

    Args:
        job: name or uid.
        target: job, a role such as rollout, or a rank such as rollout/2.
        where: on which side.
        form: text, json or yaml: rank and its stacks.
    """
    if where.remote:
        from dljob.cli.kubernetes.stack import stack as remote

        remote(job, target, where, form)
        return
    record = local("stack", job)
    with attached(record) as handle:
        check_target(target, handle.status())
        found = handle.connection.stacks(target)
    if not found:
        raise NotFoundError(f"job {record.name} has ended", hint=f"see dljob status {record.name}")
    show(found, form)


def show(found: Mapping[str, str], form: Form) -> None:
    """Print stacks by rank."""
    if form != "text":
        output.structured(dict(found), form)
        return
    for rank, text in found.items():
        output.data(f"== {rank}\n{text.rstrip()}")
