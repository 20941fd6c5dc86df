"""The two listings of the talk, verbatim but for the import and the placeholders."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from dljob.api.builder import DLJobBuilder
from dljob.api.job import DLJob
from dljob.api.rl import RLJobBuilder, RLRoleType
from dljob.compat.dlrover_api import builder as dlrover

P = "examples.unified.rl.openrlhf.ppo"


def args_2_omega_conf(args: Namespace) -> DictConfig:
    return OmegaConf.create({**vars(args), "ref_model": "${pretrain}"})


@pytest.fixture
def args() -> Namespace:
    return Namespace(
        actor_num_nodes=1,
        actor_num_gpus_per_node=8,
        critic_num_nodes=1,
        critic_num_gpus_per_node=8,
        vllm_num_engines=4,
        ref_num_nodes=1,
        ref_num_gpus_per_node=8,
        init_kl_coef=0.01,
        reward_num_nodes=1,
        reward_num_gpus_per_node=8,
        skip_node_check=True,
        dry_run=True,
        job_name="ppo",
        pretrain="OpenRLHF/Llama-3-8b-sft-mixture",
    )


def openrlhf_ppo(args: Namespace, builder_class: Any = RLJobBuilder) -> Any:
    # 1. Create a job builder
    builder = builder_class().config(args_2_omega_conf(args))

    # 2. Define workloads / roles
    builder.trainer(f"{P}.ppo_trainer.PPOTrainerActor").resource(cpu=4)
    (
        builder.actor(f"{P}.ppo_actor.PolicyModelActor")
        .resource(accelerator=1)
        .nnodes(args.actor_num_nodes)
        .nproc_per_node(args.actor_num_gpus_per_node)
    )
    (
        builder.critic(f"{P}.ppo_critic.CriticModelRayActor")
        .resource(accelerator=0.4)
        .nnodes(args.critic_num_nodes)
        .nproc_per_node(args.critic_num_gpus_per_node)
    )
    (
        builder.rollout(f"{P}.ppo_rollout.VLLMActor")
        .resource(accelerator=1)
        .total(args.vllm_num_engines)
    )  # fmt: skip

    # optional reference role
    if args.init_kl_coef != 0:
        (
            builder.role(RLRoleType.REFERENCE.name)
            .train(f"{P}.ppo_reference.PP0ReferenceActor")
            .resource(accelerator=0.4)
            .nnodes(args.ref_num_nodes)
            .nproc_per_node(args.ref_num_gpus_per_node)
        )
    (
        builder.role(RLRoleType.REWARD.name)
        .train(f"{P}.ppo_reward.RewardModelRayActor")
        .resource(accelerator=0.4)
        .nnodes(args.reward_num_nodes)
        .nproc_per_node(args.reward_num_gpus_per_node)
    )

    # 3. Build and submit
    job = builder.build()
    # optional modifications before submission
    if args.skip_node_check:
        for workload in job.workloads.values():
            if workload.backend == "elastic":
                workload.comm_pre_check = False
    print(job.model_dump_json(indent=2))
    if not args.dry_run:
        job.submit(args.job_name)
    return job


def test_the_ppo_listing_builds_the_job_it_describes(args: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    job = openrlhf_ppo(args)

    printed = json.loads(capsys.readouterr().out)
    roles = {r["name"]: r for r in printed["spec"]["roles"]}
    assert list(roles) == ["trainer", "actor", "critic", "rollout", "reference", "reward"]
    assert {n for n, r in roles.items() if r.get("driver", True)} == {"trainer"}
    assert {n for n, r in roles.items() if r.get("type") == "Elastic"} == {"actor", "critic", "reference", "reward"}
    assert roles["critic"]["accelerator"] == {"count": "0.4"}
    assert roles["actor"] == {
        "name": "actor",
        "type": "Elastic",
        "entrypoint": {"class": f"{P}.ppo_actor.PolicyModelActor"},
        "replicas": 8,
        "replicasPerGroup": 8,
        "accelerator": {"count": "1"},
        "driver": False,
        "comm": {"preCheck": False},
    }
    assert roles["rollout"]["replicas"] == 4
    assert roles["trainer"]["resources"] == {"cpu": "4"}
    assert printed["spec"]["config"]["ref_model"] == "OpenRLHF/Llama-3-8b-sft-mixture"
    assert job.manifest("ppo").metadata.name == "ppo"


def test_the_ppo_listing_prints_the_same_roles_by_dlrovers_names(
    args: Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    openrlhf_ppo(args, dlrover.RLJobBuilder)

    printed = json.loads(capsys.readouterr().out)
    assert printed["user_config"] == {**vars(args), "ref_model": args.pretrain}
    assert list(printed["workloads"]) == ["TRAINER", "ACTOR", "CRITIC", "ROLLOUT", "REFERENCE", "REWARD"]
    assert printed["workloads"]["CRITIC"]["resource"]["accelerator"] == 0.4
    assert printed["workloads"]["ACTOR"]["comm_pre_check"] is False


def test_the_ppo_listing_leaves_out_the_reference_without_a_kl_term(args: Namespace) -> None:
    args.init_kl_coef = 0
    assert "reference" not in openrlhf_ppo(args).workloads


def test_the_ppo_listing_submits_under_the_name_it_is_given(args: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    monkeypatch.setattr(DLJob, "submit", lambda _self, name: names.append(name))
    args.dry_run = False
    openrlhf_ppo(args)
    assert names == ["ppo"]


def test_the_api_listing_builds_its_job() -> None:
    worker_node_num, device_per_worker_node, log_level = 2, 8, "INFO"

    dl_job = (
        DLJobBuilder()
        .node_num(worker_node_num)  # 整体的节点数量
        .device_per_node(device_per_worker_node)  # 单位节点的设备数量
        .device_type("GPU")  # 设备类型
        .config({})  # 用户自定义的全局配置
        .global_env({"DLROVER_LOG_LEVEL": log_level})  # 用户自定义的全局环境变量
        .role("policy").run("pkg.Policy")  # 任意负载
        .resource(accelerator=1)  # 负载的自定义资源
        .total(8)  # 负载的总数
        .per_group(4)  # 负载的组内数量
        .role("judge").run("pkg.Judge")  # 任意负载
        .workload("role", "pkg.entrypoint")  # 任意负载 (换个形式表达)
        .build()
    )  # fmt: skip

    spec = dl_job.model_dump()["spec"]
    assert spec["nodeGroups"] == [
        {"name": "workers", "replicas": 2, "cpu": "9", "accelerator": {"type": "GPU", "count": 8}}
    ]
    assert spec["env"] == [{"name": "DLROVER_LOG_LEVEL", "value": "INFO"}]
    policy, judge, role = spec["roles"]
    assert policy["accelerator"] == {"type": "GPU", "count": "1"}
    assert (policy["replicas"], policy["replicasPerGroup"]) == (8, 4)
    assert judge == {"name": "judge", "entrypoint": {"class": "pkg.Judge"}}
    assert role == {"name": "role", "entrypoint": {"class": "pkg.entrypoint"}}
    frozen = dl_job.manifest()
    assert [r.name for r in frozen.spec.roles] == ["policy", "judge", "role"]
