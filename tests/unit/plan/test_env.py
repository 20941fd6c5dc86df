from __future__ import annotations

import subprocess
import sys

import pytest
from plan_kit import job, role

from dljob.errors import SpecError
from dljob.plan.devices import DEVICES, all_left_alone, leaves_variable, visible_devices
from dljob.plan.env import rank_env
from dljob.plan.plan import plan
from dljob.spec import variables
from dljob.spec.loading.validate import check

TORCHRUN = {
    "RANK": "9",
    "WORLD_SIZE": "16",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "8",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "ROLE_RANK": "9",
    "ROLE_WORLD_SIZE": "16",
    "ROLE_NAME": "a",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_MAX_RESTARTS": "10",
    "TORCHELASTIC_RUN_ID": "f00",
    "TORCHELASTIC_ERROR_FILE": "/jobs/x/logs/a-9.5.error.json",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
}
STORE = {"MASTER_ADDR": "fe80::1", "MASTER_PORT": "29500", "TORCHELASTIC_USE_AGENT_STORE": "True"}
OURS = {
    "DLJOB_NAME": "job",
    "DLJOB_UID": "f00",
    "DLJOB_ROLE": "a",
    "DLJOB_RANK": "9",
    "DLJOB_REPLICAS": "16",
    "DLJOB_LOCAL_RANK": "1",
    "DLJOB_DIR": "/jobs/x",
    "DLJOB_INCARNATION": "5",
    "DLJOB_RESTART_REASON": "killed",
}


def env_of(kind, *, local_world_size=8, inherited=None, store="fe80::1:29500", **more):
    found = plan(job(role("a", 16, 8, type=kind, **more))).roles["a"]
    return rank_env(
        found,
        9,
        job="job",
        uid="f00",
        job_dir="/jobs/x",
        incarnation=5,
        local_rank=1,
        local_world_size=local_world_size,
        group_rank=1,
        group_world_size=2,
        world_size=16,
        generation=3,
        store=store,
        restart_reason="killed",
        error_file="/jobs/x/logs/a-9.5.error.json",
        inherited=inherited,
    )


def test_an_elastic_rank_finds_what_torchrun_would_give_it():
    assert env_of("Elastic") == {**OURS, **TORCHRUN, **STORE, "OMP_NUM_THREADS": "1"}


def test_what_a_rank_is_given_over_its_roles_own_value_is_refused_in_a_spec():
    """In the role's own list, in the job's and in Ray's; what the user's value wins over may be set."""
    for name in env_of("Elastic"):
        env = [{"name": name, "value": "theirs"}]
        wins = name in ("ROLE_NAME", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_SIGNALS_TO_HANDLE", "OMP_NUM_THREADS")
        for places in ({"env": env}, {"runtimeEnv": {"env_vars": {name: "theirs"}}}):
            assert is_refused(job(role("a", type="Elastic"), **places)) is not wins, name
        assert is_refused(job(role("a", type="Elastic", env=env))) is not wins, name
        assert is_refused(job(role("a", type="Actor", env=env))) is name.startswith("DLJOB_"), name


def is_refused(spec):
    try:
        check(spec)
    except SpecError as error:
        return "is set by dljob" in str(error)
    return False


def test_names_that_a_spec_may_set_itself():
    """Switches that ranks read, and the address of a world of the user's own."""
    for name in variables.SWITCHES:
        assert not is_refused(job(role("a", env=[{"name": name, "value": "1"}])))
    env = [{"name": "MASTER_ADDR", "value": "10.0.0.1"}]
    assert not is_refused(job(role("a", type="Elastic", comm={"backend": "None"}, env=env)))


def test_a_virtual_local_rank_is_0_for_torch_and_counts_for_us():
    """Only LOCAL_RANK changes, as in torch; its world's size on the node stays."""
    virtual = env_of("Elastic", comm={"virtualLocalRank": True})
    assert virtual == {**OURS, **TORCHRUN, **STORE, "OMP_NUM_THREADS": "1", "LOCAL_RANK": "0"}


def test_an_actor_finds_no_world_that_it_would_wait_for():
    assert env_of("Actor", store="") == {**OURS, "OMP_NUM_THREADS": "1"}


def test_without_a_store_no_master_address_is_set():
    assert env_of("Elastic", store="").keys() & STORE.keys() == set()


def test_a_sub_master_s_rank_makes_the_store_of_its_own_world():
    """torch takes the agent's word for it that somebody else serves the store."""
    with_one = env_of("Elastic", comm={"subMaster": "anybody"}).keys()
    assert STORE.keys() - with_one == {"TORCHELASTIC_USE_AGENT_STORE"}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"local_world_size": 1}, None),
        ({"local_world_size": 2}, "1"),
        ({"inherited": {"OMP_NUM_THREADS": "7"}}, None),
        ({"env": [{"name": "OMP_NUM_THREADS", "value": "4"}]}, "4"),
    ],
)
def test_the_number_of_threads_is_the_users_if_he_says_one(more, expected):
    assert env_of("Elastic", **more).get("OMP_NUM_THREADS") == expected


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, "1"),
        ({"inherited": {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}}, None),
        ({"env": [{"name": "TORCH_NCCL_ASYNC_ERROR_HANDLING", "value": "3"}]}, "3"),
        ({"entrypoint": {"class": "a.B"}}, None),
    ],
)
def test_a_script_finds_torchruns_way_with_errors_of_nccl_where_nobody_said_another(more, expected):
    script = {"entrypoint": {"module": "train.py"}, **more}
    assert env_of("Elastic", **script).get("TORCH_NCCL_ASYNC_ERROR_HANDLING") == expected


def test_role_name_run_id_and_signals_of_the_user_are_kept():
    """`dljob torchrun` says them as they were given: names of roles and jobs are written in small letters."""
    said = {"ROLE_NAME": "Trainer_A", "TORCHELASTIC_RUN_ID": "Exp 7", "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGUSR1"}
    found = env_of("Elastic", env=[{"name": name, "value": value} for name, value in said.items()])
    assert found.items() >= said.items()


def test_the_roles_own_variables_are_there_but_cannot_lie_about_the_rank():
    found = env_of("Elastic", env=[{"name": "X", "value": "1"}, {"name": "RANK", "value": "77"}])
    assert found["X"] == "1"
    assert found["RANK"] == "9"


def test_each_kind_of_device_is_shown_by_its_own_variable():
    shown = {kind: visible_devices(d.visible_env, ("0", "1", "3")) for kind, d in DEVICES.items()}
    assert shown == {
        "GPU": {"CUDA_VISIBLE_DEVICES": "0,1,3"},
        "NPU": {"ASCEND_RT_VISIBLE_DEVICES": "0,1,3"},
        "TPU": {"TPU_VISIBLE_CHIPS": "0,1,3"},
        "HPU": {"HABANA_VISIBLE_MODULES": "0,1,3"},
        "Neuron": {"NEURON_RT_VISIBLE_CORES": "0,1,3"},
        "Custom": {},
    }


def test_modules_that_hosts_import_do_not_import_pydantic():
    """The spec's models take longer to import than a host may take to start."""
    modules = "dljob.plan.env, dljob.plan.devices, dljob.plan.model, dljob.raycluster.pods"
    code = f"import sys, {modules}; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("chips", "bounds"), [(("3",), "1,1,1"), (("0", "1"), "1,2,1"), (("0", "1", "2", "3"), None)])
def test_part_of_a_hosts_tpu_chips_are_a_host_of_their_own(chips, bounds):
    env = visible_devices("TPU_VISIBLE_CHIPS", chips)
    assert env.pop("TPU_VISIBLE_CHIPS") == ",".join(chips)
    expected = {"TPU_CHIPS_PER_HOST_BOUNDS": bounds, "TPU_HOST_BOUNDS": "1,1,1"} if bounds else {}
    assert env == expected


def test_frameworks_may_hand_out_devices_themselves():
    assert visible_devices("", ("0",)) == {}
    assert leaves_variable("CUDA_VISIBLE_DEVICES", {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"})
    assert leaves_variable("RBLN_DEVICES", {"RAY_EXPERIMENTAL_NOSET_RBLN_RT_VISIBLE_DEVICES": "true"})
    assert not leaves_variable("CUDA_VISIBLE_DEVICES", {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "0"})
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"):
        assert leaves_variable(variable, all_left_alone())
        assert not leaves_variable(variable, {})
