"""`dljob suspend` and `dljob resume`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from dljob.cli import output
from dljob.cli.target import HERE, JobTarget, path_refusal
from dljob.errors import ExitCode, UsageError, exit_code
from dljob.spec.status import TERMINAL


def suspend(job: str, /, *, place: JobTarget = HERE, wait: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Suspend a job on Kubernetes: save its checkpoints, release its machines, and keep only the DLJob.

    Its spec can be changed meanwhile. `dljob resume` continues it from its last checkpoint.

    Args:
        job: name or uid.
        place: the cluster.
        wait: return only when all its pods are gone.
    """
    _refuse_here("suspend", job, place)
    with place.job("suspend", job) as handle:
        before, status = handle.suspend(wait=wait)
        is_suspended = status["phase"] in ("Suspended", "Invalid")
        state_text = (
            "is suspended" if is_suspended else "is being suspended already" if before else "is being suspended"
        )
        output.say(f"job {handle.place} {state_text}; it goes on with dljob resume {handle.name}{handle.flags}")


def resume(job: str, /, *, place: JobTarget = HERE, wait: Annotated[bool, Parameter(negative="")] = False) -> ExitCode:
    """Resume a job that is suspended, was stopped or failed, on new machines, from its last checkpoint.

    Its spec is as it is now. dljob run FILE --kubernetes --resume resumes a stopped or failed job with the file's spec
    and code.

    Args:
        job: name or uid.
        place: the cluster.
        wait: return only when it runs; exits with 1 if it failed instead.
    """
    _refuse_here("resume", job, place)
    with place.job("resume", job) as handle:
        before, status = handle.resume(wait=wait)
        phase = status["phase"]
        if wait and phase in TERMINAL:
            reason = f"({status.get('reason', '')}) {status.get('message', '')}"
            output.say(f"job {handle.place} has ended: {phase} {reason}".rstrip())
            return exit_code(phase)
        state_text = "runs" if wait else "is resumed" if before else f"was not suspended: {phase}"
        output.say(f"job {handle.place} {state_text}; see dljob status {handle.name}{handle.flags}")
    return ExitCode.OK


def _refuse_here(verb: str, job: str, place: JobTarget) -> None:
    """Refuse a job of this machine, which has no machines to release.

    Raises:
        NotFoundError: `job` is a file or a folder.
        UsageError: no flag selects a cluster.
    """
    if place.path(job) is not None:
        raise path_refusal(verb, job, "a job's name")
    if not place.remote:
        way = f"dljob stop {job}" if verb == "suspend" else "dljob run FILE --resume goes on with a stopped one"
        hint = f"on Kubernetes: dljob {verb} {job} --kubernetes, or -n NAMESPACE; here: {way}"
        raise UsageError(f"a job of this machine cannot be {verb.removesuffix('e')}ed", hint=hint)
