"""Jobs with a folder on this machine, as the command shows them: in a list, and one in detail."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dljob.api import registry
from dljob.api.local.connection import RecordConnection, filed
from dljob.api.registry import RegistryEntry
from dljob.api.shown_job import JobListing, JobSummary, Overview
from dljob.errors import NotFoundError, UnreachableError
from dljob.linux.plain_files import read_json
from dljob.spec.status import TERMINAL, total_restarts
from dljob.telemetry.wording import moment, seconds

ENDED = (*TERMINAL, "Lost")
WATCH_S = 1.0
"""Interval, in seconds, at which statuses in folders are read; they are written no more often."""
NEWS_S = 5.0
"""Longest wait, in seconds, for a new status of PrimeMaster: a row shows every 10 s how long its step stands still."""
ANSWER_S = 2.0
"""Time, in seconds, for PrimeMaster to answer before the status in the job's folder is shown."""


def summary(record: RegistryEntry, status: dict[str, Any]) -> JobSummary:
    """Return a job as a row of a list."""
    roles: list[dict[str, Any]] = status.get("roles", [])
    progress: dict[str, Any] = status.get("progress") or {}
    host = str(status.get("host", ""))
    known = {"name": record.name, "uid": record.uid, "dir": record.dir} | ({"host": host} if host else {})
    brief = {"started": moment(record.started)} | {k: status.get(k) for k in ("phase", "reason", "message", "seconds")}
    return JobSummary(
        name=record.name,
        uid=record.uid,
        phase=status.get("phase", "Pending"),
        ready=f"{sum(r['ready'] + r['succeeded'] for r in roles)}/{sum(r['desired'] for r in roles)}",
        restarts=total_restarts(status.get("restarts", {})),
        progress=progress,
        started=moment(record.started),
        data={**status, **known},
        listed={**known, **brief},
        host=host,
    )


class LocalListing(JobListing):
    """The jobs that this user started on this machine or from it."""

    @property
    def empty(self) -> str:
        """Message for no jobs."""
        return f"no jobs in {registry.home()}"

    def all(self) -> list[JobSummary]:
        """Return the jobs by their last written status, without asking any Ray."""
        return [summary(record, filed(record)) for record in registry.records()]

    def watch(self, show: Callable[[Sequence[JobSummary]], None]) -> None:
        """Show all jobs again and again."""
        while True:
            show(self.all())  # with those that started meanwhile
            time.sleep(WATCH_S)


def watch(record: RegistryEntry, connection: RecordConnection, show: Callable[[Sequence[JobSummary]], None]) -> None:
    """Show a job again and again until it has ended.

    Raises:
        UnreachableError: nothing answers for a job on a Ray that outlives its commands.
    """
    if not record.runner and not record.over:
        # Its folder may be on another machine, and would miss the end of its Ray: PrimeMaster is asked.
        with connection.reached() as job:
            status: dict[str, Any] = {}
            while status.get("phase") not in ENDED:
                status = job.status(int(status.get("version", 0)), NEWS_S)
                show([summary(record, status)])
        return
    while True:
        if record.is_starting and not record.folder.exists():
            record = registry.find(record.name)  # it has begun, or its start was interrupted
        status = filed(record)
        show([summary(record, status)])
        if status.get("phase") in ENDED:
            return
        time.sleep(WATCH_S)


def current(record: RegistryEntry, connection: RecordConnection, remark: Callable[[str], None]) -> dict[str, Any]:
    """Return the status from the running job, else from its folder; a job whose runner is gone has phase Lost.

    Raises:
        UnreachableError: nothing answers for the job, and its folder has no status that could still be true.
    """
    if record.over or record.stale or record.is_starting:
        return filed(record)
    if record.elsewhere:
        status = filed(record)
        if "host" in status:
            remark(f"it runs on {record.elsewhere}, or was killed there; {_written(record)}")
        return status
    with connection.reached() as job:
        try:
            # A person waits for this: better an old status with its age than none for 10 s.
            return job.status(reach_s=ANSWER_S)
        except UnreachableError as error:
            # Without a runner the Ray is elsewhere, and the folder here may never get a later status.
            filed_status = record.status() if record.runner else {}
            if not filed_status:
                raise
            remark(f"PrimeMaster does not answer; {_written(record)} ({error.message})")
            return filed_status


def _written(record: RegistryEntry) -> str:
    """Return when the status in a job's folder was written, for a remark."""
    try:
        at = (record.folder / "status.json").stat().st_mtime
    except OSError:
        return "no status has been written yet"
    # Never below 0: the clock of another machine may be ahead.
    return f"this was written {seconds(max(0.0, time.time() - at))} ago"


def overview(record: RegistryEntry, status: dict[str, Any]) -> Overview:
    """Return a job in detail."""
    phase = str(status.get("phase", "Pending"))
    data = {**status, "dir": record.dir}
    host = str(status.get("host", ""))
    folder = "" if record.is_starting else record.dir
    return Overview(f"{record.name} ({record.uid[:8]})", phase, status, data, folder=folder, host=host)


def in_folder(folder: Path) -> Overview:
    """Return a job in detail by its folder alone, wherever it was copied to: the last status written there.

    Raises:
        NotFoundError: the folder has no status.json of a job, or a damaged one.
    """
    file = folder / "status.json"
    try:
        status: dict[str, Any] = read_json(file)
        record = RegistryEntry(str(status["name"]), str(status["uid"]), str(folder))
    except FileNotFoundError as error:
        hint = "the folder of a job has job.json, status.json, events.jsonl and journal; dljob status lists jobs"
        raise NotFoundError(f"{file}: no status of a job: there is no such file", hint=hint) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        hint = f"copy the folder again; dljob replay {shlex.quote(str(folder))} reads the journal instead"
        reason = (isinstance(error, OSError) and error.strerror) or f"{type(error).__name__}: {error}"
        raise NotFoundError(f"{file}: no status of a job: {reason}", hint=hint) from error
    return overview(record, status)


def facts(record: RegistryEntry, status: dict[str, Any]) -> list[str]:
    """Return lines about a job from its registry entry: uid, times, and its Ray."""
    ended = [f"ended: {status['completionTime']}"] if status.get("completionTime") else []
    return [f"uid: {record.uid}", f"started: {moment(record.started)}", *ended, f"Ray: {_ray(record)}"]


def _ray(record: RegistryEntry) -> str:
    if not record.runner:
        return record.address or "one that was there before"
    if record.over or record.stale:
        return "one of its own, which ended with it"
    if record.elsewhere:
        return f"one of its own on {record.elsewhere}, which ends with process {record.runner} there"
    return f"one of its own at {record.address}, which ends with process {record.runner}; it has no dashboard"


def spec(folder: Path) -> dict[str, Any]:
    """Return the submitted spec; empty when the folder has none, as PrimeMaster was on another machine."""
    from dljob.runtime.journal.job_record import SPEC

    with suppress(OSError, ValueError, KeyError, TypeError):  # the section is left out; status and events have the rest
        return dict(read_json(folder / SPEC)["spec"])
    return {}
