"""Templates laid over what the plan makes: what merges, what is replaced, and what the platform keeps."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kuberay_fields import unknown
from plan_kit import job, role

from dljob.errors import SpecError
from dljob.plan.devices import DEVICES
from dljob.plan.plan import plan
from dljob.raycluster import pods
from dljob.raycluster.overlay import overlay
from dljob.raycluster.render import RenderOptions, effective, render_raycluster
from dljob.spec import devices
from dljob.spec.rules import templates

KEYS = st.sampled_from(["a", "b", "containers", "env", "tolerations", "command", "livenessProbe"])
ITEMS = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from("xyz"), "value": st.integers(0, 9)}),
    max_size=3,
    unique_by=lambda item: item["name"],
)
OBJECTS = st.recursive(
    st.dictionaries(KEYS.filter(lambda key: key not in ("containers", "env")), st.integers(0, 9), max_size=3),
    lambda inner: (
        st.dictionaries(st.sampled_from(["a", "livenessProbe"]), inner, max_size=2)
        | st.fixed_dictionaries({"containers": ITEMS, "tolerations": ITEMS})
    ),
    max_leaves=6,
)


def made(*, init_image="example/dljob:1", **spec):
    manifest = effective(job(role("a"), **spec), "example/runtime:1", "2.60.0")
    cluster = render_raycluster(
        plan(manifest), manifest, RenderOptions("job-1", spec_map="job-1-spec", init_image=init_image)
    )
    head, (group, *_) = cluster["spec"]["headGroupSpec"], cluster["spec"]["workerGroupSpecs"]
    return cluster, head["template"], group["template"]


def test_a_value_that_no_rule_refused_and_that_cannot_be_merged_is_an_error_of_the_spec():
    with pytest.raises(SpecError, match="its templates cannot be merged into a RayCluster: AttributeError: 'int'"):
        made(head={"template": {"spec": {"tolerations": [7]}}})


def by_name(items):
    return {item["name"]: item for item in items}


@given(OBJECTS, OBJECTS)
def test_laying_over_changes_neither_and_again_adds_nothing_but_what_adds_up(base, over):
    before = copy.deepcopy((base, over))
    once = overlay(base, over)
    assert (base, over) == before
    assert overlay(base, {}) == base
    if "tolerations" not in str((base, over)):
        assert overlay(once, over) == once


def test_mappings_lists_and_null():
    base = {"a": {"x": 1, "y": 2}, "command": ["a"], "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}
    over = {"a": {"y": None, "z": None}, "command": ["b"], "env": [{"name": "C"}, {"name": "A", "valueFrom": {}}]}
    assert overlay(base, over) == {
        "a": {"x": 1},
        "command": ["b"],
        "env": [{"name": "A", "valueFrom": {}}, {"name": "B", "value": "2"}, {"name": "C"}],
    }
    assert overlay({"tolerations": [1]}, {"tolerations": [2]}) == {"tolerations": [1, 2]}
    assert overlay({"readinessProbe": {"httpGet": {}, "a": 1}}, {"readinessProbe": {"exec": {}}}) == {
        "readinessProbe": {"exec": {}}
    }
    assert overlay({"a": 1}, {"a": {"b": None, "c": 2}}) == {"a": {"c": 2}}


def test_a_template_reaches_its_pod_and_nothing_is_lost():
    template = {
        "metadata": {"labels": {"team": "rl"}, "annotations": {"note": "x"}},
        "spec": {
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            "initContainers": [{"name": "fetch", "image": "example/fetch:1"}],
            "containers": [
                {"name": "log", "image": "example/log:1"},
                {
                    "name": "ray-worker",
                    "env": [{"name": "PYTHONPATH", "value": "/opt/mine"}, {"name": "NCCL_DEBUG", "value": "INFO"}],
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    "livenessProbe": {"exec": {"command": ["true"]}},
                    "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
                    "resources": {"limits": {"rdma/hca": "1"}},
                },
            ],
        },
    }
    cluster, head, worker = made(nodeGroups=[{"name": "g", "cpu": "4", "template": template}])
    bare = made(nodeGroups=[{"name": "g", "cpu": "4"}])[2]
    pod, plain = worker["spec"], bare["spec"]
    assert worker["metadata"]["labels"] == {"dljob.io/node-group": "g", "team": "rl"}
    assert worker["metadata"]["annotations"] == {"note": "x"}
    assert [c["name"] for c in pod["containers"]] == ["ray-worker", "log"], "Ray's container stays the first"
    assert [c["name"] for c in pod["initContainers"]] == ["dljob-init", "fetch"]
    assert pod["volumes"] == [*plain["volumes"], *template["spec"]["volumes"]]
    ray, was = pod["containers"][0], plain["containers"][0]
    env = {entry["name"]: entry.get("value") for entry in ray["env"]}
    assert env == {
        "DLJOB_HOME": "/dljob/home",
        "POD_NAME": None,
        "PYTHONPATH": "/opt/mine:/dljob/lib",
        "NCCL_DEBUG": "INFO",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    }
    assert ray["livenessProbe"] == {"exec": {"command": ["true"]}}
    assert ray["readinessProbe"] == was["readinessProbe"]
    assert ray["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert ray["resources"]["limits"] == {"cpu": "4", "rdma/hca": "1"}
    assert pod["nodeSelector"] == {"pool": "gpu"}
    assert "nodeSelector" not in head["spec"]
    assert list(unknown(cluster)) == []


def test_the_template_of_the_cluster_comes_last():
    cluster, head, worker = made(
        head={"template": {"spec": {"priorityClassName": "low", "restartPolicy": "Never"}}},
        nodeGroups=[{"name": "g"}, {"name": "h"}],
        rayClusterTemplate={
            "metadata": {"labels": {"team": "rl"}, "annotations": {"note": "x"}},
            "spec": {
                "headServiceAnnotations": {"a": "b"},
                "headGroupSpec": {
                    "serviceType": "ClusterIP",
                    "rayStartParams": {"object-store-memory": "1000"},
                    "template": {"spec": {"priorityClassName": "high"}},
                },
                "workerGroupSpecs": [
                    {"groupName": "g", "template": {"spec": {"containers": [{"name": "ray-worker", "image": "x:2"}]}}}
                ],
            },
        },
    )
    assert cluster["metadata"]["labels"]["team"] == "rl"
    assert cluster["metadata"]["annotations"] == {"note": "x"}
    assert cluster["spec"]["headGroupSpec"]["rayStartParams"] == {
        "num-cpus": "0",
        "dashboard-host": "0.0.0.0",  # noqa: S104 - what the head listens on
        "object-store-memory": "1000",
    }
    assert (head["spec"]["priorityClassName"], head["spec"]["restartPolicy"]) == ("high", "Never")
    assert [group["groupName"] for group in cluster["spec"]["workerGroupSpecs"]] == ["g", "h"]
    other = cluster["spec"]["workerGroupSpecs"][1]["template"]["spec"]["containers"][0]
    assert (worker["spec"]["containers"][0]["image"], other["image"]) == ("x:2", "example/runtime:1")


def test_user_code_comes_by_the_init_container_of_every_pod():
    for image, expected in (("example/dljob:1", "example/dljob:1"), ("", "example/runtime:1")):
        _, head, worker = made(init_image=image, code={"configMap": "hello"})
        for pod in (head["spec"], worker["spec"]):
            (init,) = pod["initContainers"]
            assert init["image"] == expected
            assert by_name(pod["volumes"])["dljob-code"] == {"name": "dljob-code", "configMap": {"name": "hello"}}
            assert {"name": "dljob-code", "mountPath": "/etc/dljob/code", "readOnly": True} in init["volumeMounts"]
            assert all(mount["name"] != "dljob-code" for mount in pod["containers"][0]["volumeMounts"])


OPEN = ("PYTHONPATH", "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "RAY_memory_monitor_refresh_ms")
"""Variables that a template may set."""


def test_the_loader_keeps_what_the_pods_have():
    """`spec` may not import `plan`: what it refuses is held here against what the plan makes."""
    assert {**dict(pods.RAY_PORTS), pods.GATEWAY_PORT_NAME: pods.GATEWAY_PORT} == templates.PORTS
    assert (templates.HEAD, templates.WORKER) == (pods.HEAD_CONTAINER, pods.WORKER_CONTAINER)
    assert {name: device.kubernetes for name, device in DEVICES.items() if device.kubernetes} == devices.KUBERNETES
    _, head, worker = made(code={"configMap": "hello"}, nodeGroups=[{"name": "g", "sharedMemory": "1Gi"}])
    for pod, group in ((head["spec"], None), (worker["spec"], "g")):
        ray = pod["containers"][0]
        platform = {
            "containers": [{"name": ray["name"], "env": [e for e in ray["env"] if e["name"] not in OPEN]}],
            "initContainers": [{"name": pod["initContainers"][0]["name"]}],
            "volumes": [v for v in pod["volumes"] if v["name"] != "shm"],
        }
        mounts = [m for m in ray["volumeMounts"] if m["name"] != "shm"]
        spec = {"head": {"template": {"spec": platform}}} if group is None else {}
        if group:
            spec["nodeGroups"] = [{"name": "g", "template": {"spec": platform}}]
        found = list(templates.TEMPLATE_RULES[0](job(role("a"), **spec).spec))
        taken = len(platform["containers"][0]["env"]) + 1 + len(platform["volumes"])
        assert len(found) == taken, [f.message for f in found]
        platform["containers"][0]["volumeMounts"] = mounts
        assert len(list(templates.TEMPLATE_RULES[0](job(role("a"), **spec).spec))) == taken + len(mounts)
