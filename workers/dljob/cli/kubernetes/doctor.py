"""`dljob doctor`: what a job needs, looked at in turn, each with its fix. The reading of answers is pure."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dljob.api.kubernetes import connect as way
from dljob.api.kubernetes.jobs import items, part
from dljob.cli.where import Where
from dljob.errors import DLJobError, UnreachableError

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]
State = Literal["ok", "warn", "fail", "skip"]

WITHIN_S = 20.0
"""A cluster that has not answered a check by then counts as silent."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    check: str
    state: State
    message: str
    fix: str = ""


Check = Callable[["Kube", str], Awaitable[Finding]]


def healthy(findings: Iterable[Finding]) -> bool:
    """Whether nothing failed; warnings do not count."""
    return all(finding.state != "fail" for finding in findings)


def lines(findings: Sequence[Finding]) -> list[str]:
    """One line a finding, its fix below it."""
    width = max(len(finding.check) for finding in findings)
    made: list[str] = []
    for one in findings:
        made.append(f"{one.state:<4}  {one.check.ljust(width)}  {one.message}")
        if one.fix:
            made.append(f"      {' ' * width}  -> {one.fix}")
    return made


def data(findings: Sequence[Finding]) -> list[Json]:
    """For scripts."""
    return [asdict(finding) for finding in findings]


def here() -> list[Finding]:
    """This machine: what a job on it, or a script that talks to one, needs."""
    made = [Finding("dljob", "ok", f"{_installed('dljob')} on Python {platform.python_version()}")]
    for package, extra, what in (
        ("ray", "runtime", "dljob run on this machine"),
        ("torch", "torch", "Elastic roles here"),
    ):
        version = _installed(package)
        fix = f"pip install 'dljob[{extra}]', if you want {what}"
        made.append(_package(package, version) if version else Finding(package, "skip", "not installed", fix))
    return made


def _package(package: str, version: str) -> Finding:
    """A package that is installed, and whether each process compiles it again as it starts: torch, for seconds."""
    found = importlib.util.find_spec(package)
    folder = Path(found.origin).parent if found and found.origin else None
    if folder is None or Path(importlib.util.cache_from_source(str(folder / "__init__.py"))).exists():
        return Finding(package, "ok", version)
    if not sys.dont_write_bytecode and os.access(folder, os.W_OK):
        return Finding(package, "ok", version)  # the first import does it
    said = "PYTHONDONTWRITEBYTECODE is set" if sys.dont_write_bytecode else "its folder cannot be written to"
    message = f"{version}, compiled anew in each process that starts: {said}"
    return Finding(package, "warn", message, shlex.join([sys.executable, "-m", "compileall", "-q", str(folder)]))


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def has_cluster() -> bool:
    """Whether there is something that names a cluster: a kubeconfig, or the service account of a pod."""
    files = (os.environ.get("KUBECONFIG") or "~/.kube/config").split(os.pathsep)
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) or any(Path(f).expanduser().is_file() for f in files if f)


async def examine(where: Where) -> list[Finding]:
    """The cluster, and what of it this user may use."""
    from dljob.cli.kubernetes import checks

    try:
        kube = await way.connect(where.context)
    except UnreachableError as error:
        return [Finding("kubeconfig", "fail", error.message, "see kubectl config get-contexts; or set KUBECONFIG")]
    except DLJobError as error:
        return [Finding("kubernetes", "fail", error.message, way.EXTRA)]
    try:
        namespace = where.namespace or kube.namespace
        first = await _checked("cluster", checks.cluster, kube, namespace)
        if first.state == "fail":
            return [first]
        rest = [_checked(name, check, kube, namespace) for name, check in checks.CHECKS]
        return [first, *await asyncio.gather(*rest)]
    finally:
        await kube.close()


async def _checked(name: str, check: Check, kube: Kube, namespace: str) -> Finding:
    """A check's finding, also when it may not look, or gets no answer."""
    try:
        return await asyncio.wait_for(check(kube, namespace), WITHIN_S)
    except TimeoutError:
        return Finding(name, "fail", f"no answer within {WITHIN_S:g} s", "is the API server there?")
    except UnreachableError as error:
        if getattr(error, "status", 0) == 403:
            return Finding(name, "skip", f"this user may not look: {error.message.partition(': User')[0]}")
        return Finding(name, "fail", error.message, error.hint or "kubectl get --raw '/readyz?verbose'")


# -- reading answers


def version_of(image: str) -> str:
    """The version in an image's tag, without a leading v; empty when it has none."""
    tag = image.rsplit("/", 1)[-1].partition("@")[0].partition(":")[2]
    return tag.removeprefix("v")


def deployment(check: str, found: Sequence[Mapping[str, Any]], missing: Finding) -> tuple[Finding, str]:
    """Whether a Deployment is there and ready, and its version."""
    if not found:
        return missing, ""
    one = max(found, key=lambda item: int(part(item, "status").get("readyReplicas") or 0))
    meta, spec = one["metadata"], part(one, "spec")
    ready, wanted = int(part(one, "status").get("readyReplicas") or 0), int(spec.get("replicas", 1))
    containers = items(part(part(spec, "template"), "spec"), "containers")
    labels = part(meta, "labels")
    version = str(labels.get("app.kubernetes.io/version") or version_of(str(containers[0]["image"]))).removeprefix("v")
    place = f"{meta['namespace']}/{meta['name']}"
    said = f"{version or 'version unknown'}, Deployment {place}, {ready}/{wanted} ready"
    if ready == 0:
        return Finding(
            check, "fail", said, f"kubectl describe deployment {meta['name']} -n {meta['namespace']}"
        ), version
    return Finding(check, "ok", said), version


def field_paths(schema: Mapping[str, Any], prefix: str = "") -> set[str]:
    """The fields of a structural schema: spec.roles[].name, ..."""
    paths: set[str] = set()
    for name, field in part(schema, "properties").items():
        path = f"{prefix}.{name}" if prefix else str(name)
        paths |= {path} | field_paths(field, path)
    if "items" in schema:
        paths |= field_paths(part(schema, "items"), f"{prefix}[]")
    return paths


def crd_difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """How the cluster's CRD differs from ours, in words; empty when it has the same fields under spec."""
    mine, other = _spec_fields(ours), _spec_fields(theirs)
    lacks, more = sorted(mine - other), sorted(other - mine)
    said = [f"lacks {_some(lacks)}"] if lacks else []
    said += [f"has {_some(more)}, which this dljob does not know"] if more else []
    return "; ".join(said)


def _spec_fields(crd: Mapping[str, Any]) -> set[str]:
    versions: list[Json] = [v for v in items(part(crd, "spec"), "versions") if v.get("name") == "v1alpha1"]
    root = part(part(versions[0], "schema"), "openAPIV3Schema") if versions else {}
    return field_paths(part(part(root, "properties"), "spec"), "spec")


def _some(paths: Sequence[str]) -> str:
    top = [path for path in paths if path.rpartition(".")[0].removesuffix("[]") not in paths]
    return ", ".join(top[:4]) + (f" and {len(top) - 4} more" if len(top) > 4 else "")


def quota(found: Sequence[Mapping[str, Any]]) -> tuple[State, str]:
    """What of a namespace's quotas is used up or nearly so."""
    if not found:
        return "ok", "none"
    full: list[str] = []
    for one in found:
        status = part(one, "status")
        hard, used = part(status, "hard"), part(status, "used")
        full += [f"{key} {used[key]} of {hard[key]}" for key in sorted(hard) if key in used and used[key] == hard[key]]
    names = ", ".join(str(one["metadata"]["name"]) for one in found)
    return ("warn", f"{names}: used up: {', '.join(full)}") if full else ("ok", names)


_DEVICE = re.compile(r".+/.*(gpu|npu|ascend|tpu|gaudi|neuron).*", re.IGNORECASE)


def devices(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Nodes that take pods, and the devices they offer."""
    usable = [node for node in nodes if not part(node, "spec").get("unschedulable") and _ready(node)]
    total: dict[str, int] = {}
    for node in usable:
        for name, count in part(part(node, "status"), "allocatable").items():
            if _DEVICE.fullmatch(name) and str(count).isdecimal() and int(count):
                total[name] = total.get(name, 0) + int(count)
    said = ", ".join(f"{count} {name}" for name, count in sorted(total.items())) or "no GPUs or NPUs"
    return f"{len(usable)} of {len(nodes)} nodes take pods: {said}"


def _ready(node: Mapping[str, Any]) -> bool:
    conditions = items(part(node, "status"), "conditions")
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
