"""Wrong input on real pods: what the kubelet, the scheduler or the launcher says reaches the job, with what to do next.

All jobs are applied at once, and each test waits for its own: what takes long is done side by side.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cluster.handle import Cluster
from operator_kit import IMAGES, children, condition, found, said, until, warned, with_images

HELLO = "from dljob import progress\n\ndef main():\n    progress(1)\n"
PACKAGE = "/opt/dljob/lib/python3.11/site-packages/dljob"
"""Where the image has dljob."""
SPACE, BARE = "bad", "bad-bare"
"""The namespaces of an operator that brings dljob into images, and of one that does not."""
HERE = {"image": IMAGES["runtime"], "imagePullPolicy": "Never"}
ABSENT = "dljob.local/absent:1"


def job(name: str, namespace: str = SPACE, **spec: Any) -> dict[str, Any]:
    """A small job of one rank."""
    body = {
        **HERE,
        "code": {"configMap": "hello"},
        "head": {"cpu": "20m", "memory": "2Gi"},
        "master": {"cpu": "20m", "memory": "512Mi"},
        "nodeGroups": [{"name": "g", "cpu": "20m", "memory": "2Gi"}],
        "roles": [{"name": "worker", "nodeGroup": "g", "entrypoint": {"class": "hello.main"},
                   "resources": {"cpu": "20m"}}],
        **spec,
    }  # fmt: skip
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": metadata, "spec": body}


def head(**pod: Any) -> dict[str, Any]:
    """A head whose pod has more in it, and workers that no node takes: they are not what is looked at."""
    template = {"spec": {"nodeSelector": {"kubernetes.io/hostname": "nowhere"}}}
    group = {"name": "g", "cpu": "20m", "memory": "512Mi", "template": template}
    return {"head": {"cpu": "20m", "memory": "1Gi", "template": {"spec": pod}}, "nodeGroups": [group]}


def config(name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": SPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"hello.py": HELLO}}


CLAIM = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}


def claim() -> dict[str, Any]:
    spec = {**CLAIM, "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": "unbound", "namespace": SPACE}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def mounted(volume: dict[str, Any], path: str) -> dict[str, Any]:
    """A head with a volume."""
    mount = {"name": "ray-head", "volumeMounts": [{"name": "v", "mountPath": path}]}
    return head(volumes=[{"name": "v", **volume}], containers=[mount])


ROOM = {"cpu": "250m", "memory": "2Gi"}
RUNS = {"head": ROOM, "nodeGroups": [{"name": "g", **ROOM}]}
"""Of the one job that is mended to its end: a share of the processor that does not starve beside the others."""
JOBS = (
    job("never", image=ABSENT, **RUNS),
    job("pulled", image=ABSENT, imagePullPolicy="IfNotPresent", **head()),
    job("keyless", envFrom=[{"secretRef": {"name": "keys"}}], **head()),
    job("codeless", code={"configMap": "code"}, **head()),
    job("secretless", **mounted({"secret": {"secretName": "certificates"}}, "/certificates")),
    job("claimless", checkpoint={"path": "/ckpt", "claimName": "unbound"}, **head()),
    # An image without Ray.
    job("two-images", nodeGroups=[{"name": "g", "cpu": "20m", "memory": "512Mi", "image": IMAGES["operator"]}]),
    job("bare", BARE, code={}, **mounted({"emptyDir": {}}, PACKAGE)),
)
SECONDS = 90


@pytest.fixture(scope="module")
def jobs(node: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All of them, with an operator that brings dljob into images and one that does not, each for its namespace."""
    folders = [tmp_path_factory.mktemp(name) for name in (SPACE, BARE)]
    with (
        with_images(node, folders[0], f"--namespace={SPACE}"),
        with_images(node, folders[1], f"--namespace={BARE}", "--init-image="),
    ):
        spaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in (SPACE, BARE)]
        node.apply(*spaces, {"apiVersion": "v1", "kind": "List", "items": [config("hello"), claim(), *JOBS]})
        yield
        node.kubectl("delete", "namespace", SPACE, BARE, "--wait=false")


def stuck(node: Cluster, name: str, reason: str) -> str:
    """What the job says of its head once it says this reason; people read the same, twice."""
    said(node, SPACE, name, reason, seconds=SECONDS)
    pod = head_pod(node, name)["metadata"]["name"]

    def of_the_head() -> str:
        words = said(node, SPACE, name, reason)
        return words if words.startswith(f"pod {pod}") else ""

    words = until(of_the_head, f"{name} says what its head lacks, which comes first once it is known", SECONDS)
    step = words.partition("; ")[2]
    assert step in node.kubectl("describe", "dljob", name, "-n", SPACE)
    note = warned(node, SPACE, name, reason)  # a worker's pod may have met it earlier
    pods = node.get("pods", "-n", SPACE, "-l", f"dljob.io/name={name}")["items"]
    assert note.startswith(tuple(f"pod {one['metadata']['name']}" for one in pods)), note
    row = node.kubectl("get", "dljob", name, "-n", SPACE, "-o", "wide").splitlines()[1].split()
    assert row[1:3] == ["Provisioning", reason]
    return words


def failed(node: Cluster, namespace: str, name: str, reason: str) -> str:
    """The message of a job that failed for this reason."""

    def look() -> str:
        one = condition(found(node, "dljob", name, namespace), "Failed")
        return one["message"] if (one.get("status"), one.get("reason")) == ("True", reason) else ""

    words = until(look, f"{name} fails for {reason}", SECONDS)
    assert warned(node, namespace, name, reason) == words
    return words


def head_pod(node: Cluster, name: str) -> dict[str, Any]:
    return node.get("pods", "-n", SPACE, "-l", f"dljob.io/name={name},ray.io/node-type=head")["items"][0]


def goes_on(node: Cluster, name: str) -> None:
    """Wait until the head's container runs; then the job goes, as it would have run, and leaves nothing."""

    def runs() -> bool:
        return any("running" in one["state"] for one in head_pod(node, name)["status"].get("containerStatuses", []))

    until(runs, f"the head of {name} runs", SECONDS)
    ends(node, name)


def ends(node: Cluster, name: str) -> None:
    """Delete a job, and wait until nothing of it is left."""
    uid = found(node, "dljob", name, SPACE)["metadata"]["uid"]
    node.kubectl("delete", "dljob", name, "-n", SPACE)
    until(lambda: not children(node, uid, SPACE), f"everything of {name} is gone")


def test_an_image_that_cannot_be_pulled_is_named_in_the_status(node: Cluster, jobs: None) -> None:
    def pull() -> str:
        one = condition(found(node, "dljob", "pulled", SPACE), "ClusterReady")
        return one["message"] if one.get("reason") in ("ErrImagePull", "ImagePullBackOff") else ""

    words = until(pull, "the kubelet says that it cannot pull", SECONDS)
    assert f'"{ABSENT}"' in words
    assert words.endswith("; correct the image, or its imagePullSecrets")
    ends(node, "pulled")


def test_a_missing_secret_of_the_environment_is_named_and_the_pod_goes_on_once_it_exists(
    node: Cluster, jobs: None
) -> None:
    words = stuck(node, "keyless", "CreateContainerConfigError")
    assert words.endswith(
        ': container ray-head: secret "keys" not found; create what is missing; the pod then goes on by itself'
    )
    node.kubectl("create", "secret", "generic", "keys", "-n", SPACE, "--from-literal=KEY=1")
    goes_on(node, "keyless")


def test_a_missing_configmap_of_code_is_named_and_the_pod_goes_on_once_it_exists(node: Cluster, jobs: None) -> None:
    words = stuck(node, "codeless", "ConfigMapNotFound")
    assert 'configmap "code" not found; create what is missing; the pod then goes on by itself' in words
    node.apply(config("code"))
    goes_on(node, "codeless")


def test_a_missing_secret_of_a_volume_is_named(node: Cluster, jobs: None) -> None:
    words = stuck(node, "secretless", "SecretNotFound")
    assert 'secret "certificates" not found; create what is missing; the pod then goes on by itself' in words
    ends(node, "secretless")


def test_an_unbound_volume_claim_is_named_and_the_pod_goes_on_once_it_is_bound(node: Cluster, jobs: None) -> None:
    words = stuck(node, "claimless", "Unschedulable")
    assert "pod has unbound immediate PersistentVolumeClaims" in words
    assert words.endswith("; the claim needs a volume or a provisioner; the pod then goes on by itself")
    spec = {**CLAIM, "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/dev/shm"}}
    node.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "bad"}, "spec": spec})
    until(lambda: head_pod(node, "claimless")["spec"].get("nodeName"), "the head gets a node")
    ends(node, "claimless")
    node.kubectl("delete", "pvc/unbound", "-n", SPACE)
    node.kubectl("delete", "pv/bad")


def test_a_node_group_whose_image_does_not_fit_the_heads_is_refused_with_both_versions(
    node: Cluster, jobs: None
) -> None:
    words = failed(node, SPACE, "two-images", "RayVersionMismatch")
    assert words == (
        "the image of node group g has no Ray, and the job's image Ray 2.60.0; name an image with ray[default]==2.60.0"
        " in nodeGroups[].image; then delete this job and apply it again"
    )


def test_an_image_without_dljob_fails_the_job_with_what_to_do(node: Cluster, jobs: None) -> None:
    words = failed(node, BARE, "bare", "ImageWithoutDLJob")
    assert words == (
        f"image {IMAGES['runtime']} has no dljob; install it there, or let the operator bring it (--init-image);"
        " then delete this job and apply it again"
    )


def test_an_image_that_is_nowhere_is_replaced(node: Cluster, jobs: None) -> None:
    # The last: the one job that runs to its end does so when the others are gone.
    words = stuck(node, "never", "ErrImageNeverPull")
    assert f'Container image "{ABSENT}" is not present with pull policy of Never' in words
    assert words.endswith("; bring the image to the node, or let it be pulled: imagePullPolicy")
    patch = json.dumps({"spec": {"image": IMAGES["runtime"]}})
    node.kubectl("patch", "dljob", "never", "-n", SPACE, "--type=merge", "-p", patch)
    status = until(lambda: completed(node, "never"), "the job begins anew, and completes", SECONDS)
    assert (status["attempt"], status["restartsTotal"]) == (2, 0)


def completed(node: Cluster, name: str) -> dict[str, Any]:
    """The status of a job once it is complete."""
    body = found(node, "dljob", name, SPACE)
    return body["status"] if condition(body, "Complete").get("status") == "True" else {}
