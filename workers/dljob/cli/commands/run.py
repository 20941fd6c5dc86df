"""`dljob run`: a job watched to its end, on a Ray of its own or on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from dljob.cli import output
from dljob.cli.where import HERE, Where
from dljob.errors import UsageError


def run(
    file: Path,
    /,
    *,
    where: Where = HERE,
    faults: Path | None = None,
    pretend: Annotated[tuple[str, ...], Parameter(negative="", show_default=False)] = (),
    upload: bool | None = None,
    stop_on_interrupt: Annotated[bool, Parameter(negative="")] = False,
    form: Annotated[output.DataFormat, Parameter(name=("--output", "-o"))] = "json",
) -> int:
    """Run a job and watch it to its end: on this machine, or on Kubernetes.

    Here, a Ray is started for it and gone with it: one raylet for each machine of the plan, at most 8. The file's
    folder is the working directory of the ranks and on their path, and Ctrl-C stops the job. On Kubernetes the folder
    goes along, the ranks' lines are shown, and after Ctrl-C the job goes on; a second one stops it. The last line on
    stdout is JSON: seconds and restarts, with the job's result here, with its phase and last step on Kubernetes.

    Args:
        file: YAML or JSON file.
        where: on which side.
        faults: here: a file of faults to do to it, such as - {when: {step: 15}, target: rollout/1, fault: kill}; exits
            with 1 when the job says of one something else than the file expects.
        pretend: here: devices that every raylet declares though this machine has none, such as NPU=8; may be repeated.
        upload: on Kubernetes: send the folder along, or do not, since the image has the code; left out: send it, unless
            the spec says where the code is, and it is there.
        stop_on_interrupt: on Kubernetes: the first Ctrl-C stops the job.
        form: json or yaml, of the result.
    """
    if where.remote:
        if faults is not None or pretend:
            raise UsageError("--faults and --pretend are for a run on this machine")
        from dljob.cli.kubernetes.run import run as remote
        from dljob.cli.kubernetes.submit import given

        return remote(given(file, upload=upload), where, form, stop_on_interrupt=stop_on_interrupt)
    if stop_on_interrupt or upload is not None:
        raise UsageError(
            "--stop-on-interrupt, --upload and --no-upload are for a run on Kubernetes", hint="add --kubernetes"
        )
    from dljob.cli.given import folder_of, manifest_of
    from dljob.cli.runner import Runner
    from dljob.runtime.backend import chosen

    manifest = manifest_of(file)
    asked = manifest.spec.backend
    if chosen(None, asked.name if asked else None) == "yr":
        from dljob.cli.yr_runner import YrRunner as Runner
    return Runner(manifest, folder_of(file, manifest), faults=faults, pretend=pretend, form=form).run()
