"""A job's record on disk: status, spec, events, journal and logs, from its folder or a copy of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from dljob.api import kept
from dljob.api.shown_job import Page
from dljob.api.views import entries
from dljob.errors import JournalError
from dljob.linux.plain_files import bounded_lines, open_plain, read_json
from dljob.logs import marks
from dljob.report import history as histories
from dljob.report import journal_files, series
from dljob.report.history import JobHistory
from dljob.report.incidents import LINES, MOST, IncidentText
from dljob.runtime.journal import samples
from dljob.runtime.journal.event_file import LINE_BYTES, parse_event
from dljob.runtime.journal.samples import Samples
from dljob.telemetry.wording import unix

_TAIL = 16 << 10
"""Bytes of a log that are read before the end of a rank."""
_AFTER_S = 1.5
"""Seconds after a failure whose output is shown with it: marks of a log are a second apart."""
_STACKS = 64 << 10
"""Bytes of a file with stacks, or with a dump, that are read."""
_DUMPS = 16
"""Dumps of one incident that are shown."""


Json = dict[str, Any]


class RecordedJob(NamedTuple):
    """The record of a job. `unrecorded` names, for a reader, what the folder does not have and why."""

    status: Mapping[str, Any]
    manifest: dict[str, Any]
    """The manifest as it was submitted; empty if there is none."""
    events: list[dict[str, Any]]
    """The events as `events.jsonl` has them, oldest first."""
    history: JobHistory | None
    """What the journal says; None without one."""
    texts: Mapping[int, IncidentText]
    """Log lines and stacks by number of the incident."""
    unrecorded: tuple[str, ...]
    samples: Samples = Samples()
    """What PrimeMaster sampled."""

    @property
    def spec(self) -> dict[str, Any]:
        """The spec; empty if there is none."""
        return dict(self.manifest.get("spec") or {})


def load(path: Path, status: Mapping[str, Any] | None = None) -> RecordedJob:
    """Load the record of a job.

    Args:
        path: its folder.
        status: its present status; None: the last one in the folder.

    Raises:
        NotFoundError: the folder has no status of a job, or a damaged one.
    """
    status = kept.overview(path).status if status is None else status
    unrecorded: list[str] = []
    events = _events(path / "events.jsonl", unrecorded)
    manifest = manifest_in(path / "spec.json", unrecorded)
    history = _history(path / "journal", unrecorded)
    faults = history.faults.items() if history else enumerate(entries(status, "recentFaults"), 1)
    sampled = samples.read(path, series.MOST)
    unrecorded += sampled.unrecorded
    return RecordedJob(status, manifest, events, history, texts(path, faults), tuple(unrecorded), sampled)


def of_shown(shown: Page, name: str, uid: str) -> RecordedJob:
    """Return the record of a job of which no folder is at hand: what the cluster tells."""
    status = {"name": name, "uid": uid, **shown.overview.status}
    manifest = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": name}, "spec": shown.spec}
    events = [{"seq": number, **event} for number, event in enumerate(shown.events, 1)]
    remarks = (f"events: {remark}" for remark in shown.event_remarks)
    unrecorded = (*remarks, "lanes, stages, logs: the job's folder is in its cluster")
    return RecordedJob(status, manifest if shown.spec else {}, events, None, {}, unrecorded)


def _events(file: Path, unrecorded: list[str]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    damaged, last = 0, 0
    try:
        with open_plain(file) as stream:
            for line in bounded_lines(stream, LINE_BYTES):
                if (event := parse_event(line)) is None:
                    damaged += 1
                # A master that was fenced while it wrote may leave an event that its successor wrote, too.
                elif event["seq"] > last:
                    events.append(event)
                    last = event["seq"]
    except OSError as error:
        unrecorded.append(f"events: {error.strerror}: {file.name}")
    if damaged:
        unrecorded.append(f"events: {damaged} damaged lines of {file.name} are left out")
    return events


def manifest_in(file: Path, unrecorded: list[str]) -> dict[str, Any]:
    """Return the manifest in a file; empty if it is missing or damaged, which `unrecorded` then says."""
    try:
        data: Any = read_json(file)
        if isinstance(data, dict) and isinstance(cast("Json", data).get("spec"), dict):
            return cast("Json", data)
        unrecorded.append(f"spec: {file.name} has none")
    except OSError as error:
        unrecorded.append(f"spec: {error.strerror}: {file.name}")
    except ValueError as error:
        unrecorded.append(f"spec: {file.name} is damaged: {error}")
    return {}


def _history(folder: Path, unrecorded: list[str]) -> JobHistory | None:
    """Return what the journal says; None without one, or with one of which nothing can be used."""
    if not folder.is_dir():
        unrecorded.append("lanes, stages: the folder has no journal")
        return None
    damage: list[JournalError] = []
    chain = journal_files.parts(folder, damage)
    history: JobHistory | None = None
    unreadable = ""
    try:
        history = histories.fold(journal_files.records(chain, histories.is_needed, damage))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        unreadable = f"journal: another version of dljob wrote it, and this one cannot read it: {error!r}"
    unrecorded += filter(None, [journal_files.older_is_gone(chain), *(error.message for error in damage), unreadable])
    if history is None or not history.lanes:
        unrecorded.append("lanes, stages: the journal has no state of the job")
        return None
    return history


def texts(folder: Path, faults: Iterable[tuple[int, Mapping[str, Any]]]) -> dict[int, IncidentText]:
    """Return log lines and stacks of the first and the last faults: of thousands nobody reads them."""
    rows = sorted(faults)
    shown = rows if len(rows) <= MOST else rows[: MOST // 2] + rows[-MOST // 2 :]
    texts_by_fault: dict[int, IncidentText] = {}
    for number, fault in shown:
        role, _, rank = str(fault.get("rank") or "").rpartition("/")
        at = fault.get("detected_at") or unix(fault.get("detectedAt"))
        if not role or not rank.isdigit() or "/" in role or at is None:
            continue
        lines = _lines(folder / "logs" / f"{role}-{rank}.log", float(at))
        stem = f"{role}-{rank}-{fault.get('incarnation')}"
        stacks = [*_stacks(folder / "stacks" / f"{stem}.txt", f"{role}/{rank}"), *_dumps(folder / "stacks", stem)]
        if lines or stacks:
            texts_by_fault[number] = IncidentText(f"{role}/{rank}", lines, stacks)
    return texts_by_fault


def _lines(log: Path, at: float) -> list[str]:
    """Return the last lines that a log had shortly after a time; of a log without marks none, since no line has one."""
    until = int((at + _AFTER_S) * 1e9)
    end = next((size for time, size in reversed(marks.read(log)) if time <= until), 0)
    text = _part(log, max(0, end - _TAIL), end)
    return text.split("\n")[-LINES - 1 :][:LINES] if end else []


def _stacks(file: Path, name: str) -> list[tuple[str, str]]:
    text = _part(file, 0, _STACKS)
    return [(name, text)] if text else []


def _dumps(folder: Path, stem: str) -> list[tuple[str, str]]:
    """Return the dumps of outside witnesses at a hang, by file; of those that are no text only their place."""
    try:
        files = sorted(file for file in folder.iterdir() if file.name.startswith(f"{stem}.") and file.suffix == ".dump")
    except OSError:
        return []
    parts = [(file, _part(file, 0, _STACKS)) for file in files[:_DUMPS]]
    return [(file.name, f"no text: {file}" if "\0" in text or "\ufffd" in text else text) for file, text in parts]


def _part(file: Path, begin: int, end: int) -> str:
    """Return a part of a file; empty if it is no regular file, such as a pipe or a link to elsewhere."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.pread(fd, end - begin, begin).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)
