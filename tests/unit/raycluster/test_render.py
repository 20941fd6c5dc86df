"""The RayCluster as KubeRay 1.6.2 reads it."""

from __future__ import annotations

from typing import Any

import pytest
from kuberay_fields import unknown
from plan_kit import job, machines, ray_cluster, role, together

from dljob.plan.plan import plan
from dljob.raycluster import pods
from dljob.raycluster.render import RenderOptions, effective, render_raycluster
from dljob.spec.model import DLJobManifest

OWNER = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "name": "job", "uid": "u", "controller": True}
DRESS = RenderOptions(
    name="job-1a2b3",
    namespace="research",
    owner=OWNER,
    labels={"dljob.io/name": "job", "dljob.io/uid": "u"},
    annotations={"dljob.io/placement-plan-hash": "0"},
    token_secret="job-1a2b3-token",
    spec_map="job-1a2b3-spec",
    init_image="example/dljob:1",
)
MANY = [
    machines("g", 2, "16", 8, memory="64Gi", sharedMemory="8Gi", labels={"rack": "r1"}),
    {"name": "n", "cpu": "500m", "accelerator": {"type": "NPU", "count": 8}},
]


def full(*roles, options=DRESS, **spec):
    manifest = effective(job(*roles, **spec), "example/runtime:{rayVersion}", "2.60.0")
    return render_raycluster(plan(manifest), manifest, options)


def cluster(*roles, **spec):
    return ray_cluster(job(*roles, **spec))


def workers(*roles, **spec):
    return cluster(*roles, **spec)["spec"]["workerGroupSpecs"]


def head_of(made):
    return made["spec"]["headGroupSpec"]["template"]["spec"]


def env(container):
    return {entry["name"]: entry.get("value") for entry in container["env"]}


def test_kuberay_1_6_2_knows_every_field():
    made = full(role("a", nodeGroup="g", gpu=1), nodeGroups=MANY)
    assert list(unknown(made)) == []
    made["spec"]["headGroupSpec"]["priority"] = 1
    made["spec"]["workerGroupSpecs"][0]["rayStartParams"]["block"] = True
    assert list(unknown(made)) == ["GROUP.priority", "GROUP.rayStartParams.block: True is no text"]


def test_the_dress_is_on_the_cluster_and_its_labels_on_each_pod():
    made = full(role("a"), nodeGroups=MANY)
    assert made["metadata"] == {
        "name": "job-1a2b3",
        "namespace": "research",
        "ownerReferences": [OWNER],
        "annotations": {"dljob.io/placement-plan-hash": "0"},
        "labels": DRESS.labels,
    }
    assert made["spec"]["authOptions"] == {"mode": "token", "secretName": "job-1a2b3-token"}
    assert made["spec"]["upgradeStrategy"] == {"type": "None"}
    groups = [made["spec"]["headGroupSpec"], *made["spec"]["workerGroupSpecs"]]
    assert all(DRESS.labels.items() <= group["template"]["metadata"]["labels"].items() for group in groups)


def test_the_head_carries_prime_master_and_no_ranks():
    made = full(role("a"), head={"cpu": "2", "memory": "8Gi"}, master={"cpu": "250m", "memory": "512Mi"})
    assert made["spec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    (container,) = head_of(made)["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "2250m", "memory": "8704Mi"},
        "limits": {"memory": "8704Mi"},
    }
    assert {(port["name"], port["containerPort"]) for port in container["ports"]} == {
        *pods.RAY_PORTS,
        ("dljob", 8266),
    }
    assert {"name": "dljob-spec", "configMap": {"name": "job-1a2b3-spec"}} in head_of(made)["volumes"]
    assert {"name": "dljob-spec", "mountPath": "/etc/dljob/spec", "readOnly": True} in container["volumeMounts"]


def test_every_pod_has_dljob_and_no_right_in_kubernetes():
    made = full(role("a"), nodeGroups=MANY)
    specs = [head_of(made), *(group["template"]["spec"] for group in made["spec"]["workerGroupSpecs"])]
    for pod in specs:
        (container,), (init,) = pod["containers"], pod["initContainers"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
        assert {"name": "dljob", "emptyDir": {}} in pod["volumes"]
        assert (init["name"], init["image"]) == ("dljob-init", "example/dljob:1")
        awaits = [] if pod is head_of(made) else ["--await-head", "6379"]
        assert init["command"] == ["python", "-m", "dljob.runtime.unpack", *awaits]
        assert init["volumeMounts"] == [{"name": "dljob", "mountPath": "/dljob"}]
        assert {"name": "dljob", "mountPath": "/dljob"} in container["volumeMounts"]
        assert env(container) == {
            "DLJOB_HOME": "/dljob/home",
            "POD_NAME": None,
            "PYTHONPATH": "/dljob/lib",
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
            **({"RAY_memory_monitor_refresh_ms": "0"} if pod is head_of(made) else {}),
        }
        for one in (container, init):
            assert one["securityContext"]["allowPrivilegeEscalation"] is False
            assert one["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert "initContainers" not in head_of(full(role("a"), options=RenderOptions("job")))


@pytest.mark.parametrize(
    ("entrypoint", "needed"),
    [
        ({"module": "dljob.compat"}, True),
        ({"class": "dljob.compat.dlrover_api.rank.DLRoverRank"}, True),
        ({"command": ["python", "-u", "-m", "dljob.compat", "--dlrover", "a.py"]}, True),
        ({"command": ["python", "-m", "dljob.compatible"]}, False),
        ({"module": "train.py"}, False),
    ],
)
def test_pods_of_a_job_that_runs_the_tools_are_brought_them(entrypoint: dict[str, Any], needed: bool):
    made = full({**role("a"), "entrypoint": entrypoint})
    for pod in (head_of(made), *(group["template"]["spec"] for group in made["spec"]["workerGroupSpecs"])):
        assert ("--tools" in pod["initContainers"][0]["command"]) == needed


def test_a_template_may_turn_the_heads_memory_monitor_on():
    wanted = {"name": "RAY_memory_monitor_refresh_ms", "value": "250"}
    template = {"spec": {"containers": [{"name": "ray-head", "env": [wanted]}]}}
    (container,) = head_of(full(role("a"), head={"template": template}))["containers"]
    assert [entry for entry in container["env"] if entry["name"] == wanted["name"]] == [wanted]


def test_ascend_devices_belong_to_a_user_of_their_own():
    gpu, npu = full(role("a", nodeGroup="g", gpu=1), nodeGroups=MANY)["spec"]["workerGroupSpecs"]
    capabilities = [
        group["template"]["spec"]["containers"][0]["securityContext"]["capabilities"] for group in (gpu, npu)
    ]
    assert capabilities == [{"drop": ["ALL"]}, {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]}]


def test_probes_are_shorter_than_those_of_kuberay():
    made = full(role("a"))
    (head,), (worker,) = (
        head_of(made)["containers"],
        made["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"],
    )
    assert head["readinessProbe"]["httpGet"] == {"path": "/api/healthz", "port": 52365}
    assert (head["readinessProbe"]["periodSeconds"], worker["readinessProbe"]["periodSeconds"]) == (1, 5)
    assert head["livenessProbe"]["failureThreshold"] * head["livenessProbe"]["periodSeconds"] == 120
    # KubeRay alone leaves Ray 30 s + 120 x 5 s to start.
    for started in (head["startupProbe"], worker["startupProbe"]):
        assert started["failureThreshold"] * started["periodSeconds"] >= 630


def test_each_node_group_has_a_worker_group():
    group, other = workers(
        role("a", nodeGroup="g", gpu=1),
        nodeGroups=[
            machines("g", 2, "16", 8, memory="64Gi", sharedMemory="8Gi", labels={"rack": "r1"}),
            machines("h", 1, "500m"),
        ],
    )
    assert (group["groupName"], group["replicas"], group["minReplicas"], group["maxReplicas"]) == ("g", 2, 2, 2)
    assert group["labels"] == {"dljob.io/node-group": "g", "rack": "r1"}
    assert group["labels"].items() <= group["template"]["metadata"]["labels"].items()
    pod = group["template"]["spec"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}} in pod["volumes"]
    (container,) = pod["containers"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    assert container["resources"]["limits"] == {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "8"}
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert "resources" not in group
    assert other["template"]["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "500m"}
    # Ray counts whole CPUs, and KubeRay rounds up: the label says how many the plan counts.
    assert other["labels"] == {"dljob.io/node-group": "h", "dljob.io/cpu": "500m"}
    assert [volume["name"] for volume in other["template"]["spec"]["volumes"]] == ["dljob"]


@pytest.mark.parametrize(
    ("accelerator", "kubernetes", "told"),
    [
        ({"type": "GPU"}, "nvidia.com/gpu", None),
        ({"type": "GPU", "resourceName": "nvidia.com/mig-1g.5gb"}, "nvidia.com/mig-1g.5gb", None),
        ({"type": "GPU", "resourceName": "example.com/dcu"}, "example.com/dcu", {"GPU": "8"}),
        ({"type": "TPU"}, "google.com/tpu", None),
        ({"type": "TPU", "resourceName": "example.com/tpu"}, "example.com/tpu", {"TPU": "8"}),
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


def test_derived_machines_carry_two_kinds_of_device_and_custom_resources():
    one = role("a", gpu=1, resources={"custom": {"slots": "2"}})
    other = role("b", accelerator={"type": "NPU"})
    (group,) = workers(one, other, collocations=[together("k", "Host", "a", "b")])
    assert group["groupName"] == "gpu1-npu1"
    assert group["template"]["spec"]["containers"][0]["resources"]["limits"] == {
        "cpu": "2",
        "nvidia.com/gpu": "1",
        "huawei.com/Ascend910": "1",
    }
    assert group["resources"] == {"NPU": "1", "slots": "2"}


def test_the_operators_image_and_version_fill_what_the_spec_leaves_out():
    made = full(role("a"))
    assert made["spec"]["rayVersion"] == "2.60.0"
    assert head_of(made)["containers"][0]["image"] == "example/runtime:2.60.0"
    named = full(role("a"), image="example/x:1", rayVersion="2.61.0")
    assert named["spec"]["rayVersion"] == "2.61.0"
    assert head_of(named)["containers"][0]["image"] == "example/x:1"
    own = full(role("a"), rayVersion="2.61.0")
    assert head_of(own)["containers"][0]["image"] == "example/runtime:2.61.0"


def test_a_preview_without_an_operator_has_the_jobs_own_name():
    made = cluster(role("a"))
    assert made["metadata"]["labels"]["dljob.io/name"] == made["metadata"]["name"] == "job"
    assert made["spec"]["authOptions"] == {"mode": "token"}
    version = made["spec"]["rayVersion"]
    assert head_of(made)["containers"][0]["image"] == f"rayproject/ray:{version}-py311"
    assert "namespace" not in made["metadata"]
    data = job(role("a")).model_dump()
    data["metadata"]["namespace"] = "research"
    assert ray_cluster(DLJobManifest.model_validate(data))["metadata"]["namespace"] == "research"


def test_labels_of_queues_are_passed_on_and_no_others():
    labels = {"volcano.sh/queue-name": "v", "app.kubernetes.io/managed-by": "me"}
    data = job(role("a"), scheduling={"queueName": "gold", "labels": labels}).model_dump()
    own = {
        "volcano.sh/queue-name": "overridden",
        "kueue.x-k8s.io/queue-name": "overridden",
        "kueue.x-k8s.io/priority-class": "high",
        "yunikorn.apache.org/queue": "y",
        "kai.scheduler/queue": "k",
        "ray.io/gang-scheduling-enabled": "true",
        "ray.io/cluster": "not-mine",
        "app.kubernetes.io/instance": "argo",
    }
    data["metadata"]["labels"] = own
    labels = ray_cluster(DLJobManifest.model_validate(data))["metadata"]["labels"]
    assert labels == {
        **{name: value for name, value in own.items() if name not in ("ray.io/cluster", "app.kubernetes.io/instance")},
        "kueue.x-k8s.io/queue-name": "gold",
        "volcano.sh/queue-name": "v",
        "app.kubernetes.io/managed-by": "dljob",
        "dljob.io/name": "job",
    }


def test_image_settings_environment_and_claims_reach_the_pods():
    made = full(
        role("a"),
        imagePullPolicy="Never",
        imagePullSecrets=[{"name": "pull"}],
        envFrom=[{"prefix": "P_", "secretRef": {"name": "s", "optional": True}}, {"configMapRef": {"name": "c"}}],
        checkpoint={"path": "/ckpt", "claimName": "ckpt"},
        master={"journal": {"path": "/journal", "claimName": "journal"}},
    )
    head, worker = head_of(made), made["spec"]["workerGroupSpecs"][0]["template"]["spec"]
    for pod in (head, worker):
        assert pod["imagePullSecrets"] == [{"name": "pull"}]
        assert {one["imagePullPolicy"] for one in (*pod["containers"], *pod["initContainers"])} == {"Never"}
        (container,) = pod["containers"]
        assert container["envFrom"] == [
            {"prefix": "P_", "secretRef": {"name": "s", "optional": True}},
            {"configMapRef": {"name": "c"}},
        ]
        assert env(container)["DLJOB_CHECKPOINT"] == "/ckpt"
        assert {"name": "dljob-checkpoint", "mountPath": "/ckpt"} in container["volumeMounts"]
        claim = {"name": "dljob-checkpoint", "persistentVolumeClaim": {"claimName": "ckpt"}}
        assert claim in pod["volumes"]
    assert {"name": "dljob-journal", "mountPath": "/journal"} in head["containers"][0]["volumeMounts"]
    assert all(volume["name"] != "dljob-journal" for volume in worker["volumes"])
    assert list(unknown(made)) == []
    only_path = full(role("a"), checkpoint={"path": "/ckpt"})
    assert env(head_of(only_path)["containers"][0])["DLJOB_CHECKPOINT"] == "/ckpt"
    assert [volume["name"] for volume in head_of(only_path)["volumes"]] == ["dljob", "dljob-spec"]


def test_a_change_of_the_pods_alone_changes_no_plan_digest():
    assert plan(job(role("a"))).digest == plan(job(role("a"), image="example/x:1")).digest
    assert ray_cluster(job(role("a"))) != ray_cluster(job(role("a"), image="example/x:1"))


@pytest.mark.parametrize(
    ("job_secrets", "operators", "expected"),
    [
        ([], ["a", "b"], ["a", "b"]),
        (["mine", "a"], ["a", "b"], ["mine", "a", "b"]),
        ([f"s{number}" for number in range(16)], ["a"], [f"s{number}" for number in range(16)]),
        ([], [], None),
    ],
)
def test_the_operators_pull_secrets_follow_those_of_the_job(job_secrets, operators, expected):
    manifest = job(role("a"), imagePullSecrets=[{"name": name} for name in job_secrets])
    body = ray_cluster(effective(manifest, "example/runtime:1", "2.60.0", operators))
    for pod in (head_of(body), *(group["template"]["spec"] for group in body["spec"]["workerGroupSpecs"])):
        assert [secret["name"] for secret in pod.get("imagePullSecrets", ())] == (expected or [])


def test_a_read_only_image_has_a_tmp_that_ray_can_write():
    frozen = {"securityContext": {"readOnlyRootFilesystem": True}}
    own = {"volumeMounts": [{"name": "mine", "mountPath": "/tmp"}]}
    template = {
        "spec": {"containers": [{"name": "ray-head", **frozen}], "initContainers": [{"name": "dljob-init", **frozen}]}
    }
    side = {"name": "side", "image": "side:1", **frozen, **own}
    made = full(role("a"), head={"template": template}, rayClusterTemplate={"spec": {"headGroupSpec": {"template": {
        "spec": {"containers": [side], "volumes": [{"name": "mine", "emptyDir": {}}]}}}}})  # fmt: skip
    head, worker = head_of(made), made["spec"]["workerGroupSpecs"][0]["template"]["spec"]
    ours = {"name": "dljob-tmp", "mountPath": "/tmp"}
    mounts = {one["name"]: one["volumeMounts"] for one in (*head["containers"], *head["initContainers"])}
    assert ours in mounts["ray-head"]
    assert ours in mounts["dljob-init"]
    assert mounts["side"] == own["volumeMounts"]
    assert [volume for volume in head["volumes"] if volume["name"] == "dljob-tmp"] == [
        {"name": "dljob-tmp", "emptyDir": {}}
    ]
    assert "dljob-tmp" not in {volume["name"] for volume in worker["volumes"]}
    assert list(unknown(made)) == []
