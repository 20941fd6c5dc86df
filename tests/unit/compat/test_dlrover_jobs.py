"""Jobs of DLRover's builders as dljob's: what each setting becomes, and what is refused."""

from __future__ import annotations

import argparse
import json
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dljob.compat.dlrover_api import config, submit
from dljob.compat.dlrover_api.builder import DLJobBuilder, RLJobBuilder
from dljob.compat.dlrover_api.draft import draft_of, notes
from dljob.compat.dlrover_api.models import (
    DLConfig,
    DLJob,
    ElasticWorkloadDesc,
    ExecutionResult,
    JobConfig,
    ResourceDesc,
    RLRoleType,
    SimpleWorkloadDesc,
    get_entrypoint_type,
)
from dljob.compat.dlrover_api.payload import Payload, payload_of, role_name
from dljob.compat.dlrover_api.submit import PrimeMaster
from dljob.errors import SpecError, UsageError
from dljob.spec.variables import DLROVER


def spec(job: DLConfig, **options: Any) -> dict[str, Any]:
    """The job's spec, validated, with roles by name."""
    draft = draft_of(JobConfig(job_name="Some_Job", dl_config=job, **options))
    assert draft.manifest().metadata.name == "some-job"
    made = draft.model_dump()["spec"]
    return {**made, "roles": {role["name"]: role for role in made["roles"]}}


def test_the_tutorial_s_single_role_is_a_torch_role() -> None:
    args = argparse.Namespace(data_dir="data/nanogpt/", batch_size=16)
    builder = DLJobBuilder().config(args).node_num(2).device_per_node(2).device_type("GPU")
    job = builder.train("examples.train.run").nnodes(2).nproc_per_node(2).end().build()
    made = spec(job)
    role = made["roles"]["elastic"]
    assert (role["type"], role["replicas"], role["replicasPerGroup"]) == ("Elastic", 4, 2)
    assert role["accelerator"] == {"count": "1"} | {"type": "GPU"}
    assert made["nodeGroups"][0]["replicas"] == 2
    assert made["config"] == {"data_dir": "data/nanogpt/", "batch_size": 16}
    assert role["entrypoint"] == {"class": "dljob.compat.dlrover_api.rank.DLRoverRank"}


def test_the_tutorial_s_roles_keep_their_resources() -> None:
    builder = DLJobBuilder().config({})
    builder.role("trainer").train("m.trainer.run").total(2).resource(gpu=1).end()
    builder.role("rollout").run("m.rollout.run").total(4).resource(cpu=4, memory=8192).end()
    builder.workload("reward", "m.reward.run").total(1).resource(cpu=2, user_defined={"ssd": 1})
    made = spec(builder.build())["roles"]
    assert made["trainer"]["accelerator"] == {"count": "1", "type": "GPU"}
    assert made["rollout"]["resources"] == {"cpu": "4", "memory": "8192Mi"}
    assert made["reward"]["resources"] == {"cpu": "2", "custom": {"ssd": "1"}}


def test_a_script_with_arguments_runs_behind_the_redirection() -> None:
    job = DLJobBuilder().device_type("CPU").train("train.py --lr '1 2'").build()
    role = spec(job)["roles"]["elastic"]
    assert role["entrypoint"] == {"module": "dljob.compat"}
    assert role["args"] == ["--dlrover", "train.py", "--lr", "1 2"]
    assert role["resources"] == {"cpu": "1"}


def test_collocated_roles_share_devices_in_any_case_of_their_names() -> None:
    builder = RLJobBuilder().node_num(1)
    builder.trainer("p.Trainer").resource(cpu=2)
    builder.actor("p.Actor").resource(accelerator=1, cpu=3).nnodes(1).nproc_per_node(2)
    builder.critic("p.Critic").nnodes(1).nproc_per_node(2)
    builder.role(RLRoleType.REWARD.name).train("p.Reward").nproc_per_node(2).not_driver()
    job = builder.with_collocation("actor", "Critic", "REWARD").build()
    made = spec(job)
    assert made["collocations"] == [{"name": "device-0", "roles": ["actor", "critic", "reward"], "level": "Device"}]
    assert [made["roles"][r]["accelerator"]["count"] for r in ("actor", "critic", "reward")] == ["0.33"] * 3
    assert [(one.group, one.resource.accelerator) for one in job.workloads.values()] == [
        (None, 0),
        *[("collocation_0", 0.33)] * 3,
    ]
    assert made["roles"]["actor"]["resources"]["cpu"] == "3"
    assert made["roles"]["trainer"]["resources"] == {"cpu": "2", "memory": "8192Mi"}
    assert [made["roles"][r].get("driver", True) for r in ("trainer", "actor")] == [True, False]


def test_a_workload_without_a_resource_is_placed_without_one() -> None:
    job = DLConfig(workloads={"a": SimpleWorkloadDesc(entry_point="a.b"), "b": ElasticWorkloadDesc(entry_point="a.c")})
    assert job.workloads["a"].resource.is_empty()
    made = spec(job)["roles"]
    assert [("resources" in one, "accelerator" in one) for one in made.values()] == [(False, False)] * 2
    assert payload_of(job, "x").workload("b") == job.workloads["b"], "as its ranks read it"


def test_a_collocated_role_keeps_what_is_edited_after_build_and_travels_as_json() -> None:
    builder = DLJobBuilder().role("a").train("a.b").role("b").run("a.c").resource(cpu=2, memory=5)
    job = builder.with_collocation("a", "b").build()
    assert job.workloads["b"].resource.model_dump(include={"cpu", "memory", "accelerator"}) == {
        "cpu": 2,
        "memory": 5,
        "accelerator": 0.5,
    }
    job.workloads["a"].resource.accelerator = 0.25
    job.node_number = 2
    again = JobConfig.model_validate_json(JobConfig(job_name="x", dl_config=job).model_dump_json()).dl_config
    for one in (spec(job), spec(again)):
        assert one["collocations"] == [{"name": "device-0", "roles": ["a", "b"], "level": "Device"}]
        assert [one["roles"][name]["accelerator"]["count"] for name in ("a", "b")] == ["0.25", "0.5"]


def test_six_roles_on_one_device_get_parts_that_fit_on_it() -> None:
    builder = DLJobBuilder()
    for name in "abcdef":
        builder.role(name).run("a.b")
    job = builder.with_collocation_all().build()
    assert {one.resource.accelerator for one in job.workloads.values()} == {0.17}
    shares = [Decimal(one["accelerator"]["count"]) for one in spec(job)["roles"].values()]
    assert sum(shares) == 1


def test_verl_s_roles_are_collocated_but_for_the_trainer() -> None:
    builder = DLJobBuilder().global_env({"A": "1"}).node_num(1).device_per_node(2).no_setup_process_group()
    builder.role("actor_rollout").train("workers.Actor").total(2)
    builder.role("critic").train("workers.Critic").total(2)
    builder.role("trainer").run("workers.Trainer").resource(cpu=4)
    made = spec(builder.with_collocation_all("trainer").skip_node_check().build())
    assert made["collocations"][0]["roles"] == ["actor-rollout", "critic"]
    assert made["roles"]["critic"]["comm"] == {"initProcessGroup": False, "preCheck": False}
    assert made["env"][0] == {"name": "A", "value": "1"}


def test_workloads_are_edited_between_build_and_submit() -> None:
    job = DLJobBuilder().device_type("CPU").role("A").train("a.b").env({"SECRET": "hush"}).build()
    work = job.workloads["A"]
    assert isinstance(work, ElasticWorkloadDesc)
    work.comm_pre_check, work.comm_backend, work.comm_timeout_s = False, "gloo", 60
    work.max_restart, work.is_driver = 3, True
    made = spec(job, job_max_restart=2, failover_exec_strategy=1, worker_isolation_schedule_resource="W")
    role = made["roles"]["a"]
    assert role["comm"] == {"backend": "gloo", "timeoutSeconds": 60, "preCheck": False}
    assert role["restartPolicy"] == {"maxRestarts": 3, "level": "Job"}
    assert role["resources"]["custom"] == {"W": "1"}
    assert made["faultTolerance"] == {"maxRestarts": 2}
    (payload,) = [one["value"] for one in made["env"] if one["name"] == DLROVER]
    assert "hush" not in payload
    with pytest.raises(ValueError, match="comm_pre_chek"):
        work.comm_pre_chek = True  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


def test_settings_without_effect_are_noted_when_they_are_given() -> None:
    job = DLJobBuilder().device_type("CPU").role("a").run("a.b").resource(cpu=1, disk=5).build()
    job.workloads["a"].per_node_max_failure = 1
    said = dict(notes(JobConfig(job_name="x", dl_config=job, master_cpu=1, master_memory=128)))  # type: ignore[call-arg]  # pyright: ignore
    assert list(said) == ["master_cpu", "master_mem", "disk of role a", "per_node_max_failure of role a"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DLJobBuilder().run("a.b"), "without a role"),
        (lambda: DLJobBuilder().role("a").run("a.b").role("a").run("c.d"), "already defined"),
        (lambda: DLJobBuilder().role("a").run("a.b").resource(gpus=1), "no keyword 'gpus'"),
        (lambda: DLJobBuilder().role("a").run("a.b").resource(gpu=1, accelerator=2), "says one thing twice"),
        (lambda: DLJobBuilder().role("a").run("a b").build(), "neither a dotted path"),
        (lambda: DLJobBuilder().role("a").run("a.b").total(3).per_group(2).build(), "must be divisible by per_group 2"),
        (lambda: DLJobBuilder().build(), "workloads"),
        (lambda: DLJobBuilder().role("a").run("a.b").with_collocation("a", "z").build(), "role 'z' is not defined"),
        (
            lambda: (
                DLJobBuilder()
                .role("a")
                .run("a.b")
                .role("b")
                .run("a.b")
                .role("c")
                .run("a.b")
                .with_collocation("a", "b")
                .with_collocation("b", "c")
                .build()
            ),
            "'b' has already been assigned to collocation_0",
        ),
        (lambda: SimpleWorkloadDesc(entry_point="a.b", resource=ResourceDesc()), "Resource must not be empty"),
        (lambda: SimpleWorkloadDesc(entry_point="a.b", rank_based_gpu_selection=True), "needs a per_group above 1"),
        (lambda: DLJobBuilder().role("a_b").run("a.b").role("a-b").run("a.b").build(), "both 'a-b'"),
        (lambda: DLJobBuilder().role("a").run("a.b").total(0).build(), "no role of the job has a worker"),
        (lambda: DLJobBuilder().device_type("XPU").role("a").run("a.b").build(), "accelerator_type"),
        (lambda: DLJobBuilder().config({"a": b"x"}).role("a").run("a.b").build(), "holds a bytes"),
        (lambda: RLJobBuilder().trainer("a.b").build(), "needs its ACTOR role"),
        (lambda: DLJobBuilder().role("a").run("a.b").nods(1), "has 'nods'"),
        (lambda: DLJobBuilder().by_dlrover_run_cmd("mpirun x.py"), "no launcher"),
        (lambda: DLJobBuilder().by_dlrover_run_cmd("torchrun --nnodes=1:2 x.py"), "one size"),
    ],
)
def test_a_wrong_job_says_what_is_wrong(make: Any, words: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # As DLRover's users catch them; a misspelt method is no attribute.
    with pytest.raises((ValueError, AttributeError), match=words):
        make()


def test_a_wrong_job_is_an_error_of_dljobs_too() -> None:
    with pytest.raises(SpecError) as raised:
        RLJobBuilder().actor("a.c").role("a" * 80).run("a.b").build()
    assert isinstance(raised.value, ValueError)
    assert raised.value.problems
    copied = pickle.loads(pickle.dumps(raised.value))  # noqa: S301 - our own
    assert (type(copied), str(copied)) == (type(raised.value), str(raised.value))
    job = DLJobBuilder().device_type("CPU").role("a").run("a.b").build()
    job.workloads["a"].total = 0
    for run in (job.submit, lambda: PrimeMaster.create(JobConfig(job_name="x", dl_config=job))):
        with pytest.raises(UsageError, match="no role of the job has a worker") as refused:
            run()
        assert isinstance(refused.value, ValueError)


def test_a_command_line_defines_the_job_with_all_its_arguments() -> None:
    line = "dlrover-run --nnodes=1 --nproc_per_node=2 --max-restarts 4 --accelerator GPU run.py --test 0"
    job = DLJobBuilder().by_dlrover_run_cmd(line).build()
    role = spec(job)["roles"]["elastic"]
    assert (role["replicas"], role["replicasPerGroup"], role["comm"]) == (2, 2, {"preCheck": False})
    assert role["args"] == ["--dlrover", "run.py", "--test", "0"]
    assert role["accelerator"]["count"] == "1"
    assert role["restartPolicy"] == {"maxRestarts": 4}
    assert job.user_config == {}


def test_the_sum_of_resources_and_the_groups_are_as_in_dlrover() -> None:
    both = ResourceDesc(cpu=1, mem=2, ud_resource={"x": 1}) + ResourceDesc(gpu=1)  # type: ignore[call-arg]  # pyright: ignore
    assert (both * 2).model_dump() == {"cpu": 2, "memory": 4, "disk": 0, "accelerator": 2, "user_defined": {"x": 2}}
    assert ResourceDesc.get_or_default({}).accelerator == 1
    job = DLJob.model_validate(
        {
            "workloads": {
                "a": {"entrypoint": "a.b", "num": 2, "res": {"cpu": 1}, "group": "g"},
                "b": {"entrypoint": "a.b", "num": 2, "res": {"cpu": 2}, "group": "g", "comm_backend": "gloo"},
            }
        }
    )
    assert isinstance(job.workloads["a"], SimpleWorkloadDesc)
    assert isinstance(job.workloads["b"], ElasticWorkloadDesc)
    assert [(one.num, one.workloads, one.resource.cpu) for one in job.workload_group] == [(2, ["a", "b"], 3)]
    assert spec(job)["collocations"][0]["level"] == "Host"


@pytest.fixture(params=["with omegaconf", "without omegaconf"])
def without_omegaconf(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "without omegaconf":
        monkeypatch.setattr(config, "find_spec", dict[str, None]().get)
    return request.param == "without omegaconf"


@pytest.mark.usefixtures("without_omegaconf")
@pytest.mark.parametrize("named", [dict, argparse.Namespace])
def test_a_job_s_config_is_printed_as_json_whatever_it_was_made_of(named: Any) -> None:
    value = named(lr=1, nested={"path": Path("/x"), "args": argparse.Namespace(a=(1, 2))})
    job = DLJobBuilder().config(value).role("a").run("a.b").resource(cpu=1).build()
    job.workloads["a"].config = {"kind": RLRoleType.ACTOR, "args": argparse.Namespace(b=None)}
    printed = json.loads(job.model_dump_json(indent=2))
    assert printed["user_config"] == {"lr": 1, "nested": {"path": "/x", "args": {"a": [1, 2]}}}
    assert printed["workloads"]["a"]["config"] == {"kind": "ACTOR", "args": {"b": None}}
    assert spec(DLJob.model_validate(printed))["config"] == spec(job)["config"]


def test_the_driver_runs_the_job_that_travels_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    config = JobConfig(job_name="x", dl_config=DLConfig(workloads={"a": SimpleWorkloadDesc(entry_point="a.b")}))
    runs: list[JobConfig] = []
    monkeypatch.setattr(submit, "submit", lambda config, blocking: runs.append(config) or 3)
    assert submit.main([config.model_dump_json()]) == 3
    assert runs == [config]
    with pytest.raises(ValueError, match="an argument is required"):
        submit.main([])


def test_entrypoints_have_one_of_two_forms() -> None:
    found = [get_entrypoint_type(text) for text in ("a.b", "x.py --a", "./run", "a", "a.b c")]
    assert [one.value if one else None for one in found] == ["MODULE_FUNC", "PY_CMD", "PY_CMD", None, None]


def test_results_are_those_of_both_versions() -> None:
    assert ExecutionResult(ExecutionResult.FAIL).is_failure
    assert ExecutionResult().is_success
    assert ExecutionResult(timestamp=5).timestamp == 5


def test_names_come_back_as_the_user_wrote_them() -> None:
    known = Payload("J", "CPU", {"actor_rollout": {"backend": "elastic", "entry_point": "a.b", "resource": {"cpu": 1}}})
    assert role_name("ACTOR_Rollout") == "actor-rollout"
    assert known.given_name("actor-rollout") == "actor_rollout"
    assert isinstance(known.workload("actor-rollout"), ElasticWorkloadDesc)
    assert known.workload("other").entry_point == "other.py"


def test_config_values_are_converted_as_dlrover_does(
    monkeypatch: pytest.MonkeyPatch, *, without_omegaconf: bool
) -> None:
    made: Any = {"a": "None", "b": "7", "c": "1.5", "d": "x", "e": [{"f": "2"}]}
    config.convert_str_values(made)
    assert made == {"a": None, "b": 7, "c": 1.5, "d": "x", "e": [{"f": 2}]}
    held = config.args_2_omega_conf(argparse.Namespace(lr={"a": [{"b": 1}]}))
    assert held.lr.a[0].b == 1
    assert config.omega_conf_2_args(held).lr.a[0].b == 1
    with pytest.raises(AttributeError, match="has no 'mu'" if without_omegaconf else "Missing key mu"):
        held.mu  # noqa: B018
    monkeypatch.setenv("DLROVER_UNIFIED_MASTER_CPU", "3")
    assert config.read_dict_from_envs("DLROVER_UNIFIED_")["master_cpu"] == "3"
