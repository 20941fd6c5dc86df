"""`dljob submit`: start a job on a running Ray, or on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from dljob.cli import output
from dljob.cli.detach import Form, accepted, environment_of
from dljob.cli.job_file import UNCHANGED, Overrides, cluster_job, folder_of, manifest_of, with_resources
from dljob.cli.rank_output import EVERYTHING, Shown, selected
from dljob.cli.target import HERE, JobTarget
from dljob.errors import UsageError


def submit(
    file: Path,
    /,
    *,
    address: str | None = None,
    place: JobTarget = HERE,
    changes: Overrides = UNCHANGED,
    backend: str | None = None,
    upload: bool | None = None,
    replace: Annotated[bool, Parameter(negative="")] = False,
    wait: Annotated[bool, Parameter(negative="")] = False,
    quiet: Annotated[bool, Parameter(name=("--quiet", "-q"), negative="")] = False,
    roles: str | None = None,
    form: Annotated[Form | None, Parameter(name=("--output", "-o"))] = None,
) -> int:
    """Start a job on Kubernetes or on a running Ray, and return once it is accepted.

    Args:
        file: YAML or JSON file; its folder is the ranks' working directory, on every machine.
        address: HOST:PORT of Ray's GCS; the alternative is one of the next three.
        place: a cluster.
        changes: changes of the file.
        backend: distributed backend, instead of the file's and of DISTRIBUTED_BACKEND.
        upload: on Kubernetes: upload the folder, or do not, when the image has the code; default: upload it, unless the
            spec names a place of the code that exists.
        replace: stop a running job of the same name first; on Kubernetes, delete it.
        wait: watch the job to its end; Ctrl-C leaves it running.
        quiet: with --wait and --address: do not show the output of ranks.
        roles: with --wait and --address: show only the output of these roles: trainer,rollout.
        form: name, json or yaml; default: name on Kubernetes, else json.
    """
    if place.remote == (address is not None):
        raise UsageError(
            "submit to one place" if place.remote else "submit to which place?",
            hint="--address HOST:PORT of a Ray, or --kubernetes (or -n NAMESPACE, --context NAME); "
            "dljob run needs neither",
        )
    shown = selected(quiet=quiet, roles=roles)
    if shown != EVERYTHING and not (wait and address):
        raise UsageError("--quiet and --roles are for submit --wait --address")
    if address is None:
        from dljob.api.kubernetes.handle import submit_job
        from dljob.cli.kubernetes.run import run

        given_job = cluster_job(file, upload=upload, changes=changes, backend=backend, replace=replace)
        if wait:
            return run(given_job, place, "yaml" if form == "yaml" else "json", stop_on_interrupt=False)
        job = submit_job(given_job, namespace=place.namespace, context=place.context, say=output.say)
        # Without the bookkeeping of server-side apply, which hides the job from a reader.
        meta = {name: value for name, value in job.body["metadata"].items() if name != "managedFields"}
        return accepted(job, form or "name", {**job.body, "metadata": meta}, indent=2)
    if upload is not None:
        raise UsageError("--upload and --no-upload are for Kubernetes; a Ray reads the folder where it is")
    return _to_ray(file, address, changes, backend, form or "json", shown=shown, wait=wait, replace=replace)


def _to_ray(
    file: Path,
    address: str,
    changes: Overrides,
    backend: str | None,
    form: Form,
    *,
    shown: Shown,
    wait: bool,
    replace: bool,
) -> int:
    from dljob.api.handle import submit as start
    from dljob.cli import watch
    from dljob.cli.live import screen

    manifest = with_resources(manifest_of(file, changes=changes))
    shown.check(manifest)
    handle = start(manifest, address=address, code_dir=folder_of(file, manifest), backend=backend, replace=replace)
    if not wait:
        return accepted(handle, form, environment_of(handle.record))
    try:
        with screen(handle.name) as live_screen, shown.beside(live_screen, handle.dir):
            status = watch.watch(handle.connection, live_screen)
    except KeyboardInterrupt:
        # The job belongs to its Ray: only the watching ends.
        output.say(f"job {handle.name} goes on; dljob status {handle.name}, dljob stop {handle.name}")
        raise
    return watch.finish(handle, status, "yaml" if form == "yaml" else "json")
