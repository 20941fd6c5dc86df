"""The builders: what they make, and what they refuse with the call and the fix."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from dljob.api.builder import DLJobBuilder
from dljob.api.job import DLJob
from dljob.api.rl import RLJobBuilder, RLRoleType
from dljob.errors import PlacementError, SpecError, UsageError
from dljob.plan.plan import plan


def one(**resource: Any) -> DLJob:
    return DLJobBuilder().role("a").run("m.A").resource(**resource).build()


def spec(job: DLJob) -> dict[str, Any]:
    return job.model_dump()["spec"]


def test_the_example_of_the_api_page_builds_its_job() -> None:
    job = (
        DLJobBuilder()
        .node_num(2).device_per_node(8).device_type("NPU")
        .config({"lr": 1e-6}).global_env({"LOG_LEVEL": "INFO"})
        .role("actor").train("ppo.PolicyModel").nnodes(1).nproc_per_node(8)
        .resource(accelerator=0.6, cpu=8, memory="64Gi").end()
        .role("critic").train("ppo.Critic").nnodes(1).nproc_per_node(8).resource(accelerator=0.4).not_driver().end()
        .role("rollout").run("ppo.VLLM").total(4).per_group(1).resource(accelerator=2).not_driver().end()
        .with_collocation("actor", "critic")
        .build()
    )  # fmt: skip

    document = job.model_dump()["spec"]
    assert document["collocations"] == [{"name": "device-0", "roles": ["actor", "critic"], "level": "Device"}]
    actor, critic, rollout = document["roles"]
    assert actor["accelerator"] == {"type": "NPU", "count": "0.6"}
    assert actor["resources"] == {"cpu": "8", "memory": "64Gi"}
    assert critic["accelerator"] == {"type": "NPU", "count": "0.4"}
    assert rollout["accelerator"] == {"type": "NPU", "count": "2"}
    assert [r.get("driver", True) for r in document["roles"]] == [True, False, False]
    manifest = job.manifest("ppo")
    assert manifest.spec.config == {"lr": 1e-6}
    assert json.loads(job.model_dump_json(indent=2))["spec"] == document


def test_yaml_of_a_draft_is_what_the_loader_reads(tmp_path: Path) -> None:
    from dljob.spec.loading.load import load_file

    job = DLJobBuilder().name("j").role("a").run("train.py --lr 1").total(2).env({"X": 1}).build()
    file = tmp_path / "job.yaml"
    file.write_text(job.to_yaml())
    assert load_file(file) == job.manifest()


@pytest.mark.parametrize(
    ("given", "exact"),
    [(0.4, "0.4"), (0.1 + 0.2 - 0.1, "0.2"), (1.0, "1"), (2, "2"), ("0.3334", "0.3334"), (Decimal("0.50"), "0.5")],
)
def test_device_shares_are_exact(given: Any, exact: str) -> None:
    if given == 0.1 + 0.2 - 0.1:
        with pytest.raises(UsageError, match=r"finer than Ray's grain"):
            one(accelerator=given)
        return
    assert spec(one(accelerator=given))["roles"][0]["accelerator"] == {"count": exact}


def test_aliases_of_devices_name_their_kind() -> None:
    assert spec(one(npu=2))["roles"][0]["accelerator"] == {"type": "NPU", "count": "2"}
    assert spec(one(gpu=0.5))["roles"][0]["accelerator"] == {"type": "GPU", "count": "0.5"}
    assert spec(one(acc=1, mem="8Gi"))["roles"][0]["resources"] == {"memory": "8Gi"}


def test_a_second_resource_call_keeps_what_the_first_said() -> None:
    job = DLJobBuilder().role("a").run("m.A").resource(cpu=4, custom={"disk": 2}).resource(memory="1Gi").build()
    assert spec(job)["roles"][0]["resources"] == {"cpu": "4", "memory": "1Gi", "custom": {"disk": "2"}}


def test_zero_devices_is_no_device_and_so_is_none_at_all() -> None:
    assert "accelerator" not in spec(one(accelerator=0))["roles"][0]
    said = DLJobBuilder().node_num(1).device_per_node(8).device_type("GPU").role("a").run("m.A").build()
    assert "accelerator" not in spec(said)["roles"][0]


def test_more_devices_than_the_machines_have_are_refused_with_all_ranks_counted() -> None:
    builder = DLJobBuilder().node_num(1).device_per_node(8).device_type("GPU")
    manifest = builder.role("a").run("m.A").total(64).resource(accelerator=1).build().manifest("j")
    with pytest.raises(PlacementError, match=r"64 units .* room for 8, so at least 56 GPU is missing"):
        plan(manifest)


def test_a_range_of_torch_nodes_is_a_range_of_ranks() -> None:
    role = DLJobBuilder().role("a").train("m.A").nnodes("1:4").nproc_per_node(2)
    (made,) = role.build().manifest("j").spec.roles
    assert (made.replicas, made.replicas_per_group, made.min_replicas, made.max_replicas) == (8, 2, 2, 8)
    (fixed,) = role.nnodes(3).build().manifest("j").spec.roles
    assert (fixed.replicas, fixed.min_replicas, fixed.max_replicas) == (6, None, None)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("as_data_stream", "it changes nothing; leave the call out"),
        ("sub_stage", "leave the call out"),
        ("by_dlrover_run_cmd", "`dljob torchrun`"),
        ("enable_node_group_failover", "one by one"),
        ("totl", "has no 'totl'$"),
    ],
)
def test_a_call_of_dlrovers_that_is_not_here_says_what_to_do(call: str, words: str) -> None:
    for builder in (DLJobBuilder(), DLJobBuilder().role("a"), RLJobBuilder()):
        with pytest.raises(AttributeError, match=words):
            getattr(builder, call)
        assert not hasattr(builder, call)


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "unknown keyword": (lambda: one(acceler=1), r"resource\(\) has no keyword 'acceler'\n.*'accelerator'"),
    "devices twice": (lambda: one(gpu=1, accelerator=1), "names devices twice"),
    "memory twice": (lambda: one(memory="1Gi", mem="1Gi"), "names memory twice"),
    "memory without unit": (lambda: one(memory=8192), r'no unit\n.*"8192Mi"'),
    "memory as digits": (lambda: one(memory="8192"), r"no unit"),
    "one and a half devices": (lambda: one(accelerator=1.5), "1.5 devices per rank"),
    "negative": (lambda: one(cpu=-1), "not negative"),
    "nan": (lambda: one(accelerator=float("nan")), "not negative"),
    "no number": (lambda: one(accelerator="half"), "takes a number"),
    "a truth": (lambda: one(accelerator=True), "takes a number"),
    "run without role": (lambda: DLJobBuilder().run("m.A"), r"\.run\('m.A'\) without a role\n.*\.role\(name\)"),
    "train without role": (lambda: DLJobBuilder().train("m.A"), r"\.train\('m.A'\) without a role"),
    "second run": (lambda: DLJobBuilder().role("a").run("m.A").run("m.B"), "already runs 'm.A'"),
    "second run on the job": (lambda: DLJobBuilder().role("a").run("m.A").end().run("m.B"), "without a role"),
    "two roles of one name": (lambda: DLJobBuilder().role("a").run("m.A").role("A"), "such a role already"),
    "role without entrypoint": (lambda: DLJobBuilder().role("a").build(), "role 'a' runs nothing"),
    "no role": (lambda: DLJobBuilder().build(), "without a role"),
    "empty entrypoint": (lambda: DLJobBuilder().role("a").run(" "), "dotted path"),
    "a class for an entrypoint": (lambda: DLJobBuilder().role("a").run(DLJob), "dotted path"),
    "words in an entrypoint": (lambda: DLJobBuilder().role("a").run("m.A --x"), "not one dotted path"),
    "a range of ranks": (lambda: DLJobBuilder().role("a").train("m.A").total("1:4"), r"whole number.*\n.*\.nnodes"),
    "a range that is none": (lambda: DLJobBuilder().role("a").train("m.A").nnodes("4:1"), 'not \'4:1\'\n.*"2:8"'),
    "a disk": (lambda: one(disk=10), "has no keyword 'disk'"),
    "no ranks": (lambda: DLJobBuilder().role("a").run("m.A").total(0), "1 or more"),
    "two ways to count": (lambda: DLJobBuilder().role("a").train("m.A").nnodes(2).total(4), "two ways to count"),
    "two ways, the other way": (lambda: DLJobBuilder().role("a").train("m.A").total(2).nnodes(4), "two ways to count"),
    "device type": (lambda: DLJobBuilder().device_type("GPUU"), r"no such kind\n.*'GPU'"),
    "devices of another kind": (
        lambda: DLJobBuilder().device_type("NPU").role("a").run("m.A").resource(gpu=1).build(),
        "asks for GPU by name, .device_type",
    ),
    "devices on CPU machines": (
        lambda: DLJobBuilder().node_num(1).device_type("CPU").role("a").run("m.A").resource(accelerator=1).build(),
        "the machines have none",
    ),
    "collocation of one": (lambda: DLJobBuilder().with_collocation("a"), "fewer than two"),
    "collocation of an unknown role": (
        lambda: DLJobBuilder().role("actor").run("m.A").with_collocation("actor", "acto").build(),
        r"'acto', which is no role\n.*'actor'",
    ),
    "collocation level": (lambda: DLJobBuilder().with_collocation("a", "b", level="Dev"), "collocation level 'Dev'"),
    "nothing left of the device": (
        lambda: (
            DLJobBuilder().role("a").run("m.A").resource(accelerator=0.6).role("b").run("m.B")
            .resource(accelerator=0.4).role("c").run("m.C").with_collocation("a", "b", "c").build()
        ),
        "1 of the device is taken, nothing is left for c",
    ),
    "collocate all of one": (
        lambda: DLJobBuilder().role("a").run("m.A").with_collocation_all().build(),
        "leaves 1 role",
    ),
    "env of None": (lambda: DLJobBuilder().global_env({"X": None}), r"X=None is not text"),
    "config of a number": (lambda: DLJobBuilder().config(3), "takes a dict"),
    "config with an object": (lambda: DLJobBuilder().config({"a": [object()]}), r"config\.a\[0\] holds a object"),
    "dependency condition": (
        lambda: DLJobBuilder().role("a").run("m.A").depends_on("b", "Done"),  # pyright: ignore[reportArgumentType]
        "condition 'Done'",
    ),
    "restart level": (lambda: DLJobBuilder().role("a").run("m.A").restart(level="Procss"), "'Process'"),
    "a patched attribute that is none": (
        lambda: setattr(one().workloads["a"], "replica", 2),
        r"no attribute 'replica'\n.*'replicas'",
    ),
    "a patched backend": (lambda: setattr(one().workloads["a"], "backend", "elastic"), "read-only"),
    "a check that is neither wanted nor not": (
        lambda: setattr(one().workloads["a"], "comm_pre_check", "yes"),
        "comm_pre_check='yes'",
    ),
    "devices that are seen by somebody else": (
        lambda: DLJobBuilder().role("a").run("m.A").visibility("All"),  # pyright: ignore[reportArgumentType]
        "Isolated or Shared",
    ),
    "cores near something else": (
        lambda: DLJobBuilder().role("a").run("m.A").numa_binding("node"),  # pyright: ignore[reportArgumentType]
        "Node, Socket, Exclusive or CoreComplex",
    ),
    "memory of a device held to something else": (
        lambda: DLJobBuilder().role("a").run("m.A").device_memory_limit("Half"),  # pyright: ignore[reportArgumentType]
        "Share or None",
    ),
    "a selection that is neither on nor off": (
        lambda: setattr(one().workloads["a"], "rank_based_gpu_selection", "yes"),
        "rank_based_gpu_selection='yes'",
    ),
    "a node group of the builder's own name": (
        lambda: DLJobBuilder().node_num(1).node_group("workers").role("a").run("m.A").build(),
        "both declare 'workers'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_misuse_names_the_call_and_the_fix(case: str) -> None:
    misuse, words = REFUSED[case]
    with pytest.raises(UsageError, match=words) as caught:
        misuse()
    assert caught.value.exit_code == 2


def test_a_circular_config_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["again"] = loop
    with pytest.raises(UsageError, match="nested deeper"):
        DLJobBuilder().config(loop)


def test_a_config_that_cannot_be_read_names_its_path() -> None:
    class Missing(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise RuntimeError("mandatory value is missing")

    with pytest.raises(UsageError, match=r"config\.a\.lr cannot be read: mandatory"):
        DLJobBuilder().config({"a": Missing(lr="???")})


def test_configs_of_all_kinds_become_plain() -> None:
    class Colour(Enum):
        RED = "red"

    @dataclass
    class Optim:
        lr: float = 0.1
        betas: tuple[float, float] = (0.9, 0.99)
        tags: set[str] = field(default_factory=lambda: {"x"})

    value = Namespace(optim=Optim(), colour=Colour.RED, path=Path("/data"), share=Decimal("0.4"), none=None)
    job = DLJobBuilder().config(value).config({"late": 1}).role("a").run("m.A").config({"own": True}).build()
    assert spec(job)["config"] == {
        "optim": {"lr": 0.1, "betas": [0.9, 0.99], "tags": ["x"]},
        "colour": "red",
        "path": "/data",
        "share": "0.4",
        "none": None,
        "late": 1,
    }
    assert spec(job)["roles"][0]["config"] == {"own": True}


def test_a_role_that_shares_a_device_keeps_its_cpus_and_its_memory() -> None:
    builder = DLJobBuilder().device_type("GPU").role("a").run("m.A").resource(cpu=3, memory="2Gi", custom={"disk": 1})
    (a, b) = builder.role("b").run("m.B").with_collocation("A", "b").build().model_dump()["spec"]["roles"]
    assert a["resources"] == {"cpu": "3", "memory": "2Gi", "custom": {"disk": "1"}}
    assert (a["accelerator"]["count"], b["accelerator"]["count"]) == ("0.5", "0.5")


def collocated(*names: str, **shares: float) -> dict[str, str]:
    builder = DLJobBuilder().device_type("GPU")
    for name in names:
        role = builder.role(name).run(f"m.{name}")
        if name in shares:
            role.resource(accelerator=shares[name], cpu=3)
    job = builder.with_collocation(*(n.upper() for n in names)).build()
    assert job.spec["collocations"][0]["level"] == "Device"
    return {w.name: w.accelerator or "" for w in job.workloads.values()}


def test_roles_without_shares_get_exact_parts() -> None:
    assert collocated("a", "b") == {"a": "0.5", "b": "0.5"}
    assert collocated("a", "b", "c") == {"a": "0.3334", "b": "0.3333", "c": "0.3333"}
    assert sum(Decimal(x) for x in collocated("a", "b", "c", "d", "e", "f", "g").values()) == 1


def test_given_shares_are_kept_and_the_rest_is_shared_out() -> None:
    assert collocated("a", "b", "c", a=0.4) == {"a": "0.4", "b": "0.3", "c": "0.3"}


def test_whole_devices_share_a_host_and_so_do_roles_without_devices() -> None:
    whole = DLJobBuilder().role("a").run("m.A").resource(gpu=1).role("b").run("m.B").resource(gpu=2)
    assert whole.with_collocation("a", "b").build().spec["collocations"][0]["level"] == "Host"
    cpu = DLJobBuilder().role("a").run("m.A").role("b").run("m.B").with_collocation("a", "b").build()
    assert cpu.spec["collocations"] == [{"name": "host-0", "roles": ["a", "b"], "level": "Host"}]


def test_level_and_name_of_a_collocation_can_be_said() -> None:
    builder = DLJobBuilder().role("a").run("m.A").role("b").run("m.B")
    job = builder.with_collocation("a", "b", level="separate", name="apart").build()
    assert job.spec["collocations"] == [{"name": "apart", "roles": ["a", "b"], "level": "Separate"}]


def test_collocate_all_takes_roles_that_are_declared_later() -> None:
    builder = DLJobBuilder().device_type("GPU").with_collocation_all("c")
    for name in "abc":
        builder.role(name).run(f"m.{name}")
    assert builder.build().spec["collocations"][0]["roles"] == ["a", "b"]


def test_collocate_all_leaves_out_a_role_without_devices() -> None:
    builder = DLJobBuilder().device_type("GPU")
    for name in "abc":
        builder.role(name).run(f"m.{name}").resource(accelerator=0 if name == "c" else 0.5)
    assert builder.with_collocation_all().build().spec["collocations"][0]["roles"] == ["a", "b"]


def test_an_rl_trainer_on_cpu_shares_no_device() -> None:
    builder = RLJobBuilder().device_type("GPU").trainer("m.T").resource(cpu=4).actor("m.A").rollout("m.R")
    assert builder.with_collocation_all().build().spec["collocations"][0]["roles"] == ["actor", "rollout"]


def test_an_rl_job_has_preset_roles_and_takes_others() -> None:
    builder = RLJobBuilder()
    builder.trainer("m.T").actor("m.A").critic("m.C").rollout("m.Ro").reference("m.Re").reward("m.Rw")
    builder.workload("judge", "m.J")
    drivers = {w.name for w in builder.build().workloads.values() if w.driver}
    assert drivers == {"trainer", "judge"}
    assert [w.backend for w in builder.build().workloads.values()].count("elastic") == 2


def test_role_type_names_and_values_are_the_same_role() -> None:
    for name in (RLRoleType.REWARD.name, RLRoleType.REWARD.value):
        assert list(DLJobBuilder().role(name).run("m.A").build().workloads) == ["reward"]


def test_an_rl_role_may_be_made_a_driver() -> None:
    assert RLJobBuilder().actor("m.A").driver().build().workloads["actor"].driver


def test_a_role_begun_apart_is_entered_by_the_job() -> None:
    builder = DLJobBuilder()
    builder.role("A")
    builder.run("m.A")
    builder.role("b")
    builder.train("train.py --lr 0.1")
    a, b = builder.build().workloads.values()
    assert (a.name, a.entrypoint, a.type) == ("a", {"class": "m.A"}, "Actor")
    assert (b.entrypoint, b.args, b.type) == ({"module": "train.py"}, ["--lr", "0.1"], "Elastic")


def test_a_draft_can_be_changed_and_does_not_change_its_builder() -> None:
    builder = DLJobBuilder().role("a").run("m::A").total(2).end()
    job = builder.build()
    job.workloads["a"].replicas = 4
    job.workloads["a"].env["X"] = "1"
    job.workloads["a"].comm_pre_check = False
    with pytest.raises(SpecError, match=r"comm"):
        job.manifest("j")
    job.workloads["a"].type = "Elastic"
    frozen = job.manifest("j").spec.roles[0]
    assert frozen.comm.pre_check is False
    assert (frozen.replicas, frozen.env[0].value, frozen.entrypoint.class_) == (4, "1", "m.A")
    assert builder.build().workloads["a"].replicas == 2


def test_freezing_names_every_problem_at_once() -> None:
    job = DLJobBuilder().role("Bad_Name").run("m.A").total(3).per_group(2).depends_on("ghost").build()
    with pytest.raises(SpecError) as caught:
        job.manifest("Also_Bad")
    assert len(caught.value.problems) >= 2


def test_derived_machines_hold_any_greedy_placement() -> None:
    builder = DLJobBuilder().node_num(2).device_type("CPU")
    builder.role("a").run("m.A").total(8).per_group(2).resource(cpu="500m", memory="1Gi")
    builder.role("b").run("m.B").resource(cpu=2)
    group = builder.build().spec["nodeGroups"][0]
    assert group == {"name": "workers", "replicas": 2, "cpu": "5", "memory": "6144Mi"}


def test_machines_described_to_the_builder_keep_their_sizes() -> None:
    builder = DLJobBuilder().node_num(2).device_per_node(4).cpu_per_node(32).memory_per_node("64Gi")
    group = builder.role("a").run("m.A").resource(npu=1).build().spec["nodeGroups"][0]
    assert group == {
        "name": "workers",
        "replicas": 2,
        "cpu": "32",
        "memory": "64Gi",
        "accelerator": {"type": "NPU", "count": 4},
    }


def test_machines_of_which_only_the_size_is_said_are_one():
    builder = DLJobBuilder().cpu_per_node(64).memory_per_node("512Gi").role("a").run("m.A").end()
    assert builder.build().spec["nodeGroups"] == [{"name": "workers", "replicas": 1, "cpu": "64", "memory": "512Gi"}]
    group = DLJobBuilder().memory_per_node("1Gi").role("a").run("m.A").resource(cpu=3).build().spec["nodeGroups"][0]
    assert group == {"name": "workers", "replicas": 1, "cpu": "3", "memory": "1Gi"}
    with pytest.raises(SpecError, match="garbage"):
        DLJobBuilder().memory_per_node("garbage").role("a").run("m.A").build().manifest()


def test_null_and_empty_fields_of_a_template_are_kept():
    pod = {"spec": {"securityContext": None, "nodeSelector": {}, "volumes": [{"name": "v", "emptyDir": {}}]}}
    cluster = {"spec": {"headGroupSpec": {"template": pod}}}
    builder = DLJobBuilder().head(template=pod).node_group("g", template=pod).ray_cluster_template(cluster)
    spec = builder.role("a").run("m.A").build().manifest().spec
    assert (spec.head.template, spec.node_groups[0].template, spec.ray_cluster_template) == (pod, pod, cluster)


def test_device_visibility_is_set_by_dlrovers_names_and_ours():
    builder = DLJobBuilder()
    builder.role("a").train("m.A").nproc_per_node(8).resource(accelerator=1).rank_based_gpu_selection()
    builder.role("b").run("m.B").resource(accelerator=2).visibility("Isolated").not_driver()
    builder.role("c").run("m.C").resource(accelerator=1).disable_ray_auto_visible_device().not_driver()
    builder.role("d").run("m.D").resource(cpu=1).visibility("Shared").not_driver()
    draft = builder.build()
    assert draft.workloads["a"].rank_based_gpu_selection is True
    assert draft.workloads["b"].rank_based_gpu_selection is False
    draft.workloads["b"].rank_based_gpu_selection = True
    a, b, c, d = draft.manifest().spec.roles
    assert [r.accelerator.visibility if r.accelerator else "none" for r in (a, b, c, d)] == [
        "Shared", "Shared", None, "none",
    ]  # fmt: skip
    switches = {v.name: v.value for v in c.env}
    assert switches["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] == "1"
    assert switches["RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"] == "1"


def test_variables_come_from_an_object_that_is_named() -> None:
    with pytest.raises(UsageError, match=r"env_from\(\) names neither a ConfigMap nor a Secret"):
        DLJobBuilder().env_from(prefix="P_")


def test_machines_for_a_quota_have_a_cpu_for_each_of_its_devices() -> None:
    builder = DLJobBuilder().node_num(1).device_type("GPU").device_per_node(8)
    job = builder.role("w").module("main").resource(accelerator=8).quota().build()
    assert spec(job)["nodeGroups"][0]["cpu"] == "8"
    assert plan(job.manifest()).node_groups["workers"].replicas == 1
