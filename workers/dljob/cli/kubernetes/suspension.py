"""`dljob suspend` and `dljob resume`, which always act on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dljob.api.kubernetes import jobs, suspension
from dljob.cli import output
from dljob.cli.kubernetes.place import about
from dljob.cli.where import JobTarget
from dljob.errors import ExitCode, UsageError, exit_code

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]


def must_be_remote(verb: str, job: str, where: JobTarget) -> None:
    """Refuse a job of this machine, which has no machines to release.

    Raises:
        UsageError: no flag selects a cluster.
    """
    if not where.remote:
        hint = f"on Kubernetes: dljob {verb} {job} --kubernetes, or -n NAMESPACE; here: dljob stop {job}"
        raise UsageError(f"a job of this machine cannot be {verb}{'ed' if verb == 'suspend' else 'd'}", hint=hint)


def suspend(job: str, where: JobTarget, *, wait: bool) -> None:
    """Suspend a job; with `wait`, until its pods are gone."""

    async def asked(kube: Kube, found: Json) -> None:
        before = suspension.is_suspended(found)
        made = await suspension.suspend(kube, found, on=True)
        name, namespace = made["metadata"]["name"], made["metadata"]["namespace"]
        if wait:
            made = await suspension.halted(kube, made)
        gone = jobs.phase_of(made) == "Suspended"
        said = "is suspended" if gone else "is being suspended" if not before else "is being suspended already"
        output.say(f"job {jobs.place_of(made)} {said}; it goes on with dljob resume {name} {where.flags(namespace)}")

    about(where, job, asked)


def resume(job: str, where: JobTarget, *, wait: bool) -> ExitCode:
    """Resume a job; with `wait`, until it runs."""

    async def asked(kube: Kube, found: Json) -> ExitCode:
        before = suspension.is_suspended(found)
        made = await suspension.suspend(kube, found, on=False)
        if wait:
            made = await suspension.runs(kube, made)
        phase, place = jobs.phase_of(made), jobs.place_of(made)
        if wait and jobs.ended(made):
            reason, message = jobs.why(made)
            output.say(f"job {place} has ended: {phase} ({reason}) {message}".rstrip())
            return exit_code(phase)
        name, namespace = made["metadata"]["name"], made["metadata"]["namespace"]
        said = "runs" if wait else "is resumed" if before else f"was not suspended: {phase}"
        output.say(f"job {place} {said}; see dljob status {name} {where.flags(namespace)}")
        return ExitCode.OK

    return about(where, job, asked)
