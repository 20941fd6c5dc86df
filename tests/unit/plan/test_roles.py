"""What is left out of a role, and what becomes of it."""

from __future__ import annotations

import pytest
from plan_kit import job, machines, role

from dljob.errors import PlacementError
from dljob.plan.model import GRAIN
from dljob.plan.plan import plan
from dljob.plan.role import HostKind


def resolved(*roles, **spec):
    return plan(job(*roles, **spec)).roles[roles[0]["name"]]


def test_a_rank_takes_one_cpu_unless_it_says_otherwise():
    assert resolved(role("a")).per_rank == (("CPU", GRAIN),)
    assert resolved(role("a", resources={"cpu": "500m"})).per_rank == (("CPU", GRAIN // 2),)
    assert resolved(role("a", resources={"cpu": "0"})).per_rank == ()


def test_a_ranks_resources_are_sorted_under_rays_names():
    found = resolved(role("a", gpu="0.4", resources={"memory": "2Gi", "custom": {"slots": "0.5"}}))
    assert found.per_rank == (("CPU", GRAIN), ("GPU", 4000), ("memory", 2 * 2**30 * GRAIN), ("slots", 5000))
    assert found.accelerator == ("GPU", 4000)


@pytest.mark.parametrize(
    ("kind", "ray"), [("GPU", "GPU"), ("NPU", "NPU"), ("TPU", "TPU"), ("HPU", "HPU"), ("Neuron", "neuron_cores")]
)
def test_each_kind_of_device_has_rays_resource_name(kind, ray):
    assert resolved(role("a", accelerator={"type": kind})).accelerator == (ray, GRAIN)


def _with(name, kind, **more):
    return {"name": name, "cpu": "8", "accelerator": {"type": kind, "count": 8, **more}}


def test_a_device_without_type_is_that_of_its_node_group():
    groups = [_with("g", "GPU"), _with("n", "NPU")]
    assert resolved(role("a", gpu=1, nodeGroup="n"), nodeGroups=groups).accelerator == ("NPU", GRAIN)
    assert resolved(role("a", gpu=1), nodeGroups=groups[1:]).accelerator == ("NPU", GRAIN)
    assert resolved(role("a", gpu=1), nodeGroups=groups).accelerator == ("GPU", GRAIN)


def test_a_custom_device_has_the_name_its_node_group_gives_it():
    fpga = _with("f", "Custom", resourceName="example.com/fpga", rayResource="FPGA")
    found = resolved(role("a", accelerator={"type": "Custom"}), nodeGroups=[fpga, machines("c")])
    assert found.accelerator == ("FPGA", GRAIN)


def test_a_custom_device_that_could_be_either_is_refused():
    two = [_with(n, "Custom", resourceName=f"example.com/{n}", rayResource=n.upper()) for n in ("f", "x")]
    with pytest.raises(PlacementError, match=r"role a: accelerator type Custom names no device.*2 different"):
        resolved(role("a", accelerator={"type": "Custom"}), nodeGroups=two)
    with pytest.raises(PlacementError, match="0 different"):
        resolved(role("a", accelerator={"type": "Custom"}))


@pytest.mark.parametrize(
    ("entrypoint", "host", "parts"),
    [
        ({"class": "a.B"}, HostKind.THREAD, ("class", "a.B")),
        ({"module": "train.py"}, HostKind.FORK, ("module", "train.py")),
        ({"command": ["sh", "-c", "true"]}, HostKind.FORK, ("command", "sh", "-c", "true")),
    ],
)
def test_the_entrypoint_decides_the_kind_of_host(entrypoint, host, parts):
    found = resolved({**role("a"), "entrypoint": entrypoint})
    assert (found.host, found.entrypoint) == (host, parts)


@pytest.mark.parametrize(
    ("elastic", "replicas", "level", "expected"),
    [
        (False, 4, None, "Process"),
        (True, 4, None, "RoleGroup"),
        (True, 8, None, "Role"),
        (True, 8, "Job", "Job"),
    ],
)
def test_the_restart_level_follows_from_the_role_and_its_policy(elastic, replicas, level, expected):
    policy = {"restartPolicy": {"level": level, "maxRestarts": 3}}
    found = resolved(role("a", replicas, 4, type="Elastic" if elastic else "Actor", **policy))
    assert (found.restart_level, found.max_restarts) == (expected, 3)


@pytest.mark.parametrize(
    ("kind", "device", "comm", "expected"),
    [
        ("Elastic", None, {}, "gloo"),
        ("Elastic", "GPU", {}, "nccl"),
        ("Elastic", "NPU", {}, "hccl"),
        ("Elastic", "TPU", {}, "gloo"),
        ("Elastic", "GPU", {"backend": "gloo"}, "gloo"),
        ("Elastic", "GPU", {"backend": "None"}, None),
        ("Actor", "GPU", {}, None),
    ],
)
def test_the_process_groups_backend_follows_from_the_devices(kind, device, comm, expected):
    accelerator = {"accelerator": {"type": device}} if device else {}
    found = resolved(role("a", type=kind, comm=comm, **accelerator))
    assert found.comm_backend == expected
    assert found.init_process_group is (expected is not None)
    assert found.uses_store is (expected is not None)


def test_env_and_config_of_the_role_lie_over_those_of_the_job():
    found = resolved(
        role("a", env=[{"name": "X", "value": "role"}], config={"x": 1}, args=["--y"], dependsOn=[{"role": "b"}]),
        role("b"),
        env=[{"name": "X", "value": "job"}, {"name": "Y", "value": "job"}],
        config={"x": 0, "y": 0},
    )
    assert dict(found.env) == {"X": "role", "Y": "job"}
    assert found.config == {"x": 1, "y": 0}
    assert found.args == ("--y",)
    assert found.depends_on == (("b", "Ready"),)


@pytest.mark.parametrize(
    ("kind", "type_", "said", "shared"),
    [
        ("GPU", "Elastic", None, True),
        ("NPU", "Elastic", None, True),
        ("GPU", "Elastic", "Isolated", False),
        ("GPU", "Actor", None, False),
        ("GPU", "Actor", "Shared", True),
        ("HPU", "Elastic", "Shared", True),
        ("HPU", "Elastic", None, False),
        ("Neuron", "Elastic", None, False),
        ("TPU", "Elastic", None, False),
    ],
)
def test_torchs_ranks_see_each_others_devices_and_others_their_own(kind, type_, said, shared):
    accelerator = {"type": kind, **({"visibility": said} if said else {})}
    assert resolved(role("a", type=type_, accelerator=accelerator)).shared_sight is shared
    assert resolved(role("a", type="Elastic")).shared_sight is False


def test_a_rank_of_virtual_local_rank_0_sees_its_own_device_alone():
    found = resolved(role("a", type="Elastic", accelerator={"type": "GPU"}, comm={"virtualLocalRank": True}))
    assert (found.shared_sight, found.virtual_local_rank) == (False, True)


@pytest.mark.parametrize(
    ("accelerator", "entrypoint", "share"),
    [
        ({"type": "GPU", "count": "0.4"}, {"class": "a.B"}, 0.4),
        ({"type": "GPU", "count": "0.4", "memoryLimit": "Share"}, {"module": "a.py"}, 0.4),
        ({"type": "GPU", "count": "0.4", "memoryLimit": "None"}, {"class": "a.B"}, 0),
        ({"type": "GPU", "count": "0.4"}, {"command": ["a"]}, 0),
        ({"type": "GPU", "count": 1}, {"class": "a.B"}, 0),
        ({"type": "NPU", "count": "0.4"}, {"class": "a.B"}, 0),
    ],
)
def test_a_share_of_a_gpu_is_one_of_its_memory_too(accelerator, entrypoint, share):
    found = resolved(role("a", accelerator=accelerator, entrypoint=entrypoint))
    assert found.memory_share == share
    assert found.memory_unlimited == (accelerator.get("memoryLimit") == "None")
    assert resolved(role("a")).memory_share == 0


@pytest.mark.parametrize(
    ("said", "mode"),
    [(None, ""), ("Node", "node"), ("Socket", "socket"), ("Exclusive", "exclusive"), ("CoreComplex", "core-complex")],
)
def test_numa_binding_is_said_in_torchs_words(said, mode):
    accelerator = {"type": "GPU", **({"numaBinding": said} if said else {})}
    assert resolved(role("a", accelerator=accelerator)).numa_binding == mode
