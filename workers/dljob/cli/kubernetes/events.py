"""`dljob events` on a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from dljob.api.kubernetes import jobs, timeline
from dljob.cli import output
from dljob.cli.kubernetes.place import about
from dljob.cli.timeline import line
from dljob.cli.where import JobTarget

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]


def events(job: str, where: JobTarget, form: output.TableFormat, *, follow: bool) -> None:
    """Show the job's timeline."""

    async def asked(kube: Kube, found: Json) -> None:
        begin = timeline.unix(found["metadata"].get("creationTimestamp")) or 0.0
        if follow:
            async with aclosing(timeline.follow(kube, found)) as notes:
                async for note in notes:
                    _print(note, begin, form)
            return
        whole = timeline.EventFeed()
        shown = await whole.news(kube, found)
        for note in shown:
            _print(note, begin, form)
        if not shown:
            output.say("no events; Kubernetes keeps them for an hour")
        # PrimeMaster of an ended job is gone, so its silence says nothing.
        if whole.silent and not jobs.ended(found):
            output.say(f"without PrimeMaster's own notes: {whole.silent}")

    about(where, job, asked)


def entry(note: Mapping[str, Any], begin: float) -> str:
    """Format a line of the timeline, with "Warning" and the number of repetitions of an Event."""
    count = f" (x{note['count']})" if note.get("count") else ""
    warning = "Warning: " if note.get("type") == "Warning" else ""
    flat = " ".join(f"{warning}{note['message']}".split())
    return line({**note, "message": flat}, begin) + count


def _print(note: Json, begin: float, form: output.TableFormat) -> None:
    if form == "table":
        output.data(entry(note, begin))
    else:
        output.structured(note if form == "json" else [note], form, indent=None)
