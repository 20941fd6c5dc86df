"""Place of a job that is submitted without a cluster: on a running Ray, or on an embedded one."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from dljob.api import handle as handles
from dljob.api.console import wait_and_show
from dljob.api.local import session
from dljob.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from dljob.api.handle import JobHandle
    from dljob.spec.model import DLJobManifest

log = logging.getLogger(__package__)


def submit_here(
    manifest: DLJobManifest,
    *,
    address: str | None,
    code_dir: Path,
    blocking: bool,
    detach: bool,
    replace: bool,
    resume: str | None = None,
) -> int | JobHandle:
    """Run a job for `DLJob.submit`: return its handle, or with `blocking` its exit code."""
    from dljob.runtime.backend.connect import reachable

    # 1. An explicit address, or a Ray that this process has joined or RAY_ADDRESS names; but within
    # `with dljob.local()` that block's Ray comes first.
    if address is not None or (not session.inside() and reachable(None)):
        if resume is not None:
            raise UsageError(
                "submit(resume=...) is for a job on a Ray of its own, and this one goes to a running Ray",
                hint="leave out the address and RAY_ADDRESS, or submit it in `with dljob.local():`",
            )
        handle = handles.submit(manifest, address=address, code_dir=code_dir, replace=replace)
        return _end(handle) if blocking else handle
    # 2. An embedded Ray. Check before it starts: that takes seconds.
    check_here(manifest, code_dir)
    ray = session.current()
    handle = handles.handle_of(ray.submit(manifest, code_dir=code_dir, keep=detach, replace=replace, resume=resume))
    if not blocking:
        return handle
    code = _end(handle)
    # The Ray of one job ends with it; a block's Ray stays for the next job.
    ray.wait_until_ended()
    return code


def check_here(manifest: DLJobManifest, code_dir: Path) -> None:
    """Check that a job can run on an embedded Ray.

    Raises:
        UsageError: the job is suspended, its resources are not chosen, its folder does not exist, or its backend runs
            elsewhere.
    """
    from dljob.runtime.backend.interface import chosen, entry_point_of

    handles.refuse_unchosen(manifest)
    handles.refuse_suspended(manifest)
    handles.check_code_dir(code_dir)
    asked = manifest.spec.backend
    name = chosen(None, asked.name if asked else None)
    # Raises for a backend that is not installed, before anything starts.
    entry_point_of(name)
    # The yr backend runs in the command's own process, without a session host.
    if name == "yr":
        raise UsageError(
            "a job with backend yr does not run on an embedded Ray", hint="write to_yaml(); dljob run FILE"
        )


def _end(handle: JobHandle) -> int:
    """Show the job until its end; its exit code. A job that failed says why on the logger `dljob.api`."""
    code = wait_and_show(handle)
    if code != ExitCode.OK:
        status = handle.status()
        log.error(
            "job %s: %s: %s: %s; journal and logs: %s",
            *(handle.name, status["phase"], status.get("reason"), status.get("message"), handle.dir),
        )
    return code
