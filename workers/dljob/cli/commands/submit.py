"""`dljob submit`: a job on a Ray that runs already."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from dljob.cli import output
from dljob.errors import ExitCode


def submit(
    file: Path,
    /,
    *,
    address: str,
    name: str | None = None,
    backend: str | None = None,
    wait: Annotated[bool, Parameter(negative="")] = False,
    form: Annotated[output.DataFormat, Parameter(name=("--output", "-o"))] = "json",
) -> int:
    """Start a job on a Ray that runs already, and return when its PrimeMaster has it in hand.

    Args:
        file: YAML or JSON file; its folder is the working directory of the ranks, on every machine.
        address: HOST:PORT of Ray's GCS.
        name: name of the job, over that of the file.
        backend: distributed backend, over that of the file and of DISTRIBUTED_BACKEND.
        wait: watch the job to its end; Ctrl-C leaves it running.
        form: json or yaml, of what is printed.
    """
    from dljob.api.handle import submit as start
    from dljob.cli import watch
    from dljob.cli.live import screen
    from dljob.spec.load import load_file

    manifest = load_file(file)
    if name is not None:
        from dljob.spec.load import parse

        renamed = manifest.model_dump(mode="json", by_alias=True, exclude_none=True)
        manifest = parse({**renamed, "metadata": {**renamed["metadata"], "name": name}})
    folder = file.resolve().parent / (manifest.spec.code.working_dir or "")
    handle = start(manifest, address=address, code_dir=folder, backend=backend)
    if not wait:
        output.structured({"name": handle.name, "uid": handle.uid, "dir": str(handle.dir)}, form, indent=None)
        output.say(f"dljob status {handle.name}, dljob logs {handle.name} --follow, dljob stop {handle.name}")
        return ExitCode.OK
    try:
        with screen(handle.name) as shown:
            status = watch.watch(handle.connection, shown)
    except KeyboardInterrupt:
        output.say(f"job {handle.name} goes on; dljob status {handle.name}, dljob stop {handle.name}")
        raise
    return watch.finish(handle, status, form)
