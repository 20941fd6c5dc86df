"""Detached jobs, which outlive the command that started them: `dljob run --detach`, and output of `dljob submit`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dljob.api import registry
from dljob.cli import output
from dljob.errors import ExitCode, JobStoppedError

if TYPE_CHECKING:
    from dljob.api.shown_job import ShownJob
    from dljob.spec.model import DLJobManifest

Form = Literal["name", "json", "yaml"]


def start(
    manifest: DLJobManifest,
    code_dir: Path,
    *,
    pretend: tuple[str, ...],
    replace: bool,
    resume: str | None,
    form: output.DataFormat,
) -> int:
    """Run a job on an embedded Ray in a separate process, which ends with the job, and print the job.

    Raises:
        UsageError: Ray is not installed; the job is not for an embedded Ray; its name is taken.
        PlacementError: this machine lacks devices, or the plan wants too many machines.
        UnreachableError: Ray did not start.
    """
    from dljob.api.handle import START_ACTIVITY, handle_of
    from dljob.api.local.session import LocalRay
    from dljob.api.place import check_here
    from dljob.cli.job_file import sizes_here
    from dljob.plan.plan import plan
    from dljob.runtime.backend.machine import parse_pretend

    # Before the session host starts: its errors would come seconds later.
    check_here(manifest, code_dir)
    registry.check_home()
    declared = parse_pretend(pretend)
    for line in sizes_here(plan(manifest), declared):
        output.say(line)
    ray = LocalRay(pretend=declared, once=True)
    try:
        with output.telling(START_ACTIVITY):
            # `keep`: otherwise the session host would stop the job at the end of this command.
            record = ray.submit(manifest, code_dir=code_dir, keep=True, replace=replace, resume=resume)
    except JobStoppedError as error:
        output.say(error.message)
        return ExitCode.INTERRUPTED
    return accepted(handle_of(record), form, environment_of(record))


def accepted(job: ShownJob, form: Form, data: Mapping[str, Any], *, indent: int | None = None) -> int:
    """Print a job that continues without this command; return the exit code."""
    if form == "name":
        output.data(job.name)
    else:
        output.structured(data, form, indent=indent)
    name, flags = job.name, job.flags
    output.say(f"dljob status {name}{flags}, dljob logs {name} --follow{flags}, dljob stop {name}{flags}")
    return ExitCode.OK


def environment_of(record: registry.RegistryEntry) -> dict[str, str]:
    """Return name, uid and folder of a job on this machine, by which a program finds it again."""
    return {"name": record.name, "uid": record.uid, "dir": record.dir}
