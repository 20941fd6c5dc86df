"""`dljob events`: a job's timeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from cyclopts import Parameter

from dljob.api import registry
from dljob.cli import output, timeline
from dljob.cli.attach import attached, local
from dljob.cli.where import HERE, JobTarget
from dljob.errors import UnreachableError
from dljob.spec.status import TERMINAL

_POLL_S = 10.0


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
    if where.remote:
        from dljob.cli.kubernetes.events import events as remote

        remote(job, where, form, follow=follow)
        return
    record = local("events", job)
    begin = record.started
    for note in notes(record, follow=follow):
        if form == "table":
            output.data(timeline.line(note, begin))
        else:
            output.structured(note if form == "json" else [note], form, indent=None)


def notes(record: registry.RegistryEntry, *, follow: bool) -> Iterator[dict[str, Any]]:
    """Yield the notes of an ended job from its folder, of a running one from its PrimeMaster."""
    from dljob.runtime.job.launch import read_notes

    if record.over or record.stale:
        yield from read_notes(record.folder)
        return
    seen = 0
    try:
        with attached(record) as handle:
            while True:
                # Asked first: notes between the last read and the end would be lost otherwise.
                ended = handle.connection.status().get("phase") in TERMINAL
                fresh = handle.connection.notes(seen, _POLL_S if follow and not ended else 0.0)
                yield from fresh
                seen = fresh[-1]["seq"] if fresh else seen
                if ended or not follow:
                    return
    except UnreachableError:
        # It ended between the look at its folder and the question: the folder has the rest by now.
        if not record.over:
            raise
        yield from read_notes(record.folder, seen)
