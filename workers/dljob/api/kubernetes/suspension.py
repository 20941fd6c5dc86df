"""Suspend and resume: `spec.suspend`, and the operator's progress with it."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from dljob.api.kubernetes.jobs import changes, ended, entries, nested, phase_of, place_of, status_of
from dljob.errors import NotFoundError, UnreachableError, UsageError

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]


def is_suspended(job: Json) -> bool:
    """Whether the job's spec asks for suspension."""
    return nested(job, "spec").get("suspend") is True


async def suspend(kube: Kube, job: Json, *, on: bool) -> Json:
    """Set `spec.suspend` and return the DLJob as stored.

    Raises:
        NotFoundError: the job has ended.
        UsageError: it runs on a RayCluster that was not made for it.
        UnreachableError: this cluster's CRD has no spec.suspend.
    """
    from dljob.api.kubernetes.refusals import OLDER
    from dljob.kube.api import DLJOBS

    if ended(job):
        raise NotFoundError(f"job {place_of(job)} has ended: {phase_of(job)}")
    if on and nested(nested(job, "spec"), "rayClusterRef"):
        name, meta = job["spec"]["rayClusterRef"]["name"], job["metadata"]
        raise UsageError(
            f"job {place_of(job)} runs on RayCluster {name}, not made for it: its machines cannot be released",
            hint=f"dljob stop {meta['name']} -n {meta['namespace']} ends the job",
        )
    meta = job["metadata"]
    # The uid is a precondition: a job made anew under this name gets a conflict instead.
    patch = {"metadata": {"uid": meta["uid"]}, "spec": {"suspend": on}}
    stored_job = await kube.patch(DLJOBS, meta["name"], meta["namespace"], patch)
    if is_suspended(stored_job) != on:  # an older CRD drops the unknown field without a word
        raise UnreachableError("this cluster's DLJob knows no spec.suspend", hint=OLDER)
    return stored_job


def _is_at_rest(job: Json) -> bool:
    """Whether only the DLJob is left of a suspended job, whose phase is Invalid where its spec is."""
    states = (state for state in entries(status_of(job), "conditions") if state.get("type") == "Suspended")
    return phase_of(job) == "Suspended" or any(state.get("status") == "True" for state in states)


async def halted(kube: Kube, job: Json) -> Json:
    """Wait until only the DLJob is left, and return it.

    Raises:
        NotFoundError: the job ended before, or was deleted.
        UsageError: the job was resumed meanwhile.
    """
    last = job
    async with aclosing(changes(kube, job)) as versions:
        async for last in versions:
            if not is_suspended(last):
                raise UsageError(f"job {place_of(job)} has been resumed meanwhile")
            # Suspended is True only when all pods are gone, however long a lost node holds one (ADR 35).
            if _is_at_rest(last):
                return last
    raise NotFoundError(f"job {place_of(job)} ended before: {phase_of(last)}")


async def runs(kube: Kube, job: Json) -> Json:
    """Wait until the job runs again or has ended, and return it.

    Raises:
        NotFoundError: the job was deleted.
        UsageError: the job was suspended meanwhile.
    """
    last, generation = job, int(job["metadata"].get("generation", 0))
    async with aclosing(changes(kube, job)) as versions:
        async for last in versions:
            if is_suspended(last):
                raise UsageError(f"job {place_of(job)} has been suspended meanwhile")
            # A status of an earlier spec may still say Running, from before the suspension.
            is_observed = int(status_of(last).get("observedGeneration", 0)) >= generation
            if is_observed and phase_of(last) == "Running":
                break
    return last
