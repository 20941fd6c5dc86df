"""Wrong input on a real API server: who says no, in which words, and what `kubectl describe dljob` tells to do next."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest
from cluster.handle import Cluster, KubectlError
from operator_kit import (
    Head,
    Operator,
    condition,
    found,
    job,
    run_head,
    said,
    token,
    until,
    warned,
)

from dljob.errors import DLJobError
from dljob.plan.plan import plan
from dljob.spec.loading.load import parse

HEAD = "127.0.42.2"

ROLE = {"name": "worker", "replicas": 2, "entrypoint": {"class": "hello.main"}, "resources": {"cpu": "500m"}}
SIDE = {"name": "side", "image": "x", "securityContext": {"privileged": True}}
SMALL = {"name": "g", "cpu": "4", "replicas": 2}


def apply(plane: Cluster, namespace: str, name: str, **spec: Any) -> None:
    plane.apply({**job(name, **spec), "metadata": {"name": name, "namespace": namespace}})


def ray_cluster(plane: Cluster, namespace: str, name: str) -> str:
    return until(
        lambda: (
            found(plane, "dljob", name, namespace).get("status", {}).get("rayCluster", {}).get("uid")
            and found(plane, "dljob", name, namespace)["status"]["rayCluster"]["name"]
        ),
        f"{name} has a RayCluster",
    )


def head_pods(plane: Cluster, namespace: str) -> list[dict[str, Any]]:
    return plane.get("pods", "-n", namespace, "-l", "ray.io/node-type=head")["items"]


def worker_pods(plane: Cluster, namespace: str, job: str) -> list[dict[str, Any]]:
    return plane.get("pods", "-n", namespace, "-l", f"ray.io/node-type=worker,dljob.io/name={job}")["items"]


UNSAYABLE: dict[str, dict[str, Any]] = {
    "cycle": {
        "roles": [
            {**ROLE, "name": "a", "dependsOn": [{"role": "b"}]},
            {**ROLE, "name": "b", "driver": False, "dependsOn": [{"role": "a"}]},
        ]
    },
    "capacity": {
        "roles": [{**ROLE, "replicas": 4, "nodeGroup": "g", "resources": {"cpu": "3"}}],
        "nodeGroups": [SMALL],
    },
    "too-large": {"roles": [{**ROLE, "nodeGroup": "g", "resources": {"cpu": "8"}}], "nodeGroups": [SMALL]},
    "twice": {
        "roles": [{**ROLE, "nodeGroup": "g"}],
        "nodeGroups": [
            {
                **SMALL,
                "template": {"spec": {"containers": [{"name": "ray-worker", "resources": {"limits": {"cpu": "1"}}}]}},
            }
        ],
    },
}
"""What no rule of the CRD can say."""


def loaders_words(name: str) -> str:
    """What loader and plan say of a job."""
    with pytest.raises(DLJobError) as refused:
        plan(parse(job(name, **UNSAYABLE[name])))
    return "; ".join(line.strip() for line in str(refused.value).splitlines())


def test_specs_refused_by_the_loader_are_not_accepted_and_its_words_are_shown(
    plane: Cluster, operator: Operator, namespace: str
) -> None:
    for name, spec in UNSAYABLE.items():
        apply(plane, namespace, name, **spec)
    for name in UNSAYABLE:
        reason = "DoesNotFit" if name in ("capacity", "too-large") else "InvalidSpec"
        assert said(plane, namespace, name, reason, "Accepted") == loaders_words(name)
        assert warned(plane, namespace, name, reason) == loaders_words(name)
    assert plane.get("rayclusters", "-n", namespace)["items"] == []
    body = json.dumps(job("typo", roles=[{**ROLE, "replica": 3}]))
    with pytest.raises(KubectlError, match=r'unknown field "spec.roles\[0\].replica"'):
        plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=body)


def test_a_job_that_is_mended_goes_on(plane: Cluster, operator: Operator, namespace: str) -> None:
    apply(plane, namespace, "mended", head={"template": {"spec": {"containers": [SIDE]}}})
    words = said(plane, namespace, "mended", "ForbiddenPod", "Accepted")
    path = "spec.head.template.spec.containers[0].securityContext.privileged"
    assert words.startswith(f"{path}: privileged is true, which the operator's jobs.podSecurity=baseline forbids")
    plane.kubectl(
        "patch", "dljob", "mended", "-n", namespace, "--type=json", "-p", '[{"op":"remove","path":"/spec/head"}]'
    )
    ray_cluster(plane, namespace, "mended")


def counted(plane: Cluster, namespace: str, resource: str) -> bool:
    """Whether the quota controller has counted; until then what it limits is refused in other words."""
    return resource in plane.get("resourcequota", "tight", "-n", namespace).get("status", {}).get("used", {})


def test_a_quota_that_forbids_pods_or_rayclusters_is_named_in_the_status(
    plane: Cluster, operator: Operator, namespace: str
) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "tight", "namespace": namespace}}
    plane.apply({**quota, "spec": {"hard": {"pods": "0"}}})
    until(lambda: counted(plane, namespace, "pods"), "the quota counts pods")
    apply(plane, namespace, "pods")
    words = said(plane, namespace, "pods", "FailedCreateHeadPod")
    assert words.startswith('pods "pods-')
    assert "is forbidden: exceeded quota: tight, requested: pods=1" in words
    assert words.endswith("; raise the quota or give something back; it is tried again by itself")
    assert "exceeded quota: tight" in warned(plane, namespace, "pods", "FailedCreateHeadPod")
    plane.apply({**quota, "spec": {"hard": {"count/rayclusters.ray.io": "1"}}})
    until(lambda: head_pods(plane, namespace), "KubeRay tries again")
    apply(plane, namespace, "clusters")
    words = said(plane, namespace, "clusters", "CreationRefused")
    assert words.startswith('CreateRayCluster: rayclusters.ray.io "clusters-')
    # Either `exceeded quota: tight` or, until the controller has counted a custom resource, `status unknown for` it.
    assert "quota: tight" in words
    assert "quota: tight" in warned(plane, namespace, "clusters", "CreationRefused")
    plane.kubectl("delete", "resourcequota", "tight", "-n", namespace)
    ray_cluster(plane, namespace, "clusters")


@pytest.fixture
def policy(plane: Cluster, namespace: str) -> Iterator[None]:
    """Images from elsewhere are denied in the test's namespace, as a cluster's own policy or webhook would."""
    where = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    rule = {
        "expression": "object.spec.containers.all(c, c.image.startsWith('registry.corp/'))",
        "message": "images must come from registry.corp",
    }
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "our-images"}}
    spec = {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [pods]}, "validations": [rule]}
    bound = {"policyName": "our-images", "validationActions": ["Deny"], "matchResources": {"namespaceSelector": where}}
    plane.apply(
        {**kind, "kind": "ValidatingAdmissionPolicy", "spec": spec},
        {**kind, "kind": "ValidatingAdmissionPolicyBinding", "spec": bound},
    )
    probe = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "namespace": namespace}}
    body = json.dumps({**probe, "spec": {"containers": [{"name": "a", "image": "x"}]}})

    def denied() -> bool:
        try:
            plane.kubectl("create", "--dry-run=server", "-f", "-", stdin=body)
        except KubectlError as error:
            return "images must come" in str(error)
        return False

    until(denied, "the policy is in force")
    yield
    for what in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
        plane.kubectl("delete", what, "our-images")


def test_an_admission_policy_that_forbids_pods_is_named_in_the_status(
    plane: Cluster, operator: Operator, namespace: str, policy: None
) -> None:
    apply(plane, namespace, "denied")
    words = said(plane, namespace, "denied", "FailedCreateHeadPod")
    assert "ValidatingAdmissionPolicy 'our-images'" in words
    assert "images must come from registry.corp" in words
    assert words.endswith("; allow the pod, or correct its template; KubeRay tries again by itself")
    assert "images must come from registry.corp" in warned(plane, namespace, "denied", "FailedCreateHeadPod")


def ended_job(plane: Cluster, name: str, namespace: str) -> dict[str, Any]:
    """The status of a job once it has ended."""
    status = found(plane, "dljob", name, namespace).get("status", {})
    return status if status.get("completionTime") else {}


def test_a_missing_service_account_is_named_in_the_status(plane: Cluster, operator: Operator, namespace: str) -> None:
    apply(plane, namespace, "ghostly", head={"template": {"spec": {"serviceAccountName": "ghost"}}})
    words = said(plane, namespace, "ghostly", "FailedCreateHeadPod")
    assert 'serviceaccount "ghost" not found; create the service account; KubeRay tries again by itself' in words
    own = "example.com/engine:1"
    group = {"name": "g", "cpu": "2", "image": own, "template": {"spec": {"serviceAccountName": "ghost"}}}
    apply(plane, namespace, "haunted", nodeGroups=[group], roles=[{**ROLE, "nodeGroup": "g"}])
    words = said(plane, namespace, "haunted", "FailedCreateWorkerPod")
    assert 'serviceaccount "ghost" not found; create the service account; KubeRay tries again by itself' in words
    plane.kubectl("create", "serviceaccount", "ghost", "-n", namespace)
    until(lambda: len(head_pods(plane, namespace)) == 2, "KubeRay tries again")
    (worker,) = until(lambda: worker_pods(plane, namespace, "haunted"), "and for the workers")
    # Its check runs before KubeRay's own container, which would wait for ever in an image without Ray.
    inits = [(each["name"], each["image"]) for each in worker["spec"]["initContainers"]]
    assert inits[-2:] == [("dljob-image", own), ("wait-gcs-ready", own)]
    assert worker["spec"]["containers"][0]["image"] == own
    (head,) = (pod for pod in head_pods(plane, namespace) if "haunted" in pod["metadata"]["name"])
    # As a kubelet would say, of images with two versions of Python.
    for pod, python in ((head, "3.11.9"), (worker, "3.12.4")):
        told = json.dumps({"python": python, "ray": "2.60.0", "dljob": version("dljob")})
        ended = {"exitCode": 0, "reason": "Completed", "message": told}
        check = {"name": "dljob-image", "image": own, "imageID": "", "ready": True, "restartCount": 0}
        status = {"status": {"initContainerStatuses": [{**check, "state": {"terminated": ended}}]}}
        name, words = pod["metadata"]["name"], json.dumps(status)
        plane.kubectl("patch", "pod", name, "-n", namespace, "--subresource=status", "--type=merge", "-p", words)
    body = until(lambda: ended_job(plane, "haunted", namespace), "the images do not fit")
    assert (body["phase"], body["reason"]) == ("Failed", "PythonVersionMismatch")
    assert "the image of node group g has Python 3.12.4, and the job's image Python 3.11.9" in body["message"]


def test_a_raycluster_refused_by_kuberay_is_told_with_its_reason(
    plane: Cluster, operator: Operator, namespace: str
) -> None:
    redis = {"name": "RAY_REDIS_ADDRESS", "value": "redis:6379"}
    head = {"template": {"spec": {"containers": [{"name": "ray-head", "env": [redis]}]}}}
    apply(plane, namespace, "refused", head=head)
    words = said(plane, namespace, "refused", "InvalidRayClusterSpec")
    assert "RAY_REDIS_ADDRESS is set which implicitly enables GCS fault tolerance" in words
    assert words.endswith("; correct the spec; the job then begins anew by itself")
    assert warned(plane, namespace, "refused", "InvalidRayClusterSpec") == words
    patch = json.dumps({"spec": {"head": None}})
    plane.kubectl("patch", "dljob", "refused", "-n", namespace, "--type=merge", "-p", patch)
    until(lambda: head_pods(plane, namespace), "KubeRay accepts the next one")


@pytest.fixture
def two_nodes(plane: Cluster) -> Iterator[tuple[str, str]]:
    """Nodes without a kubelet, whose volumes the controller manager attaches: pods that name them stay Pending."""
    attached = {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
    names = ("stage-a", "stage-b")
    for name in names:
        plane.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "annotations": attached}})
    yield names
    plane.kubectl("delete", "nodes", *names)
    plane.kubectl("delete", "volumeattachments,persistentvolumes", "--all", "--wait=false")


def on(node: str) -> dict[str, Any]:
    return {"template": {"spec": {"nodeName": node}}}


def test_a_missing_claim_and_a_claim_for_two_hosts_are_named(
    plane: Cluster, operator: Operator, namespace: str, two_nodes: tuple[str, str]
) -> None:
    apply(plane, namespace, "claimless", checkpoint={"path": "/ckpt", "claimName": "nowhere"})
    words = said(plane, namespace, "claimless", "Unschedulable")
    assert 'persistentvolumeclaim "nowhere" not found' in words
    assert words.endswith("; create the claim; the pod then goes on by itself")
    plane.kubectl("delete", "dljob", "claimless", "-n", namespace)
    size = {"storage": "1Gi"}
    once = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    disk = {"driver": "csi.test", "volumeHandle": namespace}
    ref = {"name": "ckpt", "namespace": namespace}
    plane.apply(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": namespace},
         "spec": {**once, "capacity": size, "csi": disk, "claimRef": ref}},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": ref,
         "spec": {**once, "resources": {"requests": size}, "volumeName": namespace}},
    )  # fmt: skip
    group = {"name": "g", "cpu": "2", **on(two_nodes[1])}
    roles = [{**ROLE, "nodeGroup": "g"}]
    checkpoint = {"path": "/ckpt", "claimName": "ckpt"}
    apply(plane, namespace, "shared", checkpoint=checkpoint, head=on(two_nodes[0]), nodeGroups=[group], roles=roles)
    attached = json.dumps({"status": {"attached": True}})
    until(lambda: plane.get("volumeattachments")["items"], "the volume is being attached to one of them")
    for one in plane.get("volumeattachments")["items"]:  # as the driver would say
        name = one["metadata"]["name"]
        plane.kubectl("patch", "volumeattachment", name, "--subresource=status", "--type=merge", "-p", attached)
    words = said(plane, namespace, "shared", "FailedAttachVolume")
    assert "Multi-Attach error for volume" in words
    assert words.endswith("; a ReadWriteOnce volume is on one node at a time: use a claim with ReadWriteMany")
    assert "Multi-Attach" in warned(plane, namespace, "shared", "FailedAttachVolume")


def test_an_edited_raycluster_is_told_and_a_deleted_one_is_made_again(
    plane: Cluster, operator: Operator, namespace: str
) -> None:
    for name in ("edited", "deleted"):
        apply(plane, namespace, name)
    edited, deleted = (ray_cluster(plane, namespace, name) for name in ("edited", "deleted"))
    patch = json.dumps({"spec": {"rayVersion": "2.9.0"}})
    plane.kubectl("patch", "raycluster", edited, "-n", namespace, "--type=merge", "-p", patch)
    plane.kubectl("delete", "raycluster", deleted, "-n", namespace)
    note = warned(plane, namespace, "deleted", "ClusterGone")
    assert note == f"{deleted}: RayCluster {deleted} was deleted; restarted at level Cluster"
    again = until(
        lambda: (name := ray_cluster(plane, namespace, "deleted")) != deleted and name, "another RayCluster is made"
    )
    assert found(plane, "raycluster", again, namespace)
    assert found(plane, "dljob", "deleted", namespace)["status"]["restarts"]["cluster"] == 1
    words = (
        "somebody edited the RayCluster: spec.rayVersion is '2.9.0', '2.60.0' was made; the RayCluster is left as it is"
    )

    def told() -> bool:
        return words in condition(found(plane, "dljob", "edited", namespace), "ClusterReady")["message"]

    until(told, "the edit is told", 40)
    assert found(plane, "raycluster", edited, namespace)["spec"]["rayVersion"] == "2.9.0"


def runs(plane: Cluster, name: str, namespace: str) -> dict[str, Any]:
    """The job once it runs."""
    body = found(plane, "dljob", name, namespace)
    return body if body["status"]["phase"] == "Running" else {}


def test_a_head_service_without_our_port_is_not_needed(
    plane: Cluster, operator: Operator, namespace: str, head: Head
) -> None:
    apply(plane, namespace, "portless")
    name = ray_cluster(plane, namespace, "portless")
    uid = found(plane, "dljob", "portless", namespace)["metadata"]["uid"]
    head.stub.token = token(uid, name)
    service = f"{name}-head-svc"
    until(lambda: found(plane, "service", service, namespace), "KubeRay makes the Service")
    ports = json.dumps({"spec": {"ports": [{"name": "gcs-server", "port": 6379}]}})
    plane.kubectl("patch", "service", service, "-n", namespace, "--type=merge", "-p", ports)
    run_head(plane, name, head.ip, namespace)
    until(lambda: head.stub.posted, "the launcher is submitted")
    head.do(lambda: head.stub.say(uid.replace("-", ""), phase="Running", epoch=1))
    body = until(lambda: runs(plane, "portless", namespace), "the job runs")
    assert body["status"]["master"]["epoch"] == 1
