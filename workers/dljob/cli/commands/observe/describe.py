"""`dljob describe`: one job on one page."""

from __future__ import annotations

import time

from dljob.cli import description, output
from dljob.cli.target import HERE, JobTarget


def describe(job: str, /, *, where: JobTarget = HERE) -> None:
    """Show one job on a page: spec, status, nodes, faults and causes, last events, location of its logs.

    Args:
        job: name, uid, or the first digits of a uid.
        where: this machine, or a cluster.
    """
    with where.job("describe", job) as found:
        for text in description.lines(found.page(), found.started, time.time()):
            output.data(text)
