"""`dljob describe`: one job on one page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from dljob.api import registry
from dljob.cli import description, output
from dljob.cli.attach import local
from dljob.cli.commands.events import notes
from dljob.cli.commands.status import current
from dljob.cli.commands.status import describe as standing
from dljob.cli.timeline import line
from dljob.cli.where import HERE, JobTarget
from dljob.errors import UnreachableError
from dljob.runtime.journal.job_record import SPEC


def describe(job: str, /, *, where: JobTarget = HERE) -> None:
    """Show one job on a page: spec, status, nodes, faults and causes, last events, location of its logs.

    Args:
        job: name, uid, or the first digits of a uid.
        where: this machine, or a cluster.
    """
    if where.remote:
        from dljob.cli.kubernetes.describe import describe as remote

        remote(job, where)
        return
    for text in _lines(local("describe", job)):
        output.data(text)


def _lines(record: registry.RegistryEntry) -> Iterator[str]:
    found = current(record)
    yield from standing(record, {"phase": "Pending", **found})
    facts = [f"uid: {record.uid}", f"started: {output.moment(record.started)}"]
    if found.get("completionTime"):
        facts.append(f"ended: {found['completionTime']}")
    facts.append(f"Ray: {_ray(record)}")
    yield from description.section("Job", facts)
    yield from description.section("Roles", description.roles(_spec(record)))
    yield from description.section("Nodes", description.nodes(found.get("ranks") or []))
    yield from description.section("Events", _events(record))
    logs = [f"{record.folder / 'logs'}/<role>-<rank>.log", f"dljob logs {record.uid[:8]} --follow"]
    yield from description.section("Logs", logs)


def _ray(record: registry.RegistryEntry) -> str:
    if not record.runner:
        return record.address or "one that was there before"
    if record.over or record.stale:
        return "one of its own, which ended with it"
    return f"one of its own at {record.address}, which ends with process {record.runner}; it has no dashboard"


def _spec(record: registry.RegistryEntry) -> dict[str, Any]:
    """Return the submitted spec; empty when the folder has none, as PrimeMaster was on another machine."""
    with suppress(OSError, ValueError):  # the section is left out; status and events have the rest
        return dict(json.loads((record.folder / SPEC).read_text(encoding="utf-8"))["spec"])
    return {}


def _events(record: registry.RegistryEntry) -> list[str]:
    try:
        found = [line(note, record.started).strip() for note in notes(record, follow=False)]
    except UnreachableError as error:
        return [f"PrimeMaster does not answer: {error.message}"]
    return description.last_events(found, f"dljob events {record.uid[:8]}")
