"""Submission to Kubernetes: first the code as a ConfigMap, then the DLJob, then the DLJob as the ConfigMap's owner."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dljob.api.kubernetes.jobs import find, phase_of, place_of, remove, status_of
from dljob.api.kubernetes.orders import check_resumable, order
from dljob.api.kubernetes.package import Package, pack, size
from dljob.api.kubernetes.refusals import JobFile, namesake, refusal
from dljob.errors import DLJobError, NotFoundError, UsageError
from dljob.raycluster.pods import ARCHIVE
from dljob.reconcile.state import names
from dljob.runtime.backend.interface import ENVIRONMENT, chosen
from dljob.telemetry.wording import counted

if TYPE_CHECKING:
    from dljob.kube.api import Kube
    from dljob.spec.model import DLJobManifest

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class GivenJob:
    """A job to be submitted."""

    manifest: DLJobManifest
    folder: Path
    """Its code on this machine."""
    upload: bool | None = None
    """Whether to upload the code; None: yes, unless the spec names a place of the code that exists."""
    source: JobFile | None = None
    """The file it was read from, so that refusals name lines in it."""
    replace: bool = False
    """Delete a job of that name first, and wait until it is gone."""
    resume: str | None = None
    """Go on with the ended job of that name, with this spec and code: the beginning of its uid; empty: whichever it is.
    """


async def send(
    kube: Kube, given_job: GivenJob, namespace: str | None = None, say: Callable[[str], object] = lambda _: None
) -> Json:
    """Create the DLJob of a job, or go on with it, with its code, and return it as the server stored it.

    Args:
        kube: the cluster.
        given_job: the job.
        namespace: the one asked for; by default that of the job's file, else the current one.
        say: receives remarks about the upload.

    Raises:
        UsageError: the namespace is not the file's; the code does not exist, is empty, or is too large; the job cannot
            go on.
        NotFoundError: there is no job to go on with.
        SpecError, ApiError: as from `submit`.
    """
    manifest = given_job.manifest
    place = target_namespace(manifest, namespace, kube.namespace)
    if given_job.resume is not None:
        return await _resume(kube, given_job, given_job.resume, place, say)
    if given_job.replace:
        # Waits until the finalizers are done: the name is free only then.
        await remove(kube, manifest.metadata.name, place)
    package, word = await code_for(kube, manifest, place, given_job.folder, upload=given_job.upload)
    job = await submit(kube, manifest, place, package, given_job.source)
    if package is not None and package.links:
        say(f"left out, links that lead out of the folder or to folders: {', '.join(package.links)}")
    if word:
        say(word)
    return job


async def _resume(kube: Kube, given_job: GivenJob, uid: str, namespace: str, say: Callable[[str], object]) -> Json:
    """Go on with an ended job, and return it with its next attempt."""
    from dljob.kube.api import DLJOBS

    manifest, name = given_job.manifest, given_job.manifest.metadata.name
    if given_job.replace:
        raise UsageError("--replace deletes the job that --resume goes on with", hint="leave out one of them")
    job = await find(kube, name, namespace)
    present_uid = job["metadata"]["uid"]
    if not present_uid.replace("-", "").startswith(uid.replace("-", "")):
        raise NotFoundError(f"no job {uid!r}: job {place_of(job)} has uid {present_uid}")
    check_resumable(job)
    package, word = await code_for(kube, manifest, namespace, given_job.folder, upload=given_job.upload)
    if package is not None and not await _upload(kube, code_map(name, namespace, package, job)):
        await _set_code_owner(kube, job, package, namespace)
    if word:
        say(word)
    body = _with_backend(body_of(manifest, namespace, code_name(name, package) if package else ""), os.environ)
    await order(kube, job, "resume", spec=body["spec"], say=say)
    resumed = await kube.get(DLJOBS, name, namespace)
    say(f"attempt {status_of(resumed).get('attempt')} of job {place_of(job)} goes on from its last checkpoint")
    return resumed


async def code_for(
    kube: Kube, manifest: DLJobManifest, namespace: str, folder: Path, *, upload: bool | None
) -> tuple[Package | None, str]:
    """Decide which code to upload, and describe it.

    Args:
        kube: the cluster.
        manifest: the job.
        namespace: the job's namespace.
        folder: its code on this machine.
        upload: whether to upload it; None: yes, unless the spec names a place of the code that exists.

    Raises:
        UsageError: the folder does not exist, is empty, or is too large.
    """
    # 1. what the user or the spec decides without a look at the cluster, 2. the ConfigMap named there, 3. the folder
    named = manifest.spec.code.config_map
    if upload is False:
        return None, ""
    if upload is None and "working_dir" in (manifest.spec.runtime_env or {}):
        return None, "code: as spec.runtimeEnv.working_dir says"
    ref = manifest.spec.ray_cluster_ref
    if upload is None and ref:
        return None, f"code: that of RayCluster {ref.name}, whose pods mount nothing; else set runtimeEnv.working_dir"
    # A file may name a ConfigMap for `kubectl apply` and be run from its folder too: the cluster decides.
    if upload is None and named and await _config_map_exists(kube, named, namespace):
        return None, f"code: ConfigMap {named}, as spec.code.configMap says; --upload sends {folder} instead"
    package = pack(folder)
    instead = f", in place of ConfigMap {named}{'' if upload else ', which is not there'}" if named else ""
    contents = f"{counted(len(package.files), 'file')}, {size(len(package.archive))}"
    return package, f"code: {contents} of {folder}, in ConfigMap {code_name(manifest.metadata.name, package)}{instead}"


async def _config_map_exists(kube: Kube, name: str, namespace: str) -> bool:
    """Whether a ConfigMap exists; one that this user may not read counts as existing."""
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
    """Return the DLJob to send, without values at their defaults: the server fills these in.

    Args:
        manifest: the job.
        namespace: its namespace.
        code: the uploaded ConfigMap; empty: none.
    """
    data = manifest.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    data["metadata"] = {**data["metadata"], "namespace": namespace}
    if code:
        data["spec"]["code"] = {"configMap": code}
    return {"apiVersion": manifest.api_version, "kind": manifest.kind, **data}


def code_name(job: str, package: Package) -> str:
    """Return the name of the ConfigMap with a job's code."""
    # With the digest of the code: ConfigMaps are immutable, and a second submission of the same code finds the first's.
    return f"{job}-code-{package.digest}"


def code_map(job: str, namespace: str, package: Package, owner: Json | None = None) -> Json:
    """Return the ConfigMap with an archive; with `owner`, Kubernetes deletes it with that DLJob."""
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
    """Return an owner reference to a DLJob, without `controller`: that one is the operator's to set."""
    meta = job["metadata"]
    return {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": meta["name"], "uid": meta["uid"]}


def target_namespace(manifest: DLJobManifest, asked: str | None, current: str) -> str:
    """Return the namespace of a job: the one asked for, else that of its file, else the current one.

    Raises:
        UsageError: the file names another one than was asked for.
    """
    declared = manifest.metadata.namespace
    if asked and declared and asked != declared:
        raise UsageError(
            f"the file says metadata.namespace {declared}, the command says {asked}", hint="leave one of them out"
        )
    return asked or declared or current


async def submit(
    kube: Kube, manifest: DLJobManifest, namespace: str, package: Package | None, source: JobFile | None = None
) -> Json:
    """Create the DLJob, and its code when there is a package; return the DLJob as the server stored it.

    Args:
        kube: the cluster.
        manifest: the job.
        namespace: the job's namespace.
        package: its code; None: the image or the spec has it.
        source: the file it was read from, so that refusals name lines in it.

    Raises:
        SpecError: the server refused the spec; the message is the server's.
        ApiError: the server refused for another reason, or cannot be reached.
    """
    job = manifest.metadata.name
    await _refuse_namesake(kube, job, namespace)
    # The code first: the operator may make the cluster as soon as the DLJob exists, and pods mount the ConfigMap.
    is_uploaded = package is not None and await _upload(kube, code_map(job, namespace, package))
    code = code_name(job, package) if package else ""
    try:
        # If this fails, the ConfigMap must go again, unless another submission has it by now.
        asked = _with_backend(body_of(manifest, namespace, code), os.environ)
        body = await _create(kube, asked, namespace, source)
    except DLJobError:
        if is_uploaded:
            await _delete_config_map(kube, code, namespace)
        raise
    if package is not None:
        # Only now is the owner's uid known.
        await _set_code_owner(kube, body, package, namespace)
    return body


def _with_backend(body: Json, environ: Mapping[str, str]) -> Json:
    """Add the backend that this environment names, which pods would not see; the spec's own comes first."""
    if environ.get(ENVIRONMENT, "").strip():
        body["spec"].setdefault("backend", {"name": chosen(None, None, environ)})
    return body


async def _refuse_namesake(kube: Kube, job: str, namespace: str) -> None:
    """Refuse a taken name before anything is uploaded."""
    from dljob.kube.api import DLJOBS, NotThereError

    try:
        namesake_body = await kube.get(DLJOBS, job, namespace)
    except NotThereError:
        return
    raise namesake(job, namespace, phase_of(namesake_body))


async def _upload(kube: Kube, body: Json) -> bool:
    """Create the ConfigMap; return False when one with the same content exists."""
    from dljob.kube.api import CONFIG_MAPS, ApiError, NotThereError

    try:
        await kube.create(CONFIG_MAPS, body, body["metadata"]["namespace"])
    except NotThereError as error:
        raise _no_namespace(error.message, body["metadata"]["namespace"]) from error
    except ApiError as error:
        # The name has the digest of the content, so the existing one holds the same code.
        if error.reason == "AlreadyExists":
            return False
        raise
    return True


def _no_namespace(message: str, namespace: str) -> NotFoundError:
    return NotFoundError(message, hint=f"kubectl create namespace {namespace}, or take another with -n")


async def _create(kube: Kube, body: Json, namespace: str, source: JobFile | None) -> Json:
    """Create the DLJob, strictly: the server refuses unknown fields instead of dropping them."""
    from dljob.kube.api import DLJOBS

    query = {"fieldValidation": "Strict", "fieldManager": kube.manager}
    reply = await kube.transport.request("POST", DLJOBS.path(namespace), body, query=query)
    if reply.status < 400:
        return cast("Json", reply.json())
    raise refusal(reply.status, reply.body, body["metadata"]["name"], namespace, source)


async def _delete_config_map(kube: Kube, name: str, namespace: str) -> None:
    """Delete the ConfigMap of a refused job, unless another job owns it by now."""
    from dljob.kube.api import CONFIG_MAPS, ApiError

    try:
        # `uid` below: one of the same name that was made since this look is left alone.
        config_map = await kube.get(CONFIG_MAPS, name, namespace)
        if not config_map["metadata"].get("ownerReferences"):
            await kube.delete(CONFIG_MAPS, name, namespace, uid=config_map["metadata"]["uid"])
    except ApiError:
        return  # the user must read the refusal, not this failure; at worst a ConfigMap stays


async def _set_code_owner(kube: Kube, job: Json, package: Package, namespace: str) -> None:
    """Make the DLJob the owner of its code."""
    from dljob.kube.api import CONFIG_MAPS, NotThereError

    name = code_name(job["metadata"]["name"], package)
    try:
        await kube.patch(CONFIG_MAPS, name, namespace, {"metadata": {"ownerReferences": [owner_of(job)]}})
    except NotThereError:
        # `_upload` found a ConfigMap of an earlier job of this name, which has been garbage-collected since.
        await kube.create(CONFIG_MAPS, code_map(job["metadata"]["name"], namespace, package, job), namespace)
