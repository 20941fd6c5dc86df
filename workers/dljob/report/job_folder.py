"""A job's record on disk: status, spec and events, from its folder or a copy of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dljob.api.local import views


class JobFolder(NamedTuple):
    """The record of a job. `unrecorded` names, for a reader, what the folder does not have and why."""

    path: Path
    status: Mapping[str, Any]
    spec: dict[str, Any]
    """Empty if the folder has none."""
    events: list[dict[str, Any]]
    """The events as `events.jsonl` has them, oldest first."""
    unrecorded: tuple[str, ...]


def load(path: Path) -> JobFolder:
    """Load the record of a job.

    Raises:
        NotFoundError: the folder has no status of a job, or a damaged one.
    """
    status = views.in_folder(path).status
    unrecorded: list[str] = []
    events = _events(path / "events.jsonl", unrecorded)
    spec: dict[str, Any] = {}
    try:
        spec = dict(json.loads((path / "spec.json").read_text(encoding="utf-8"))["spec"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        unrecorded.append(f"spec: {type(error).__name__}: {error}")
    return JobFolder(path, status, spec, events, tuple(unrecorded))


def _events(file: Path, unrecorded: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    damaged = 0
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    found.append(json.loads(line))
                except ValueError:
                    damaged += 1
    except OSError as error:
        unrecorded.append(f"events: {type(error).__name__}: {error}")
    if damaged:
        unrecorded.append(f"events: {damaged} damaged lines of {file.name} are left out")
    return found
