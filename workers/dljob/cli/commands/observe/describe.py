"""`dljob describe`: one job on one page."""

from __future__ import annotations

import time

from dljob.cli import description, output
from dljob.cli.target import HERE, JobTarget


def describe(job: str, /, *, place: JobTarget = HERE) -> None:
    """Show one job on a page: spec, status, nodes, faults and causes, last events, location of its logs.

    Args:
        job: name, uid, or the first digits of a uid.
        place: this machine, or a cluster.
    """
    with place.job("describe", job) as handle:
        for text in description.lines(handle.page(), handle.started, time.time()):
            output.data(text)
