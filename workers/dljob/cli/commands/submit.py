"""`dljob submit`: a job on a Ray that runs already, or on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from dljob.cli import output
from dljob.cli.where import HERE, Where
from dljob.errors import ExitCode, UsageError

Form = Literal["name", "json", "yaml"]


def submit(
    file: Path,
    /,
    *,
    address: str | None = None,
    where: Where = HERE,
    name: str | None = None,
    backend: str | None = None,
    upload: bool | None = None,
    wait: Annotated[bool, Parameter(negative="")] = False,
    form: Annotated[Form | None, Parameter(name=("--output", "-o"))] = None,
) -> int:
    """Start a job on Kubernetes, or on a Ray that runs already, and return when it is in hand there.

    Args:
        file: YAML or JSON file; its folder is the working directory of the ranks, on every machine.
        address: HOST:PORT of Ray's GCS; or else one of the next three.
        where: on which side.
        name: name of the job, over that of the file.
        backend: distributed backend, over that of the file and of DISTRIBUTED_BACKEND.
        upload: on Kubernetes: send the folder along, or do not, since the image has the code; left out: send it, unless
            the spec says where the code is, and it is there.
        wait: watch the job to its end; Ctrl-C leaves it running.
        form: what is printed: name, json or yaml; left out: the name on Kubernetes, else json.
    """
    if where.remote == (address is not None):
        raise UsageError(
            "submit to one place" if where.remote else "submit to which place?",
            hint="--address HOST:PORT of a Ray, or --kubernetes (or -n NAMESPACE, --context NAME); "
            "dljob run needs neither",
        )
    if address is None:
        from dljob.cli.kubernetes.submit import given
        from dljob.cli.kubernetes.submit import submit as remote

        what = given(file, upload=upload, name=name, backend=backend)
        return remote(what, where, form or "name", wait=wait)
    if upload is not None:
        raise UsageError("--upload and --no-upload are for Kubernetes; a Ray reads the folder where it is")
    return _to_ray(file, address, name, backend, form or "json", wait=wait)


def _to_ray(file: Path, address: str, name: str | None, backend: str | None, form: Form, *, wait: bool) -> int:
    from dljob.api.handle import submit as start
    from dljob.cli import watch
    from dljob.cli.given import folder_of, manifest_of
    from dljob.cli.live import screen

    manifest = manifest_of(file, name=name)
    handle = start(manifest, address=address, code_dir=folder_of(file, manifest), backend=backend)
    if not wait:
        if form == "name":
            output.data(handle.name)
        else:
            output.structured({"name": handle.name, "uid": handle.uid, "dir": str(handle.dir)}, form, indent=None)
        output.say(f"dljob status {handle.name}, dljob logs {handle.name} --follow, dljob stop {handle.name}")
        return ExitCode.OK
    try:
        with screen(handle.name) as shown:
            status = watch.watch(handle.connection, shown)
    except KeyboardInterrupt:
        output.say(f"job {handle.name} goes on; dljob status {handle.name}, dljob stop {handle.name}")
        raise
    return watch.finish(handle, status, "yaml" if form == "yaml" else "json")
