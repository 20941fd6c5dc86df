"""Every field of the spec can be set from Python."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from dljob.api.builder import DLJobBuilder
from dljob.spec.model import DLJobManifest

CHIP = {"type": "Custom", "count": 8, "resourceName": "example.com/chip", "rayResource": "chip"}
POD = {"spec": {"volumes": [{"name": "scratch", "emptyDir": {}}]}}
CONSTANT = {"DLJobManifest.api_version", "DLJobManifest.kind"}


def everything() -> DLJobManifest:
    """A job in which each setter was used."""
    builder = (
        DLJobBuilder()
        .name("all").namespace("ml").label("team", "a").annotation("note", "b")
        .image("example/image:1").ray_version("2.60.0").working_dir("src").code_config_map("code")
        .image_pull("Always", secrets=["pull"])
        .env_from(config_map="c", prefix="P_").env_from(secret="s", optional=True)
        .runtime_env({"pip": ["einops"]}).managed_by("kueue.x-k8s.io/multikueue").suspend()
        .checkpoint("/ckpt", claim="ckpt", save_on_exit=False, peer_copy=False, grace_seconds=60, every_steps=9, cut_deadline_seconds=9)  # noqa: E501
        .network_policy()
        .scheduling(queue="research", priority_class="high", labels={"volcano.sh/queue-name": "q"})
        .backend("other", option=1)
        .collective_backend("MYCCL", "acme.Group")
        .collective_group("w", "a", "b", backend="MYCCL", timeout_seconds=60, on_restart="Fail")
        .config({"lr": 1}).global_env({"A": "1"})
        .node_group("big", replicas=4, min_replicas=3, max_replicas=5, cpu=32, memory="64Gi",
                    shared_memory="8Gi", image="engine:1", labels={"rack": "r1"},
                    accelerator=CHIP, template=POD)
        .head(cpu=2, memory="8Gi", template=POD).ray_cluster_template({"metadata": {"labels": {"team": "rl"}}})
        .master(cpu=1, memory="2Gi", max_restarts=3, create_timeout_seconds=60,
                journal_path="/journal", journal_claim="journal", placement="Head",
                standby="Auto")
        .gcs_fault_tolerance(redis="redis:6379", redis_password=("redis", "password"))
        .fault_tolerance(max_restarts=5, max_cluster_restarts=1, window_seconds=600, lease_seconds=20)
        .backoff(initial_seconds=2, multiplier=3, max_seconds=30)
        .spares(processes_per_node=1, nodes=1)
        .lost_nodes(
            action="Ignore",
            freeze_seconds=5,
            unreachable_seconds=40,
            exclude_seconds=60,
            pending_timeout_seconds=90,
            max_failures=2,
            failure_domain_label="rack",
            domain_failures=3,
            domain_window_seconds=120,
            relauncher="cloud",
        )
        .resizing(shrink_after_seconds=20, grow_after_seconds=600)
        .hung_ranks(action="Report", idle_seconds=30, busy_seconds=300)
        .rule("r", action="RestartRole", roles=("A",), on_reasons=("Unknown",), on_exit_codes=(3,), max_attempts=2,
              escalate_to="RestartJob", counts_towards_limit=False)
        .known_cause("fabric", on_log="EFA: * unreachable", reason="Network")
        .cleanup_policy("Retain").ttl_after_finished(60)
        .progress_metrics("loss", "reward").active_deadline(3600).pre_running_deadline(60)
    )  # fmt: skip
    (
        builder.role("a").train("pkg.A").args("--x", 1).nnodes(2).nproc_per_node(2)
        .env({"B": 2}, C="3").config({"own": True}).node_group("big").not_driver().depends_on("B", "Complete").nice(-5)
        .resource(accelerator=0.5, cpu="500m", memory="1Gi", custom={"disk": 0.5}).visibility("Isolated")
        .auto(cpu=(0.5, "4"), memory=("1Gi", "1536Mi"))
        .comm(backend="gloo", timeout_seconds=60, init_process_group=False, pre_check=False, virtual_local_rank=True)
        .restart(level="Role", max_restarts=2, memory_factor="1.2", max_memory="2Gi", along=["C"])
    )  # fmt: skip
    builder.role("b").module("train.py").python("/opt/env/bin/python").total(2).resource(accelerator="0.5")
    for task in ("chief", "ps", "worker"):
        server = builder.role(f"tf-{task}").module("server.py").tf(task)
        if task != "chief":
            server.not_driver()
    builder.role("c").command("sleep", "1").total(2).elastic(1, 3).comm(sub_master="ring")
    (
        builder.role("q").module("main.py").quota().port("http").port("rpc", 9000).service()
        .probe("readiness", port="http", path="/health", scheme="HTTPS", headers={"A": "b"}, initial_delay_seconds=1,
               period_seconds=2, timeout_seconds=3, success_threshold=2, failure_threshold=4)
    )  # fmt: skip
    builder.role("w").run("m.D").not_driver().total(2).bounds(1, 3).autoscale(
        "queue", name="q", target=4, cooldown_seconds=30
    )
    builder.role("v").module("m.py").drain(signal="SIGUSR1", path="/drain", port=80, timeout_seconds=5)
    builder.role("z").module("m.py").weights(
        "policy", load_path="/load", verify_path="/sum", port=80, max_lag=2, min_ready=3, timeout_seconds=5
    )
    builder.role("x").module("m.py").weights("policy", load_command=["load"], verify_command=["sum"])
    builder.role("y").run("m.D").weights("policy", load_method="load", verify_method="sum")
    builder.role("t").run("m.D").port("http").probe("readiness", port="http").probe("liveness", command=["true"])
    builder.role("u").run("m.D").probe("startup", port=80).probe("liveness", port=80, grpc="s")
    if "annotations" in role_fields():
        builder.role("d").run("m.D").annotation("scheduling.dljob.io/label-selector", '{"rack": "r1"}')
    draft = builder.with_collocation("a", "b", name="pair").build()
    draft.workloads["a"].accelerator_type = "Custom"
    return draft.manifest()


def elsewhere() -> DLJobManifest:
    """What cannot stand beside the rest: a job on a RayCluster that is there, and is near no Custom device."""
    builder = DLJobBuilder().name("there").ray_cluster("shared")
    builder.witness(
        "hang",
        preset="dcgm",
        port=9000,
        url_path="/m",
        metric="m",
        means="Hang",
        when="Below",
        value="0.5",
        for_seconds=9,
        act=True,
        dump={"port": 9001, "urlPath": "/dump", "body": "{}"},
    )
    builder.role("a").train("pkg.A").resource(gpu=1).numa_binding("Node").device_memory_limit("None")
    return builder.build().manifest()


def on_a_claim() -> DLJobManifest:
    """What cannot stand beside Redis."""
    builder = DLJobBuilder().name("kept").gcs_fault_tolerance(claim="gcs")
    builder.role("a").train("pkg.A")
    return builder.build().manifest()


def role_fields() -> set[str]:
    return {name.split(".")[1] for name in declared(DLJobManifest) if name.startswith("Role.")}


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from models_in(part)


def declared(model: type[BaseModel]) -> set[str]:
    """Model.field of the whole tree."""
    found: set[str] = set()
    for name, field in model.model_fields.items():
        found.add(f"{model.__name__}.{name}")
        for inner in models_in(field.annotation):
            found |= declared(inner)
    return found


def differing(value: object) -> set[str]:
    """Model.field of everything in a tree that is not at its default."""
    found: set[str] = set()
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            own = getattr(value, name)
            if field.is_required() or own != field.get_default(call_default_factory=True):
                found.add(f"{type(value).__name__}.{name}")
            found |= differing(own)
    elif isinstance(value, tuple | list):
        for item in value:
            found |= differing(item)
    return found


def test_every_field_has_a_setter() -> None:
    there = differing(everything()) | differing(elsewhere()) | differing(on_a_claim())
    assert declared(DLJobManifest) - CONSTANT - there == set()
