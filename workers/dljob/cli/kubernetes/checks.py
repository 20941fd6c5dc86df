"""What `dljob doctor` asks a cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from dljob.api.kubernetes.refusals import INSTALL
from dljob.cli.kubernetes import doctor
from dljob.cli.kubernetes.doctor import Check, Finding

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]

RIGHTS = (
    ("create", "dljob.io", "dljobs", "submit"),
    ("get", "dljob.io", "dljobs", "status"),
    ("list", "dljob.io", "dljobs", "status"),
    ("watch", "dljob.io", "dljobs", "run"),
    ("patch", "dljob.io", "dljobs", "restart and stop"),
    ("create", "", "configmaps", "upload code"),
    ("patch", "", "configmaps", "upload code"),
    ("get", "", "configmaps", "logs of ended jobs"),
    ("get", "", "secrets", "logs of running jobs"),
    ("get", "", "pods/proxy", "logs of running jobs"),
    ("get", "ray.io", "rayclusters", "logs of jobs on a RayCluster that was there"),
    ("list", "events.k8s.io", "events", "events"),
)
"""(verb, group, resource, what for)."""
KUBERAY_NEEDED = (1, 6)
_KUBERAY_FIX = "install KubeRay 1.6 or newer: its chart kuberay-operator"
_CRD_FIX = "apply the CRDs of KubeRay 1.6 or newer: helm upgrade leaves those of its chart as they are"
_KUBERAY_LABEL = "app.kubernetes.io/name=kuberay-operator"
_OPERATOR_LABEL = "app.kubernetes.io/name=dljob,app.kubernetes.io/component=operator"


async def cluster(kube: Kube, namespace: str) -> Finding:
    """Whether the API server answers, and takes us."""
    version = await kube.call("GET", "/version")
    who = await _who(kube)
    return Finding(
        "cluster", "ok", f"Kubernetes {version.get('gitVersion')} at {kube.transport.server}, as {who}, in {namespace}"
    )


async def _who(kube: Kube) -> str:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = await kube.call("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body)
    return str(answer.get("status", {}).get("userInfo", {}).get("username") or "unknown")


async def rights(kube: Kube, namespace: str) -> Finding:
    """What the user may do in the namespace."""
    allowed = await asyncio.gather(*(_may(kube, namespace, *right[:3]) for right in RIGHTS))
    missing = [right for right, yes in zip(RIGHTS, allowed, strict=True) if not yes]
    if not missing:
        return Finding("rights", "ok", f"submit, status, logs, events, restart and stop in namespace {namespace}")
    listed = ", ".join(f"{verb} {resource} ({what})" for verb, _, resource, what in missing)
    fix = f"ask for them: a RoleBinding in {namespace} to the ClusterRole edit has them all"
    return Finding("rights", "fail", f"in namespace {namespace} not: {listed}", fix)


async def _may(kube: Kube, namespace: str, verb: str, group: str, resource: str) -> bool:
    plural, _, sub = resource.partition("/")
    asked = {"namespace": namespace, "verb": verb, "group": group, "resource": plural, "subresource": sub}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    answer = await kube.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    return bool(answer.get("status", {}).get("allowed"))


async def crd(kube: Kube, _namespace: str) -> Finding:
    """Whether DLJobs are served, with the fields that this dljob knows."""
    from dljob.kube.api import CRDS, ApiError, NotThereError
    from dljob.spec.crd import crd as ours

    if not await _served(kube, "/apis/dljob.io/v1alpha1"):
        return Finding("DLJob CRD", "fail", "this cluster serves no DLJobs", INSTALL)
    try:
        theirs = await kube.get(CRDS, "dljobs.dljob.io")
    except NotThereError:
        return Finding("DLJob CRD", "fail", "this cluster serves no DLJobs", INSTALL)
    except ApiError as error:
        if error.status == 403:
            return Finding("DLJob CRD", "ok", "v1alpha1 is served; this user may not read its fields")
        raise
    different = doctor.crd_difference(ours(), theirs)
    version = str(theirs["metadata"].get("labels", {}).get("app.kubernetes.io/version") or "")
    said = f"v1alpha1{f', of dljob {version}' if version else ''}"
    if different:
        fix = "bring both to one version: helm upgrade the chart, or pip install the cluster's dljob"
        return Finding("DLJob CRD", "warn", f"{said} is not what this dljob knows: it {different}", fix)
    return Finding("DLJob CRD", "ok", f"{said}, the same fields as here")


async def _served(kube: Kube, path: str) -> bool:
    from dljob.kube.api import NotThereError

    try:
        await kube.call("GET", path)
    except NotThereError:
        return False
    return True


async def kuberay(kube: Kube, _namespace: str) -> Finding:
    """Whether RayClusters are served, with what we put into them, and KubeRay's operator runs."""
    from dljob.kube.api import DEPLOYMENTS
    from dljob.kube.kuberay_client import RayClusters

    trouble = await RayClusters(kube).trouble()
    if trouble == "missing":
        return Finding("KubeRay", "fail", "this cluster serves no RayClusters", _KUBERAY_FIX)
    if trouble == "old":
        return Finding("KubeRay", "fail", "the CRD of RayClusters is too old: fields are missing in it", _CRD_FIX)
    found = await kube.list(DEPLOYMENTS, None, labels=_KUBERAY_LABEL)
    found = found or await kube.list(DEPLOYMENTS, None, fields="metadata.name=kuberay-operator")  # not by its chart
    missing = Finding("KubeRay", "warn", "RayClusters are served; no Deployment of its operator is seen", _KUBERAY_FIX)
    finding, version = doctor.deployment("KubeRay", found, missing)
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if finding.state == "ok" and len(numbers) == 2 and numbers < KUBERAY_NEEDED:
        return Finding("KubeRay", "fail", f"{finding.message}: too old", _KUBERAY_FIX)
    return finding


async def operator(kube: Kube, _namespace: str) -> Finding:
    """Whether our own operator runs, in the version of this command."""
    from dljob.kube.api import DEPLOYMENTS

    found = await kube.list(DEPLOYMENTS, None, labels=_OPERATOR_LABEL)
    missing = Finding("operator", "fail", "no Deployment of the dljob operator is seen", INSTALL)
    finding, version = doctor.deployment("operator", found, missing)
    own = doctor.here()[0].message.split()[0]
    if finding.state == "ok" and version and version != own:
        fix = f"pip install dljob=={version}, or helm upgrade the chart"
        return Finding("operator", "warn", f"{finding.message}; this dljob is {own}", fix)
    return finding


async def quota(kube: Kube, namespace: str) -> Finding:
    """The quotas of the namespace."""
    found = await kube.call("GET", f"/api/v1/namespaces/{namespace}/resourcequotas")
    state, said = doctor.quota(found.get("items") or [])
    fix = f"kubectl describe quota -n {namespace}" if state == "warn" else ""
    return Finding("quota", state, f"in namespace {namespace}: {said}", fix)


async def nodes(kube: Kube, _namespace: str) -> Finding:
    """The machines and their devices."""
    from dljob.kube.api import NODES

    found = await kube.list(NODES)
    said = doctor.devices(found)
    if said.startswith("0 "):
        return Finding("nodes", "fail", said, "kubectl get nodes")
    return Finding("nodes", "ok", said)


CHECKS: tuple[tuple[str, Check], ...] = (
    ("rights", rights),
    ("DLJob CRD", crd),
    ("KubeRay", kuberay),
    ("operator", operator),
    ("quota", quota),
    ("nodes", nodes),
)
