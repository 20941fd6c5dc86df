"""Detached jobs, which outlive the command that started them: `dljob run --detach`, and output of `dljob submit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dljob.api import registry
from dljob.cli import output
from dljob.errors import ExitCode

if TYPE_CHECKING:
    from dljob.spec.model import DLJobManifest

Form = Literal["name", "json", "yaml"]


def start(
    manifest: DLJobManifest, code_dir: Path, *, pretend: tuple[str, ...], replace: bool, form: output.DataFormat
) -> int:
    """Run a job on an embedded Ray in a separate process, which ends with the job, and print the job.

    Raises:
        UsageError: Ray is not installed; the job is not for an embedded Ray; its name is taken.
        PlacementError: this machine lacks devices, or the plan wants too many machines.
        UnreachableError: Ray did not start.
    """
    from dljob.api.local.session import LocalRay
    from dljob.api.place import check_here
    from dljob.runtime.backend.machine import parse_pretend

    # Before the session host starts: its errors would come seconds later.
    check_here(manifest, code_dir)
    registry.check_home()
    ray = LocalRay(pretend=parse_pretend(pretend), once=True)
    return accepted(ray.submit(manifest, code_dir=code_dir, keep=True, replace=replace), form)


def accepted(record: registry.RegistryEntry, form: Form) -> int:
    """Print a job that continues without this command; return the exit code."""
    if form == "name":
        output.data(record.name)
    else:
        output.structured({"name": record.name, "uid": record.uid, "dir": record.dir}, form, indent=None)
    output.say(f"dljob status {record.name}, dljob logs {record.name} --follow, dljob stop {record.name}")
    return ExitCode.OK
