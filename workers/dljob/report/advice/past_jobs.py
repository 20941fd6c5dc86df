"""Advice from folders of past jobs: reads them, and asks what each of the pure modules makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dljob.api import kept
from dljob.errors import NotFoundError
from dljob.report import job_folder, series
from dljob.report.advice import callees, checkpoints, resources, rules
from dljob.report.advice.earlier_jobs import earlier_jobs
from dljob.report.advice.job_use import JobUse, measure
from dljob.report.advice.proposals import Advice, NoAdvice
from dljob.report.advice.shapes import comparable
from dljob.runtime.journal import samples
from dljob.spec.chosen_resources import EarlierJob
from dljob.spec.model import DLJobManifest


def measure_earlier_jobs(manifest: DLJobManifest, folders: Sequence[Path]) -> tuple[list[EarlierJob], str]:
    """Return jobs with this one's shape, for `resources.auto`, and why another does not count; empty: all do."""
    return earlier_jobs(manifest, lightly_measured(folders))


def lightly_measured(folders: Sequence[Path]) -> list[JobUse]:
    """Measure jobs without their journals, which takes long: ranks killed for memory are those of the last faults.

    Folders without a status or a spec are left out.
    """
    uses: list[JobUse] = []
    for folder in folders:
        with suppress(NotFoundError):  # removed meanwhile, or damaged: another job tells as much
            status = kept.overview(folder).status
            manifest = job_folder.manifest_in(folder / "spec.json", [])
            sampled = samples.read(folder, series.MOST)
            record = job_folder.RecordedJob(status, manifest, [], None, {}, (), sampled)
            if manifest:
                uses.append(measure(record, _name(record, folder)))
    return uses


def _name(record: job_folder.RecordedJob, folder: Path) -> str:
    return f"{record.status.get('name') or folder.name} ({str(record.status.get('uid') or '')[:8]})"


def measured(folders: Sequence[Path]) -> list[JobUse]:
    """Measure jobs by all of their records.

    Raises:
        NotFoundError: a folder is none of a job.
    """
    records = ((job_folder.load(folder), folder) for folder in folders)
    return [measure(record, _name(record, folder)) for record, folder in records]


def advise(folders: Sequence[Path]) -> tuple[str, Advice]:
    """Return the name of the last job, and advice on it from all that have its shape.

    Raises:
        NotFoundError: a folder is none of a job.
    """
    uses = measured(folders)
    newest = uses[-1]
    unread = Advice(none=tuple(NoAdvice(use.name, reason) for use in uses for reason in use.unrecorded))
    if not newest.spec:
        return newest.name, unread + Advice.no(newest.name, "its folder has no spec: what it asked for is not known")
    comparable_uses, others = comparable(uses)
    advice = (
        resources.advise(comparable_uses)
        + callees.advise(comparable_uses)
        + checkpoints.advise(comparable_uses)
        + rules.advise(folders[-1])
    )
    return newest.name, Advice(advice.proposals, (*others, *unread.none, *advice.none), newest.slowness)
