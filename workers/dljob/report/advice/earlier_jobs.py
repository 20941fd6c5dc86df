"""Records of jobs, as the choice of `resources.auto` needs them. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from dljob.report.advice.job_use import JobUse, RoleUse
from dljob.report.advice.shapes import comparable
from dljob.spec.chosen_resources import EarlierJob, ResourceUse, usual_of
from dljob.spec.model import DLJobManifest


def earlier_jobs(manifest: DLJobManifest, uses: Sequence[JobUse]) -> tuple[list[EarlierJob], str]:
    """Return the jobs that have the shape of this one, and why another does not count; empty: all do."""
    spec = manifest.model_dump(mode="json", by_alias=True, exclude_none=True)["spec"]
    (*comparable_uses, _), others = comparable([*uses, JobUse("this job", spec, 0.0, None, False, {})])
    jobs = [
        EarlierJob(use.name, {name: _resources(role) for name, role in use.roles.items()}) for use in comparable_uses
    ]
    return jobs, f"{others[-1].subject}: {others[-1].reason}" if others else ""


def _resources(use: RoleUse) -> ResourceUse:
    return ResourceUse(
        use.productive_s / use.ranks,
        max(use.peaks, default=0),
        use.growth,
        usual_of(use.cpus) if use.cpus else 0.0,
        len(use.cpus),
        use.out_of_memory,
    )
