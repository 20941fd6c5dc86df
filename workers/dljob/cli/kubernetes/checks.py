"""Checks of a cluster for `dljob doctor`."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dljob.api.kubernetes import connect as way
from dljob.api.kubernetes.jobs import INSTALL
from dljob.cli.kubernetes import doctor
from dljob.cli.kubernetes.doctor import Check, CheckResult
from dljob.cli.target import JobTarget
from dljob.errors import DLJobError, UnreachableError

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
"""(verb, group, resource, purpose)."""
WITHIN_S = 20.0
"""Time limit of one check, in seconds."""
KUBERAY_NEEDED = (1, 6)
_KUBERAY_FIX = "install KubeRay 1.6 or newer: its chart kuberay-operator"
_CRD_FIX = "apply the CRDs of KubeRay 1.6 or newer: helm upgrade leaves those of its chart as they are"
_KUBERAY_LABEL = "app.kubernetes.io/name=kuberay-operator"
_OPERATOR_LABEL = "app.kubernetes.io/name=dljob,app.kubernetes.io/component=operator"


async def cluster(kube: Kube, namespace: str) -> CheckResult:
    """Check that the API server answers and accepts this user."""
    version = await kube.call("GET", "/version")
    user_name = await _user_name(kube)
    return CheckResult(
        "cluster",
        "ok",
        f"Kubernetes {version.get('gitVersion')} at {kube.transport.server}, as {user_name}, in {namespace}",
    )


async def _user_name(kube: Kube) -> str:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = await kube.call("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body)
    return str(answer.get("status", {}).get("userInfo", {}).get("username") or "unknown")


async def rights(kube: Kube, namespace: str) -> CheckResult:
    """Check the user's rights in the namespace."""
    # Access reviews, which every account may create, answer for rights without using them.
    allowed = await asyncio.gather(*(_may(kube, namespace, *right[:3]) for right in RIGHTS))
    missing = [right for right, yes in zip(RIGHTS, allowed, strict=True) if not yes]
    if not missing:
        return CheckResult("rights", "ok", f"submit, status, logs, events, restart and stop in namespace {namespace}")
    listed = ", ".join(f"{verb} {resource} ({purpose})" for verb, _, resource, purpose in missing)
    fix = f"ask for them: a RoleBinding in {namespace} to the ClusterRole edit has them all"
    return CheckResult("rights", "fail", f"in namespace {namespace} not: {listed}", fix)


async def _may(kube: Kube, namespace: str, verb: str, group: str, resource: str) -> bool:
    # A review names a subresource in a field of its own.
    plural, _, sub = resource.partition("/")
    asked = {"namespace": namespace, "verb": verb, "group": group, "resource": plural, "subresource": sub}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    answer = await kube.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    return bool(answer.get("status", {}).get("allowed"))


async def crd(kube: Kube, _namespace: str) -> CheckResult:
    """Check that DLJobs are served, with the fields of this dljob."""
    from dljob.kube.api import CRDS, ApiError, NotThereError
    from dljob.spec.crd import crd as ours

    # 1. discovery, which every account may read; 2. the CRD with its fields, which is for administrators
    if not await _served(kube, "/apis/dljob.io/v1alpha1"):
        return CheckResult("DLJob CRD", "fail", "this cluster serves no DLJobs", INSTALL)
    try:
        served_crd = await kube.get(CRDS, "dljobs.dljob.io")
    except NotThereError:
        return CheckResult("DLJob CRD", "fail", "this cluster serves no DLJobs", INSTALL)
    except ApiError as error:
        if error.status == 403:
            return CheckResult("DLJob CRD", "ok", "v1alpha1 is served; this user may not read its fields")
        raise
    different = doctor.crd_difference(ours(), served_crd)
    version = str(served_crd["metadata"].get("labels", {}).get("app.kubernetes.io/version") or "")
    version_text = f"v1alpha1{f', of dljob {version}' if version else ''}"
    if different:
        fix = "bring both to one version: helm upgrade the chart, or pip install the cluster's dljob"
        return CheckResult("DLJob CRD", "warn", f"{version_text} is not what this dljob knows: it {different}", fix)
    return CheckResult("DLJob CRD", "ok", f"{version_text}, the same fields as here")


async def _served(kube: Kube, path: str) -> bool:
    from dljob.kube.api import NotThereError

    try:
        await kube.call("GET", path)
    except NotThereError:
        return False
    return True


async def kuberay(kube: Kube, _namespace: str) -> CheckResult:
    """Check that RayClusters are served with the fields in use, and that KubeRay's operator runs."""
    from dljob.kube.api import DEPLOYMENTS
    from dljob.kube.kuberay_client import RayClusters

    trouble = await RayClusters(kube).trouble()
    if trouble == "missing":
        return CheckResult("KubeRay", "fail", "this cluster serves no RayClusters", _KUBERAY_FIX)
    if trouble == "old":
        return CheckResult("KubeRay", "fail", "the CRD of RayClusters is too old: fields are missing in it", _CRD_FIX)
    deployments = await kube.list(DEPLOYMENTS, None, labels=_KUBERAY_LABEL)
    deployments = deployments or await kube.list(
        DEPLOYMENTS, None, fields="metadata.name=kuberay-operator"
    )  # without its chart
    missing = CheckResult(
        "KubeRay", "warn", "RayClusters are served; no Deployment of its operator is seen", _KUBERAY_FIX
    )
    finding, version = doctor.deployment("KubeRay", deployments, missing)
    # An image by digest, or a version such as "nightly", has no numbers, and is not judged.
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if finding.state == "ok" and len(numbers) == 2 and numbers < KUBERAY_NEEDED:
        return CheckResult("KubeRay", "fail", f"{finding.message}: too old", _KUBERAY_FIX)
    return finding


async def operator(kube: Kube, _namespace: str) -> CheckResult:
    """Check that dljob's operator runs, in the version of this command."""
    from dljob.kube.api import DEPLOYMENTS

    deployments = await kube.list(DEPLOYMENTS, None, labels=_OPERATOR_LABEL)
    missing = CheckResult("operator", "fail", "no Deployment of the dljob operator is seen", INSTALL)
    finding, version = doctor.deployment("operator", deployments, missing)
    own_version = doctor.check_packages()[0].message.split()[0]
    if finding.state == "ok" and version and version != own_version:
        fix = f"pip install dljob=={version}, or helm upgrade the chart"
        return CheckResult("operator", "warn", f"{finding.message}; this dljob is {own_version}", fix)
    return finding


async def webhook(kube: Kube, _namespace: str) -> CheckResult:
    """Check that the admission webhook is on, and the validity of its certificate."""
    from dljob.kube.api import DEPLOYMENTS

    deployments = await kube.list(DEPLOYMENTS, None, labels=_OPERATOR_LABEL)
    marks: dict[str, str] = {}
    for deployment in deployments:
        marks |= deployment["metadata"].get("annotations") or {}
    return doctor.webhook(marks, time.time(), await _certificate_left(kube, deployments))


async def _certificate_left(kube: Kube, deployments: Sequence[Json]) -> float | None:
    """Return the remaining seconds of the certificate, the least of all replicas by their metrics; None: no answer."""
    from dljob.kube.api import PODS, ApiError

    seconds_left: list[float] = []
    for deployment in deployments:
        containers = deployment["spec"]["template"]["spec"]["containers"]
        ports = [port["containerPort"] for port in containers[0].get("ports") or () if port.get("name") == "metrics"]
        with suppress(ApiError):  # the result then says that the metric cannot be read
            # Only replicas with a port for metrics can be asked.
            for pod in (
                await kube.list(PODS, deployment["metadata"]["namespace"], labels=_OPERATOR_LABEL) if ports else ()
            ):
                meta = pod["metadata"]
                # Each replica serves the certificate that it has loaded, and only the replica knows it.
                answer = await kube.proxy_get(meta["name"], ports[0], "metrics", meta["namespace"])
                match = re.search(rf"^{doctor.CERTIFICATE_METRIC}(?:{{.*}})? (\S+)$", answer.text(), re.MULTILINE)
                seconds_left += [float(match[1])] if match else []
    return min(seconds_left, default=None)


async def quota(kube: Kube, namespace: str) -> CheckResult:
    """Check the quotas of the namespace."""
    quotas = await kube.call("GET", f"/api/v1/namespaces/{namespace}/resourcequotas")
    state, message = doctor.quota(quotas.get("items") or [])
    fix = f"kubectl describe quota -n {namespace}" if state == "warn" else ""
    return CheckResult("quota", state, f"in namespace {namespace}: {message}", fix)


async def nodes(kube: Kube, _namespace: str) -> CheckResult:
    """Check the machines and their devices."""
    from dljob.kube.api import NODES

    node_bodies = await kube.list(NODES)
    message = doctor.devices(node_bodies)
    # The text begins with the number of nodes that accept pods.
    if message.startswith("0 "):
        return CheckResult("nodes", "fail", message, "kubectl get nodes")
    return CheckResult("nodes", "ok", message)


CHECKS: tuple[tuple[str, Check], ...] = (
    ("rights", rights),
    ("DLJob CRD", crd),
    ("KubeRay", kuberay),
    ("operator", operator),
    ("webhook", webhook),
    ("quota", quota),
    ("nodes", nodes),
)


async def examine(place: JobTarget) -> list[CheckResult]:
    """Check the cluster: connection first, then everything else concurrently."""
    try:
        kube = await way.connect(place.context)
    except UnreachableError as error:
        return [CheckResult("kubeconfig", "fail", error.message, "see kubectl config get-contexts; or set KUBECONFIG")]
    except DLJobError as error:
        return [CheckResult("kubernetes", "fail", error.message, way.EXTRA)]
    try:
        namespace = place.namespace or kube.namespace
        first = await _checked("cluster", cluster, kube, namespace)
        if first.state == "fail":
            # The other checks would each run into the same timeout.
            return [first]
        # Concurrently: on a slow cluster a check takes seconds.
        rest = [_checked(name, check, kube, namespace) for name, check in CHECKS]
        return [first, *await asyncio.gather(*rest)]
    finally:
        await kube.close()


async def _checked(name: str, check: Check, kube: Kube, namespace: str) -> CheckResult:
    """Run one check; a refusal or a timeout is a result too."""
    try:
        return await asyncio.wait_for(check(kube, namespace), WITHIN_S)
    except TimeoutError:
        return CheckResult(name, "fail", f"no answer within {WITHIN_S:g} s", "is the API server there?")
    except UnreachableError as error:
        # A missing right is no fault of the cluster.
        if getattr(error, "status", 0) == 403:
            return CheckResult(name, "skip", f"this user may not look: {error.message.partition(': User')[0]}")
        return CheckResult(name, "fail", error.message, error.hint or "kubectl get --raw '/readyz?verbose'")
