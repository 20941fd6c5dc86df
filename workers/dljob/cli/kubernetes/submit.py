"""`dljob submit` and `dljob run` on a cluster: upload of the folder, and the DLJob; `run` watches it to the end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dljob.api.kubernetes import jobs
from dljob.api.kubernetes.refusals import JobFile
from dljob.api.kubernetes.submit import Submission, code_for, target_namespace
from dljob.api.kubernetes.submit import submit as make
from dljob.cli import output
from dljob.cli.given import UNCHANGED, Overrides, folder_of, manifest_of
from dljob.cli.where import JobTarget
from dljob.errors import ExitCode

if TYPE_CHECKING:
    from dljob.kube.api import Kube
    from dljob.spec.model import DLJobManifest

Json = dict[str, Any]
Form = Literal["name", "json", "yaml"]


@dataclass(frozen=True, slots=True)
class Given:
    """A job to be submitted."""

    manifest: DLJobManifest
    folder: Path
    upload: bool | None
    source: JobFile | None
    replace: bool = False


def given(
    file: Path,
    *,
    upload: bool | None,
    changes: Overrides = UNCHANGED,
    backend: str | None = None,
    replace: bool = False,
) -> Given:
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
    return Given(manifest, folder_of(file, manifest), upload, source, replace)


async def send(kube: Kube, what: Given, where: JobTarget) -> Submission:
    """Create the DLJob, and report that on stderr."""
    namespace = target_namespace(what.manifest, where.namespace, kube.namespace)
    if what.replace:
        # Waits until the finalizers are done: the name is free only then.
        await jobs.remove(kube, what.manifest.metadata.name, namespace)
    package, word = await code_for(kube, what.manifest, namespace, what.folder, upload=what.upload)
    made = await make(kube, what.manifest, namespace, package, what.source)
    for note in (*made.notes, *([word] if word else [])):
        output.say(note)
    return made


def submit(what: Given, where: JobTarget, form: Form) -> int:
    """Create the DLJob and print it."""
    from dljob.api.kubernetes.connect import ask

    async def asked(kube: Kube) -> Json:
        return (await send(kube, what, where)).body

    body = ask(asked, where.context)
    name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
    if form == "name":
        output.data(name)
    else:
        # Bookkeeping of server-side apply, which hides the job from a reader.
        body["metadata"].pop("managedFields", None)
        output.structured(body, form)
    flags = where.flags(namespace)
    output.say(f"dljob status {name} {flags}, dljob logs {name} --follow {flags}, dljob stop {name} {flags}")
    return ExitCode.OK
