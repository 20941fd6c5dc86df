"""The RayCluster as KubeRay 1.7 reads it."""

from __future__ import annotations

import pytest
from plan_kit import job, machines, role

from dljob.plan.plan import plan
from dljob.spec.model import DLJobManifest


def cluster(*roles, **spec):
    return plan(job(*roles, **spec)).manifest


def workers(*roles, **spec):
    return cluster(*roles, **spec)["spec"]["workerGroupSpecs"]


def test_the_head_has_no_cpus_for_ray():
    head = cluster(role("a"), head={"cpu": "2", "memory": "8Gi"})["spec"]["headGroupSpec"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    (container,) = head["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": "2", "memory": "8Gi"}
    assert container["resources"]["limits"] == container["resources"]["requests"]


def test_a_worker_group_per_node_group():
    group, other = workers(
        role("a", nodeGroup="g", gpu=1),
        nodeGroups=[
            machines("g", 2, "16", 8, memory="64Gi", sharedMemory="8Gi", labels={"rack": "r1"}),
            machines("h", 1, "500m"),
        ],
    )
    assert (group["groupName"], group["replicas"], group["minReplicas"], group["maxReplicas"]) == ("g", 2, 2, 2)
    assert group["labels"] == {"dljob.io/node-group": "g", "rack": "r1"}
    assert group["template"]["metadata"]["labels"] == group["labels"]
    pod = group["template"]["spec"]
    assert pod["volumes"] == [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}]
    (container,) = pod["containers"]
    assert container["volumeMounts"] == [{"name": "shm", "mountPath": "/dev/shm"}]
    assert container["resources"]["limits"] == {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "8"}
    assert "resources" not in group
    assert other["template"]["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "500m"}
    assert "volumes" not in other["template"]["spec"]


@pytest.mark.parametrize(
    ("accelerator", "kubernetes", "told"),
    [
        ({"type": "GPU"}, "nvidia.com/gpu", None),
        ({"type": "TPU"}, "google.com/tpu", None),
        ({"type": "Neuron"}, "aws.amazon.com/neuroncore", None),
        ({"type": "NPU"}, "huawei.com/Ascend910", {"NPU": "8"}),
        ({"type": "NPU", "resourceName": "huawei.com/Ascend310"}, "huawei.com/Ascend310", {"NPU": "8"}),
        ({"type": "HPU"}, "habana.ai/gaudi", {"HPU": "8"}),
        (
            {"type": "Custom", "resourceName": "example.com/fpga", "rayResource": "FPGA"},
            "example.com/fpga",
            {"FPGA": "8"},
        ),
    ],
)
def test_ray_is_told_what_kuberay_would_not_tell_it(accelerator, kubernetes, told):
    (group,) = workers(role("a"), nodeGroups=[{"name": "g", "cpu": "8", "accelerator": {**accelerator, "count": 8}}])
    assert group["template"]["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "8", kubernetes: "8"}
    assert group.get("resources") == told
    assert group["rayStartParams"] == {}


def test_derived_machines_of_two_kinds_of_device_and_a_resource_of_the_users():
    device = {"custom": {"NPU": "1", "slots": "2"}}
    (group,) = workers(role("a", gpu=1, resources=device))
    assert group["groupName"] == "gpu1-npu1"
    assert group["template"]["spec"]["containers"][0]["resources"]["limits"] == {
        "cpu": "1",
        "nvidia.com/gpu": "1",
        "huawei.com/Ascend910": "1",
    }
    assert group["resources"] == {"NPU": "1", "slots": "2"}


def test_image_version_and_names():
    made = cluster(role("a"), image="example/x:1", rayVersion="2.61.0")
    assert made["metadata"]["labels"]["dljob.io/name"] == made["metadata"]["name"] == "job"
    assert made["spec"]["rayVersion"] == "2.61.0"
    assert made["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["image"] == "example/x:1"
    default = cluster(role("a"))
    assert default["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["image"] == (
        f"rayproject/ray:{default['spec']['rayVersion']}-py311"
    )
    assert "namespace" not in default["metadata"]


def test_namespace_and_labels_are_passed_on():
    data = job(role("a")).model_dump()
    data["metadata"].update(namespace="research", labels={"team": "rl"})
    made = plan(DLJobManifest.model_validate(data)).manifest
    assert made["metadata"]["namespace"] == "research"
    assert made["metadata"]["labels"]["team"] == "rl"
