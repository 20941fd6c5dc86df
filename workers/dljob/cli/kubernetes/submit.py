"""`dljob submit` and `dljob run` on a cluster: upload of the folder, and the DLJob; `run` watches it to the end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dljob.api.kubernetes.connect import ask
from dljob.api.kubernetes.handle import KubernetesJob
from dljob.api.kubernetes.refusals import JobFile
from dljob.api.kubernetes.submit import GivenJob, send
from dljob.cli import output
from dljob.cli.given import UNCHANGED, Overrides, folder_of, manifest_of
from dljob.cli.where import JobTarget

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]


def given(
    file: Path,
    *,
    upload: bool | None,
    changes: Overrides = UNCHANGED,
    backend: str | None = None,
    replace: bool = False,
) -> GivenJob:
    """Read the file, and find its problems before any cluster is asked.

    Raises:
        SpecError, PlacementError: the job is wrong.
    """
    from dljob.plan.plan import plan

    manifest = manifest_of(file, changes=changes, backend=backend)
    # Only for its errors: the operator plans for itself.
    plan(manifest)
    # -sig: editors on Windows begin a file with a byte-order mark.
    source = JobFile.read(str(file), file.read_text(encoding="utf-8-sig"))
    return GivenJob(manifest, folder_of(file, manifest), upload, source, replace)


def submit(what: GivenJob, where: JobTarget) -> KubernetesJob:
    """Create the DLJob, with remarks about its code on stderr, and return its handle."""

    async def asked(kube: Kube) -> Json:
        return await create(kube, what, where)

    return KubernetesJob(ask(asked, where.context), where.context)


async def create(kube: Kube, what: GivenJob, where: JobTarget) -> Json:
    """Create the DLJob, with remarks about its code on stderr."""
    made = await send(kube, what, where.namespace)
    for note in made.notes:
        output.say(note)
    return made.body
