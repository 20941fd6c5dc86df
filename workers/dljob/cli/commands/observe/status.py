"""`dljob status`: a list of jobs, or one job in detail."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from dljob.api import kept
from dljob.cli import description, output
from dljob.cli.target import HERE, JobTarget, elsewhere
from dljob.errors import UsageError

if TYPE_CHECKING:
    from dljob.api.shown_job import JobListing, JobSummary, Row

HEAD: Row = ("NAME", "UID", "PHASE", "ROLES", "RESTARTS", "STEP", "AGE")
ROW_AGAIN_S = 10.0
"""Interval, in seconds, at which a row is repeated while the step stands still."""


def status(
    job: str | None = None,
    /,
    *,
    place: JobTarget = HERE,
    everywhere: Annotated[bool, Parameter(name=("--all-namespaces", "-A"), negative="")] = False,
    watch: Annotated[bool, Parameter(name=("--watch", "-w"), negative="")] = False,
    form: Annotated[output.TableFormat, Parameter(name=("--output", "-o"))] = "table",
) -> None:
    """Show all jobs, or one job: phase, roles, step, restarts, the last fault.

    Args:
        job: name, uid, the first digits of a uid, or the path of a job's folder, also of a copy; default: all jobs.
        place: this machine, or a cluster.
        everywhere: list the jobs of all namespaces of the cluster.
        watch: print a row for every change, for one job until it has ended.
        form: table, json or yaml.
    """
    if everywhere and (job is not None or place.namespace is not None):
        raise UsageError("--all-namespaces is for the list of all jobs", hint="leave out JOB and --namespace")
    if job is None:
        listing = place.jobs(everywhere=everywhere)
        if watch:
            listing.watch(Rows(form, namespaced=listing.namespaced).add)
        else:
            _all(listing, place, form)
        return
    if path := place.path(job):
        if watch:
            raise UsageError(f"{job} is a path: nothing there changes", hint="leave out --watch, or name a job")
        overview, more_events = kept.accounts(path).overview, f"dljob events {shlex.quote(str(path))}"
    else:
        with place.job("status", job) as handle:
            if watch:
                handle.watch(Rows(form).add)
                return
            overview, more_events = handle.overview(), f"dljob events {job}{handle.flags}"
    if form != "table":
        output.structured(overview.data, form)
        return
    for text in description.detail(overview, time.time(), more_events):
        output.data(text)


def _all(listing: JobListing, place: JobTarget, form: output.TableFormat) -> None:
    """Print one row per job."""
    jobs = listing.all()
    if form != "table":
        output.structured([job.listed for job in jobs], form)
    elif jobs:
        output.table(rows(jobs, time.time(), namespaced=listing.namespaced))
    else:
        output.say(listing.empty)
        # Only a hint: no command looks on a cluster by itself (ADR 13).
        if not (place.remote or listing.namespaced) and (hint := elsewhere("status")):
            output.say(hint)


def rows(jobs: Sequence[JobSummary], now: float, *, namespaced: bool) -> list[Row]:
    """Return a list of jobs, with its heading."""
    head = ("NAMESPACE", *HEAD) if namespaced else HEAD
    return [head, *(row(job, now, namespaced=namespaced) for job in jobs)]


def row(job: JobSummary, now: float, *, namespaced: bool = False) -> Row:
    """Return one job of a list, with how long its step has stood still."""
    step = job.progress.get("step")
    cells = (
        job.name,
        job.uid[:8],
        job.shown_phase,
        job.ready,
        str(job.restarts),
        "-" if step is None else f"{step}{_stands(job, now)}",
        output.age(job.started, now),
    )
    return (job.namespace, *cells) if namespaced else cells


def _stands(job: JobSummary, now: float) -> str:
    """Return for how long a running job's step has stood still, when that is unusually long; else empty."""
    return "" if job.phase in description.STILL else output.standing(job.progress, now)


class Rows:
    """Rows under one heading; an unchanged row is not repeated, unless its step stands still."""

    def __init__(self, form: output.TableFormat, *, namespaced: bool = False) -> None:
        self._form: output.TableFormat = form
        self._row = partial(row, namespaced=namespaced)
        self._namespaced = namespaced
        self._widths: list[int] = []
        self._last: dict[str, tuple[Row, bool, float]] = {}

    def add(self, jobs: Sequence[JobSummary]) -> None:
        """Print the rows that changed since the last call."""
        now = time.time()
        fresh = [job for job in jobs if self._is_fresh(job, now)]
        if fresh and not self._widths and self._form == "table":
            self._begin(fresh, now)
        for job in fresh:
            if self._form == "table":
                output.data(output.cells(self._row(job, now), self._widths))
            else:
                # One document per line (JSON) or list item (YAML), so that a stream of them can be parsed.
                output.structured(job.data if self._form == "json" else [job.data], self._form, indent=None)

    def _begin(self, fresh: Sequence[JobSummary], now: float) -> None:
        head, *_ = shown = rows(fresh, now, namespaced=self._namespaced)
        self._widths = output.widths(shown)
        # The widths are fixed by the first rows; leave room for the longest phase that may follow.
        longest, phase = "Provisioning" if fresh[0].namespace else "Recovering", head.index("PHASE")
        self._widths[phase] = max(self._widths[phase], len(longest))
        output.data(output.cells(head, self._widths))

    def _is_fresh(self, job: JobSummary, now: float) -> bool:
        # Compared without ages, which change each second.
        cells, stands = self._row(job, float("-inf")), bool(_stands(job, now))
        before = self._last.get(job.uid)
        if before and before[:2] == (cells, stands) and not (stands and now - before[2] >= ROW_AGAIN_S):
            return False
        self._last[job.uid] = cells, stands, now
        return True
