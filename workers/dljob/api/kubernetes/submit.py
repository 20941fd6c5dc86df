"""A job onto Kubernetes: its code as a ConfigMap first, then the DLJob, then the one owned by the other."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dljob.api.kubernetes.jobs import phase_of
from dljob.api.kubernetes.package import Package, pack, size
from dljob.api.kubernetes.refusals import Source, refusal
from dljob.control import names
from dljob.errors import DLJobError, NotFoundError, UsageError
from dljob.plan.pods import ARCHIVE
from dljob.runtime.backend import ENVIRONMENT, chosen

if TYPE_CHECKING:
    from dljob.kube.api import Kube
    from dljob.spec.model import DLJobManifest

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Submission:
    """What was made."""

    body: Json
    """The DLJob as the server keeps it."""
    code: str = ""
    """The ConfigMap with the code; empty when none was uploaded."""
    notes: tuple[str, ...] = field(default=())
    """What the user should know of the upload."""


async def code_for(
    kube: Kube, manifest: DLJobManifest, namespace: str, folder: Path, *, upload: bool | None
) -> tuple[Package | None, str]:
    """The code to send along, and a word about it.

    Args:
        kube: the cluster.
        manifest: the job.
        namespace: where it goes.
        folder: its code, as this machine has it.
        upload: whether to send it; None: unless the spec says where the code is, and it is there.

    Raises:
        UsageError: the folder is not there, holds nothing, or is too large.
    """
    named = manifest.spec.code.config_map
    if upload is False:
        return None, ""
    if upload is None and "working_dir" in (manifest.spec.runtime_env or {}):
        return None, "code: as spec.runtimeEnv.working_dir says"
    ref = manifest.spec.ray_cluster_ref
    if upload is None and ref:
        return None, f"code: that of RayCluster {ref.name}, whose pods mount nothing; else set runtimeEnv.working_dir"
    if upload is None and named and await _is_there(kube, named, namespace):
        return None, f"code: ConfigMap {named}, as spec.code.configMap says; --upload sends {folder} instead"
    package = pack(folder)
    instead = f", in place of ConfigMap {named}{'' if upload else ', which is not there'}" if named else ""
    what = f"{len(package.files)} file{'s' if len(package.files) > 1 else ''}, {size(len(package.archive))}"
    return package, f"code: {what} of {folder}, in ConfigMap {code_name(manifest.metadata.name, package)}{instead}"


async def _is_there(kube: Kube, name: str, namespace: str) -> bool:
    """Whether a ConfigMap is there; one that may not be read is taken to be."""
    from dljob.kube.api import CONFIG_MAPS, ApiError, NotThereError

    try:
        await kube.get(CONFIG_MAPS, name, namespace)
    except NotThereError:
        return False
    except ApiError as error:
        if error.status != 403:
            raise
    return True


def body_of(manifest: DLJobManifest, namespace: str, code: str = "") -> Json:
    """The DLJob as it is sent: what is at its default is left to the server; `code` is the uploaded ConfigMap."""
    data = manifest.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    data["metadata"] = {**data["metadata"], "namespace": namespace}
    if code:
        data["spec"]["code"] = {"configMap": code}
    return {"apiVersion": manifest.api_version, "kind": manifest.kind, **data}


def code_name(job: str, package: Package) -> str:
    """The ConfigMap of a job's code."""
    return f"{job}-code-{package.digest}"


def code_map(job: str, namespace: str, package: Package, owner: Json | None = None) -> Json:
    """The ConfigMap with an archive; with `owner`, it goes when that DLJob goes."""
    metadata: Json = {
        "name": code_name(job, package),
        "namespace": namespace,
        "labels": {names.LABEL_NAME: job, names.LABEL_MANAGED: "dljob"},
    }
    if owner is not None:
        metadata["ownerReferences"] = [owner_of(owner)]
    data = {ARCHIVE: base64.b64encode(package.archive).decode()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True, "binaryData": data}


def owner_of(job: Json) -> Json:
    """The reference by which a child of a DLJob goes with it. Not the controller: that is the operator's to say."""
    meta = job["metadata"]
    return {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": meta["name"], "uid": meta["uid"]}


def target_namespace(manifest: DLJobManifest, asked: str | None, current: str) -> str:
    """Where a job goes: what was asked for, else what its file says, else the current namespace.

    Raises:
        UsageError: the file says another one than was asked for.
    """
    said = manifest.metadata.namespace
    if asked and said and asked != said:
        raise UsageError(
            f"the file says metadata.namespace {said}, the command says {asked}", hint="leave one of them out"
        )
    return asked or said or current


async def submit(
    kube: Kube, manifest: DLJobManifest, namespace: str, package: Package | None, source: Source | None = None
) -> Submission:
    """Make the DLJob, with its code when there is a package.

    Args:
        kube: the cluster.
        manifest: the job.
        namespace: where it goes.
        package: its code; None: the image, or the spec, has it.
        source: the file it was read from, for the places in refusals.

    Raises:
        SpecError: the server refused the spec, in the server's words.
        ApiError: any other refusal, or the server is not reached.
    """
    job = manifest.metadata.name
    await _refuse_namesake(kube, job, namespace)
    made = package is not None and await _upload(kube, code_map(job, namespace, package))
    code = code_name(job, package) if package else ""
    try:
        asked = _with_backend(body_of(manifest, namespace, code), os.environ)
        body = await _create(kube, asked, namespace, source)
    except DLJobError:
        if made:
            await _take_back(kube, code, namespace)
        raise
    if package is not None:
        await _own(kube, body, package, namespace)
    return Submission(body, code, _notes(package))


def _with_backend(body: Json, environ: Mapping[str, str]) -> Json:
    """With the backend that this environment asks for, which is not where the job goes; the spec's own comes first."""
    if environ.get(ENVIRONMENT, "").strip():
        body["spec"].setdefault("backend", {"name": chosen(None, None, environ)})
    return body


async def _refuse_namesake(kube: Kube, job: str, namespace: str) -> None:
    """Before anything is uploaded for a job that cannot be made."""
    from dljob.kube.api import DLJOBS, NotThereError

    try:
        there = await kube.get(DLJOBS, job, namespace)
    except NotThereError:
        return
    raise namesake(job, namespace, phase_of(there))


def namesake(job: str, namespace: str, phase: str = "") -> UsageError:
    """The name is taken."""
    hint = f"take another with --name, or remove it: kubectl delete dljob {job} -n {namespace}"
    return UsageError(f"there is a job {job} in namespace {namespace}{f', {phase}' if phase else ''}", hint=hint)


async def _upload(kube: Kube, body: Json) -> bool:
    """Make the ConfigMap; False when one with the same content was there."""
    from dljob.kube.api import CONFIG_MAPS, ApiError, NotThereError

    try:
        await kube.create(CONFIG_MAPS, body, body["metadata"]["namespace"])
    except NotThereError as error:
        raise _no_namespace(error.message, body["metadata"]["namespace"]) from error
    except ApiError as error:
        if error.reason == "AlreadyExists":
            return False
        raise
    return True


def _no_namespace(message: str, namespace: str) -> NotFoundError:
    return NotFoundError(message, hint=f"kubectl create namespace {namespace}, or take another with -n")


async def _create(kube: Kube, body: Json, namespace: str, source: Source | None) -> Json:
    """POST the DLJob; unknown fields are refused, not dropped."""
    from dljob.kube.api import DLJOBS

    query = {"fieldValidation": "Strict", "fieldManager": kube.manager}
    reply = await kube.transport.request("POST", DLJOBS.path(namespace), body, query=query)
    if reply.status < 400:
        return cast("Json", reply.json())
    raise refusal(reply.status, reply.body, body["metadata"]["name"], namespace, source)


async def _take_back(kube: Kube, name: str, namespace: str) -> None:
    """Remove the ConfigMap that was made for a job that was refused, unless another job took it meanwhile."""
    from dljob.kube.api import CONFIG_MAPS, ApiError

    try:
        there = await kube.get(CONFIG_MAPS, name, namespace)
        if not there["metadata"].get("ownerReferences"):
            await kube.delete(CONFIG_MAPS, name, namespace, uid=there["metadata"]["uid"])
    except ApiError:
        return  # the refusal itself is what the user must hear


async def _own(kube: Kube, job: Json, package: Package, namespace: str) -> None:
    """Let the code go with the job. One left by a job of that name that is being collected is made anew."""
    from dljob.kube.api import CONFIG_MAPS, NotThereError

    name = code_name(job["metadata"]["name"], package)
    try:
        await kube.patch(CONFIG_MAPS, name, namespace, {"metadata": {"ownerReferences": [owner_of(job)]}})
    except NotThereError:
        await kube.create(CONFIG_MAPS, code_map(job["metadata"]["name"], namespace, package, job), namespace)


def _notes(package: Package | None) -> tuple[str, ...]:
    if package is None or not package.links:
        return ()
    return (f"left out, links that lead out of the folder or to folders: {', '.join(package.links)}",)
