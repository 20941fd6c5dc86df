"""Suspending a job and resuming it: `spec.suspend`, and how far the operator has come with it."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from dljob.api.kubernetes.jobs import changes, ended, part, phase_of, place_of, status_of
from dljob.errors import NotFoundError, UnreachableError, UsageError

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]


def is_suspended(job: Json) -> bool:
    """Whether its spec says that it is to be suspended."""
    return part(job, "spec").get("suspend") is True


async def suspend(kube: Kube, job: Json, *, on: bool) -> Json:
    """Say in the spec whether the job is to be suspended; the DLJob as it is then.

    Raises:
        NotFoundError: the job has ended.
        UsageError: it runs on a RayCluster that is not its own.
        UnreachableError: the cluster's DLJob knows no spec.suspend.
    """
    from dljob.api.kubernetes.refusals import OLDER
    from dljob.kube.api import DLJOBS

    if ended(job):
        raise NotFoundError(f"job {place_of(job)} has ended: {phase_of(job)}")
    if on and part(part(job, "spec"), "rayClusterRef"):
        name, meta = job["spec"]["rayClusterRef"]["name"], job["metadata"]
        raise UsageError(
            f"job {place_of(job)} runs on RayCluster {name}, which is not its own: its machines are not given back",
            hint=f"dljob stop {meta['name']} -n {meta['namespace']} ends the job",
        )
    meta = job["metadata"]
    patch = {"metadata": {"uid": meta["uid"]}, "spec": {"suspend": on}}
    made = await kube.patch(DLJOBS, meta["name"], meta["namespace"], patch)
    if is_suspended(made) != on:
        raise UnreachableError("this cluster's DLJob knows no spec.suspend", hint=OLDER)
    return made


async def halted(kube: Kube, job: Json) -> Json:
    """The job once nothing of it is left but the DLJob.

    Raises:
        NotFoundError: it ended before, or was deleted.
        UsageError: somebody has resumed it meanwhile.
    """
    last = job
    async with aclosing(changes(kube, job)) as found:
        async for last in found:
            if not is_suspended(last):
                raise UsageError(f"job {place_of(job)} has been resumed meanwhile")
            if phase_of(last) == "Suspended":
                return last
    raise NotFoundError(f"job {place_of(job)} ended before: {phase_of(last)}")


async def runs(kube: Kube, job: Json) -> Json:
    """The job once it runs again, or has ended.

    Raises:
        NotFoundError: it was deleted.
        UsageError: somebody has suspended it meanwhile.
    """
    last, generation = job, int(job["metadata"].get("generation", 0))
    async with aclosing(changes(kube, job)) as found:
        async for last in found:
            if is_suspended(last):
                raise UsageError(f"job {place_of(job)} has been suspended meanwhile")
            seen = int(status_of(last).get("observedGeneration", 0)) >= generation
            if seen and phase_of(last) == "Running":
                break
    return last
