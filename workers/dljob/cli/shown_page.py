"""Data of a job's page for the commands that show it: the job's record, with the lines of `dljob why`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dljob.api import kept
from dljob.api.handle import JobHandle
from dljob.cli import diagnosis
from dljob.report import job_folder
from dljob.report.page_data import page_data
from dljob.runtime.journal.code_version import code_version
from dljob.spec.status import TERMINAL

if TYPE_CHECKING:
    from dljob.api.shown_job import Overview, ShownJob


def of_folder(folder: Path, now: float, *, with_values: bool = False) -> dict[str, Any]:
    """Return the data of a job by its folder alone, wherever it was copied to.

    Raises:
        NotFoundError: the folder has no status of a job.
    """
    overview = kept.overview(folder)
    return _data(
        job_folder.load(folder, overview.status),
        overview,
        str(overview.status["name"]),
        "",
        now,
        with_values=with_values,
    )


def of_job(job: ShownJob, name: str, now: float, *, live: bool = False, with_values: bool = False) -> dict[str, Any]:
    """Return the data of a job by its present status: with its folder here, or by what the cluster tells.

    Args:
        job: the job.
        name: name or uid by which later commands find it.
        now: unix seconds.
        live: whether the page will follow the job.
        with_values: show values of `command`, `args` and `config`.
    """
    if isinstance(job, JobHandle):
        overview = job.overview()
        record = job_folder.load(job.dir, overview.status)
    else:
        shown = job.page()
        overview, record = shown.overview, job_folder.of_shown(shown, job.name, job.uid)
    return _data(record, overview, name, job.flags, now, live=live, with_values=with_values)


def _data(
    record: job_folder.RecordedJob,
    overview: Overview,
    name: str,
    flags: str,
    now: float,
    *,
    live: bool = False,
    with_values: bool = False,
) -> dict[str, Any]:
    lines = diagnosis.diagnose(overview, name, flags).lines
    live = live and overview.phase not in (*TERMINAL, "Lost")
    return page_data(record, now, version=code_version(), cause=lines, live=live, with_values=with_values)
