"""`dljob events`: a job's timeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from cyclopts import Parameter

from dljob.api import registry
from dljob.cli import output
from dljob.cli.attach import attached, local
from dljob.cli.where import HERE, Where
from dljob.errors import UnreachableError

_POLL_S = 10.0


def events(
    job: str,
    /,
    *,
    where: Where = HERE,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"), negative="")] = False,
    form: Annotated[output.TableFormat, Parameter(name=("--output", "-o"))] = "table",
) -> None:
    """Show what happened to a job: room found, roles ready, failures, restarts, the end.

    Args:
        job: name or uid.
        where: on which side.
        follow: go on until the job is over.
        form: table, json (one line each) or yaml.
    """
    if where.remote:
        from dljob.cli.kubernetes.events import events as remote

        remote(job, where, form, follow=follow)
        return
    record = local("events", job)
    begin = record.started
    for note in _notes(record, follow=follow):
        if form == "table":
            output.data(line(note, begin))
        else:
            output.structured(note if form == "json" else [note], form, indent=None)


def line(note: Mapping[str, Any], begin: float) -> str:
    """One note as a line: seconds since the begin, reason, target, level, message."""
    level = f" [{note['level']}]" if note.get("level") else ""
    took = f" ({output.seconds(note['seconds'])})" if note.get("seconds") is not None else ""
    return f"{note['time'] - begin:8.1f}s  {note['reason']:<18} {note['target']:<14}{level} {note['message']}{took}"


def _notes(record: registry.JobRecord, *, follow: bool) -> Iterator[dict[str, Any]]:
    """The notes: of an ended job from its folder, of a live one from its master."""
    from dljob.runtime.launch import read_notes

    if record.over or record.stale:
        yield from read_notes(record.folder)
        return
    seen = 0
    try:
        with attached(record) as handle:
            while True:
                ended = handle.connection.status().get("phase") in registry.FINAL
                fresh = handle.connection.notes(seen, _POLL_S if follow and not ended else 0.0)
                yield from fresh
                seen = fresh[-1]["seq"] if fresh else seen
                if ended or not follow:
                    return
    except UnreachableError:
        if not record.over:
            raise
        yield from read_notes(record.folder, seen)
