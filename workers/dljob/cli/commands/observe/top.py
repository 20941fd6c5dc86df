"""`dljob top`: jobs, or the ranks of one job, as they change."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Annotated

from cyclopts import Parameter

from dljob.cli import output
from dljob.cli.target import HERE, JobTarget
from dljob.cli.top import picture
from dljob.cli.top.feed import TopFeed
from dljob.cli.top.picture import TopTable
from dljob.errors import UsageError


def top(
    job: str | None = None,
    /,
    *,
    place: JobTarget = HERE,
    everywhere: Annotated[bool, Parameter(name=("--all-namespaces", "-A"), negative="")] = False,
) -> None:
    """Show all jobs, or the ranks of one job, refreshed in place: steps, heartbeats, memory, devices.

    Keys: q quits, j, k, arrows and space scroll, s changes the column that rows are sorted by. In a file or a pipe it
    prints one table.

    Args:
        job: name or uid; default: all jobs.
        place: this machine, or a cluster.
        everywhere: show the jobs of all namespaces of the cluster.
    """
    from dljob.cli.top import screen

    if everywhere and (job is not None or place.namespace is not None):
        raise UsageError("--all-namespaces is for the list of all jobs", hint="leave out JOB and --namespace")
    with _source(job, place, everywhere=everywhere) as ask:
        if screen.possible():
            screen.show(TopFeed(ask))
        else:
            output.data("\n".join(picture.full_table(ask())))


@contextmanager
def _source(job: str | None, place: JobTarget, *, everywhere: bool) -> Generator[Callable[[], TopTable]]:
    """Yield the function that asks for the present table."""
    if job is None:
        listing = place.jobs(everywhere=everywhere)
        yield lambda: picture.of_jobs(listing.all(), time.time())
        return
    with place.job("top", job) as handle:
        # A remark on stderr would stand in the middle of the page; the table shows what there is.
        handle.say = lambda _text: None
        yield lambda: picture.of_job(handle.ranks(), time.time())
