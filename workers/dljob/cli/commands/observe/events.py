"""`dljob events`: a job's timeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from cyclopts import Parameter

from dljob.cli import output, timeline
from dljob.cli.target import HERE, JobTarget


def events(
    job: str,
    /,
    *,
    where: JobTarget = HERE,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"), negative="")] = False,
    form: Annotated[output.TableFormat, Parameter(name=("--output", "-o"))] = "table",
) -> None:
    """Show the timeline of a job: placement, roles ready, failures, restarts, the end.

    Args:
        job: name or uid.
        where: this machine, or a cluster.
        follow: continue until the job is over.
        form: table, json (one line each) or yaml.
    """
    with where.job("events", job) as found:

        def show(event: Mapping[str, Any]) -> None:
            if form == "table":
                output.data(timeline.line(event, found.started))
            else:
                # One line (JSON) or list item (YAML) per entry, so that the stream can be parsed.
                output.structured(event if form == "json" else [event], form, indent=None)

        found.tell_events(show, follow=follow)
