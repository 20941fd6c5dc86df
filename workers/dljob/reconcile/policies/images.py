"""Images of node groups that do not fit the job's: found in the pods' checks before Ray runs there (ADR 102)."""

from __future__ import annotations

from collections.abc import Iterator

from dljob.reconcile.policies.stopping import BEFORE_RUNNING
from dljob.reconcile.state import reasons
from dljob.reconcile.state.context import ReconcileContext
from dljob.reconcile.state.fields import text
from dljob.reconcile.state.model import ImageVersions
from dljob.reconcile.state.steps import JobEnd

ANEW = "then delete this job and apply it again"


def misfit(case: ReconcileContext) -> JobEnd | None:
    """End a job that has not run yet and of which the image of a node group does not fit.

    One that ran goes on: its image has another content meanwhile, and Ray lets no such pod join. ClusterReady tells it.
    """
    if text(case.old, "phase") not in BEFORE_RUNNING or text(case.snapshot, "phase") not in BEFORE_RUNNING:
        return None
    return next(_misfits(case), None)


def _misfits(case: ReconcileContext) -> Iterator[JobEnd]:
    head = case.head.image if case.head else None
    for pod in case.observed.pods:
        if pod.head or pod.image is None:
            continue
        refusal = _refusal(pod.image, head, case)
        if refusal is not None:
            reason, message = refusal
            yield JobEnd("Failed", reason, f"the image of node group {pod.group} has {message}; {ANEW}", case.now)


def _refusal(group: ImageVersions, job: ImageVersions | None, case: ReconcileContext) -> tuple[str, str] | None:
    """Return reason and message of the first version that does not fit."""
    dljob, image = case.settings.version, "nodeGroups[].image"
    if job and _minor(group.python) != _minor(job.python):
        message = f"Python {group.python}, and the job's image Python {job.python}: ranks need one minor version"
        return reasons.PYTHON_MISMATCH, f"{message}; name an image with Python {_minor(job.python)} in {image}"
    if job and job.ray and group.ray != job.ray:
        message = f"{_has('Ray', group.ray)}, and the job's image Ray {job.ray}"
        return reasons.RAY_MISMATCH, f"{message}; name an image with ray[default]=={job.ray} in {image}"
    if _minor(group.dljob) != _minor(dljob):
        hint = "let the operator bring its own dljob (its initImage), or rebuild the image with that version"
        return reasons.DLJOB_MISMATCH, f"{_has('dljob', group.dljob)}; the operator is of version {dljob}; {hint}"
    return None


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _has(name: str, version: str) -> str:
    return f"{name} {version}" if version else f"no {name}"
