"""Advice from folders of past jobs: reads them, and asks what each of the pure modules makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dljob.report import job_folder
from dljob.report.advice import callees, checkpoints, resources, rules
from dljob.report.advice.job_use import JobUse, measure
from dljob.report.advice.proposals import Advice, NoAdvice
from dljob.report.advice.shapes import comparable


def advise(folders: Sequence[Path]) -> tuple[str, Advice]:
    """Return the name of the last job, and advice on it from all that have its shape.

    Raises:
        NotFoundError: a folder is none of a job.
    """
    uses: list[JobUse] = []
    for folder in folders:
        record = job_folder.load(folder)
        name = f"{record.status.get('name') or folder.name} ({str(record.status.get('uid') or '')[:8]})"
        uses.append(measure(record, name))
    newest = uses[-1]
    unread = Advice(none=tuple(NoAdvice(use.name, why) for use in uses for why in use.unrecorded))
    if not newest.spec:
        return newest.name, unread + Advice.no(newest.name, "its folder has no spec: what it asked for is not known")
    kept, others = comparable(uses)
    found = resources.advise(kept) + callees.advise(kept) + checkpoints.advise(kept) + rules.advise(folders[-1])
    return newest.name, Advice(found.proposals, (*others, *unread.none, *found.none))
