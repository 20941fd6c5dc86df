"""`dljob events`: a job's timeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from dljob.api import kept
from dljob.cli import output, timeline
from dljob.cli.target import HERE, JobTarget
from dljob.errors import UsageError


def events(
    job: str,
    /,
    *,
    place: JobTarget = HERE,
    tail: int | None = None,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"), negative="")] = False,
    form: Annotated[output.TableFormat, Parameter(name=("--output", "-o"))] = "table",
) -> None:
    """Show the timeline of a job: placement, roles ready, failures, restarts, the end.

    Args:
        job: name, uid, the first digits of a uid, or the path of a job's folder, also of a copy.
        place: this machine, or a cluster.
        tail: only the last TAIL entries.
        follow: continue until the job is over.
        form: table, json (one line each) or yaml.
    """
    if tail is not None and tail < 0:
        raise UsageError(f"--tail is a number of entries, not {tail}")
    if path := place.folder("events", job):
        if follow:
            raise UsageError(f"{job} is a folder: nothing follows in it", hint="leave out --follow, or name the job")
        begun, notes = _in_folder(path, tail)
        for note in notes:
            _show(note, begun, form)
        return
    with place.job("events", job) as handle:
        handle.tell_events(lambda event: _show(event, handle.started, form), follow=follow, tail=tail)


def _in_folder(folder: Path, tail: int | None) -> tuple[float, Iterable[Mapping[str, Any]]]:
    """Return the begin of a folder's timeline, and its entries."""
    from dljob.runtime.journal.job_record import last_notes, notes
    from dljob.runtime.journal.timeline import EVENTS

    begun = kept.begun(folder)  # which refuses a folder of no job
    if not (folder / EVENTS).is_file():
        output.say(f"{folder} has no {EVENTS}: the job never started, or the file was not copied")
        return begun, ()
    last = notes(folder) if tail is None else last_notes(folder, tail)
    if tail and not last:
        output.say(f"{folder / EVENTS} ends with no event; without --tail you see those before its damage")
    return begun, last


def _show(event: Mapping[str, Any], begun: float, form: output.TableFormat) -> None:
    if form == "table":
        output.data(timeline.line(event, begun))
    else:
        # One line (JSON) or list item (YAML) per entry, so that the stream can be parsed.
        output.structured(event if form == "json" else [event], form, indent=None)
