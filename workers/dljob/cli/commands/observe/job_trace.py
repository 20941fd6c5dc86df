"""`dljob trace`: a job's past as a file for Perfetto."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from dljob.api import registry
from dljob.api.views import entries
from dljob.cli import output
from dljob.cli import output_file as files
from dljob.cli.target import HERE
from dljob.errors import NotFoundError

OutputFile = Annotated[Path, Parameter(name=("--output", "-o"))]


def trace(
    job: str,
    /,
    *,
    output_file: OutputFile = Path("trace.json"),
    force: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Write a job's trace in Chrome's format: nodes, ranks, their accounts over time, and incidents.

    Perfetto (ui.perfetto.dev) and chrome://tracing open it. It is made of the journal, so the job's folder or a copy of
    it must be on this machine. Calls between roles are in it if the job ran with --trace-calls.

    Args:
        job: name, uid, the first digits of a uid, or the path of a job's folder, also of a copy.
        output_file: the file to write.
        force: replace a file that is there.
    """
    from dljob.report import call_files, job_folder, trace_events
    from dljob.report.page_data import page_data

    files.refuse_existing(output_file, force=force)
    folder = HERE.folder("trace", job) or registry.find(job).folder
    record, now = job_folder.load(folder), time.time()
    if record.history is None:
        reason = next(
            (message for message in record.unrecorded if "journal" in message), "the journal has no state of the job"
        )
        raise NotFoundError(f"{folder} has nothing to trace: {reason}", hint="give a folder with the job's journal")
    data = page_data(record, now)
    until = max(record.history.until, float(data["job"]["end"] or 0))
    nodes = {
        (row["role"], row["rank"]): str(row.get("nodeName") or row["node"]) for row in entries(record.status, "ranks")
    }
    calls, unread = call_files.load(folder)
    data["unrecorded"] += unread
    events = trace_events.trace(data, nodes, until, calls)
    about = {"job": data["job"]["name"], "uid": data["job"]["uid"], "unrecorded": data["unrecorded"]}
    size = files.write(output_file, _text(events, about), force=force)
    for line in (*record.unrecorded, *unread):
        output.say(line)
    output.say(f"wrote {output_file} ({size // 1000} kB); open it at https://ui.perfetto.dev")


def _text(events: Iterable[Mapping[str, Any]], about: Mapping[str, Any]) -> Iterator[str]:
    """Yield the file, an event a line."""
    yield f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":['
    separator = "\n"
    for event in events:
        yield separator + json.dumps(event, separators=(",", ":"))
        separator = ",\n"
    yield "\n]}\n"
