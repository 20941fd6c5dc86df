"""`dljob run`: run a job to its end, on an embedded Ray or on a cluster."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from dljob.cli import output
from dljob.cli.job_file import UNCHANGED, Overrides, cluster_job, folder_of, manifest_of, unfit_here, with_resources
from dljob.cli.rank_output import selected
from dljob.cli.target import HERE, JobTarget
from dljob.errors import UsageError

if TYPE_CHECKING:
    from dljob.cli.runner import Runner
    from dljob.spec.model import DLJobManifest


def run(
    file: Path,
    /,
    *,
    place: JobTarget = HERE,
    changes: Overrides = UNCHANGED,
    faults: Path | None = None,
    pretend: Annotated[tuple[str, ...], Parameter(negative="", show_default=False)] = (),
    upload: bool | None = None,
    replace: Annotated[bool, Parameter(negative="")] = False,
    resume: Annotated[bool | str, Parameter(negative="")] = False,
    stop_on_interrupt: Annotated[bool, Parameter(negative="")] = False,
    quiet: Annotated[bool, Parameter(name=("--quiet", "-q"), negative="")] = False,
    roles: str | None = None,
    detach: Annotated[bool, Parameter(name=("--detach", "-d"), negative="")] = False,
    form: Annotated[output.DataFormat, Parameter(name=("--output", "-o"))] = "json",
) -> int:
    """Run a job and watch it to its end: on this machine, or on Kubernetes.

    On this machine the job gets a Ray of its own, which ends with it: one raylet for each machine of the plan, at most
    8. The file's folder is the working directory of the ranks and on their path. Ctrl-C stops the job. On Kubernetes
    the folder is uploaded; after Ctrl-C the job goes on, and a second Ctrl-C stops it. The ranks' lines have the prefix
    [role/rank], at most 200 lines per second and rank. The last line on stdout is JSON: seconds, restarts and
    consistent cuts, with the job's result on this machine, with phase and last step on Kubernetes.

    Args:
        file: YAML or JSON file.
        place: this machine, or a cluster.
        changes: changes of the file.
        faults: on this machine: inject the faults of this file, such as - {when: {step: 15}, target: rollout/1, fault:
            kill}; exits with 1 when the job's reaction differs from the file's expectation.
        pretend: on this machine: devices that every raylet declares without having them, such as NPU=8; may be
            repeated.
        upload: on Kubernetes: upload the folder, or do not, when the image has the code; default: upload it, unless the
            spec names a place of the code that exists.
        replace: stop a running job of the same name first; on Kubernetes, delete it.
        resume: go on from the newest checkpoint of the job of this name and program that was stopped, that failed or
            that was killed last, or of the one with this uid.
        stop_on_interrupt: on Kubernetes: let the first Ctrl-C stop the job.
        quiet: do not show the output of ranks; dljob logs has it.
        roles: show only the output of these roles: trainer,rollout.
        detach: on this machine: return once the job is accepted; it goes on, with its own Ray, until it ends or is
            stopped.
        form: json or yaml, for the result; with --detach for name, uid and folder.
    """
    # Flags first: a mistake in them costs no reading, and no import of the runtime.
    shown = selected(quiet=quiet, roles=roles)
    _check(place, local=faults is not None or bool(pretend), remote=stop_on_interrupt or upload is not None)
    _check_detached(detach=detach, watched=place.remote or faults is not None or bool(shown.roles))
    if place.remote:
        from dljob.cli.kubernetes.run import run as remote

        given_job = cluster_job(file, upload=upload, changes=changes, replace=replace, resume=_job_of(resume))
        return remote(given_job, place, form, stop_on_interrupt=stop_on_interrupt, shown=shown)
    # The ranks import from this folder, so a script that is missing in it is an error here and now.
    manifest = with_resources(manifest_of(file, changes=changes, rules=partial(unfit_here, file)))
    folder = folder_of(file, manifest)
    if detach:
        from dljob.cli.detach import start

        return start(manifest, folder, pretend=pretend, replace=replace, resume=_job_of(resume), form=form)
    runner = _runner(manifest)(
        *(manifest, folder), faults=faults, pretend=pretend, form=form, shown=shown, replace=replace,
        resume=_job_of(resume),
    )  # fmt: skip
    return runner.run()


def _job_of(resume: bool | str) -> str | None:  # noqa: FBT001 - a flag with or without a value
    """Return the uid with which `--resume` was given; empty: without one; None: it was not given."""
    return resume if isinstance(resume, str) else "" if resume else None


def _check(place: JobTarget, *, local: bool, remote: bool) -> None:
    """Refuse flags that belong to the other place.

    Raises:
        UsageError: there is such a flag.
    """
    if place.remote and local:
        raise UsageError("--faults and --pretend are for a run on this machine")
    if remote and not place.remote:
        raise UsageError(
            "--stop-on-interrupt, --upload and --no-upload are for a run on Kubernetes", hint="add --kubernetes"
        )


def _check_detached(*, detach: bool, watched: bool) -> None:
    """Refuse `--detach` together with flags about watching.

    Raises:
        UsageError: both are given.
    """
    if detach and watched:
        raise UsageError(
            "--detach is for a run on this machine that is not watched: not with --faults or --roles",
            hint="on Kubernetes dljob submit returns when the job is accepted",
        )


def _runner(manifest: DLJobManifest) -> type[Runner]:
    """Return the runner for the job's backend."""
    from dljob.cli.runner import Runner
    from dljob.runtime.backend.interface import chosen

    asked = manifest.spec.backend
    if chosen(None, asked.name if asked else None) != "yr":
        return Runner
    from dljob.cli import extensions

    return extensions.load(extensions.RUNNERS, "yr", "the backend yr")
