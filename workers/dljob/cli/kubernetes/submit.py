"""`dljob submit` and `dljob run` on a cluster: the folder and the DLJob go up; `run` stays to the end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dljob.api.kubernetes.refusals import Source
from dljob.api.kubernetes.submit import Submission, code_for, target_namespace
from dljob.api.kubernetes.submit import submit as make
from dljob.cli import output
from dljob.cli.given import folder_of, manifest_of
from dljob.cli.where import Where
from dljob.errors import ExitCode

if TYPE_CHECKING:
    from dljob.kube.api import Kube
    from dljob.spec.model import DLJobManifest

Json = dict[str, Any]
Form = Literal["name", "json", "yaml"]


@dataclass(frozen=True, slots=True)
class Given:
    """What is submitted."""

    manifest: DLJobManifest
    folder: Path
    upload: bool | None
    source: Source | None


def given(file: Path, *, upload: bool | None, name: str | None = None, backend: str | None = None) -> Given:
    """Read the file; what is wrong with the job is seen before any cluster is asked.

    Raises:
        SpecError, PlacementError: it is wrong.
    """
    from dljob.plan.plan import plan

    manifest = manifest_of(file, name=name, backend=backend)
    plan(manifest)
    return Given(
        manifest, folder_of(file, manifest), upload, Source.read(str(file), file.read_text(encoding="utf-8-sig"))
    )


async def send(kube: Kube, what: Given, where: Where) -> Submission:
    """Make the DLJob, and say so on stderr."""
    namespace = target_namespace(what.manifest, where.namespace, kube.namespace)
    package, word = await code_for(kube, what.manifest, namespace, what.folder, upload=what.upload)
    made = await make(kube, what.manifest, namespace, package, what.source)
    for note in (*made.notes, *([word] if word else [])):
        output.say(note)
    return made


def submit(what: Given, where: Where, form: Form, *, wait: bool) -> int:
    """Make the DLJob and print it; with `wait`, watch it to its end."""
    from dljob.api.kubernetes.connect import ask

    if wait:
        from dljob.cli.kubernetes.run import run

        return run(what, where, "yaml" if form == "yaml" else "json", stop_on_interrupt=False)

    async def asked(kube: Kube) -> Json:
        return (await send(kube, what, where)).body

    body = ask(asked, where.context)
    name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
    if form == "name":
        output.data(name)
    else:
        body["metadata"].pop("managedFields", None)
        output.structured(body, form)
    flags = where.flags(namespace)
    output.say(f"dljob status {name} {flags}, dljob logs {name} --follow {flags}, dljob stop {name} {flags}")
    return ExitCode.OK
