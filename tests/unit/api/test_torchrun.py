"""What a torchrun command means as a DLJob."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dljob.api import torchrun, torchrun_line
from dljob.api.torchrun import Site
from dljob.errors import UsageError
from dljob.plan.plan import plan
from dljob.spec.loading.load import parse


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    for name in ("train.py", "sub/Train_it.py", "start"):
        (tmp_path / name).write_text("")
    return tmp_path


def site(folder: Path, *, local: bool = True, **devices: int) -> Site:
    return Site(local, 4, devices, folder)


def meant(words: str, where: Site) -> torchrun.TorchrunJob:
    """The job, which is one that the loader and the planner take."""
    job = torchrun.job(torchrun_line.read(words.split(), {}), where)
    plan(parse(job.document))
    return job


def role(job: torchrun.TorchrunJob) -> dict[str, Any]:
    (only,) = job.document["spec"]["roles"]
    return only


@pytest.mark.parametrize(
    ("words", "local", "ranks", "machines"),
    [
        ("train.py", True, (1, 1, None), None),
        ("--nproc-per-node=2 train.py", True, (2, 2, None), None),
        ("--nproc-per-node=auto train.py", True, (4, 4, None), None),
        ("--nproc-per-node=cpu train.py", True, (4, 4, None), None),
        ("--standalone --nnodes=1:3 --nproc-per-node=2 train.py", True, (2, 2, None), None),
        ("--nnodes=3 --nproc-per-node=2 train.py", True, (6, 2, None), (3, None, None)),
        ("--nnodes=2:4 --nproc-per-node=2 train.py", True, (4, 2, (4, 8)), (2, 2, 4)),
        ("--nnodes=2:4 --nproc-per-node=2 train.py", False, (8, 2, (4, 8)), (4, 2, 4)),
    ],
)
def test_nnodes_and_nproc_give_the_number_of_machines_and_ranks(
    here: Path, words: str, local: bool, ranks: Any, machines: Any
) -> None:
    replicas, group, bounds = ranks
    job = meant(words, site(here, local=local))
    found = role(job)
    assert (found["replicas"], found["replicasPerGroup"], job.ranks_per_node) == (replicas, group, group)
    assert (found.get("minReplicas"), found.get("maxReplicas")) == (bounds or (None, None))
    groups = job.document["spec"].get("nodeGroups", [])
    assert [(g["replicas"], g.get("minReplicas"), g.get("maxReplicas")) for g in groups] == (
        [machines] if machines else []
    )
    assert [g["cpu"] for g in groups] == [str(group)] * len(groups), "a machine has room for one role group"


@pytest.mark.parametrize(
    ("words", "devices", "found"),
    [
        ("--nproc-per-node=xpu train.py", {"GPU": 2}, (2, {"type": "GPU", "count": "1"})),
        ("--nproc-per-node=npu train.py", {"GPU": 2, "NPU": 8}, (8, {"type": "NPU", "count": "1"})),
        ("--nproc-per-node=hpu train.py", {"HPU": 4}, (4, {"type": "HPU", "count": "1"})),
        ("--nproc-per-node=gpu train.py", {"GPU": 2}, (2, {"type": "GPU", "count": "1"})),
        ("--nproc-per-node=auto train.py", {"GPU": 0, "NPU": 8}, (8, {"type": "NPU", "count": "1"})),
        ("--nproc-per-node=cpu train.py", {"GPU": 8}, (4, {"type": "GPU", "count": "1"})),
        ("--nproc-per-node=4 train.py", {"GPU": 8}, (4, {"type": "GPU", "count": "1"})),
        ("--nproc-per-node=4 --accelerator none train.py", {"GPU": 8}, (4, None)),
        ("--nproc-per-node=4 --accelerator GPU=0.5 train.py", {"GPU": 2}, (4, {"type": "GPU", "count": "0.5"})),
        ("--nproc-per-node=4 train.py", {"GPU": 2}, (4, None)),
        ("--nnodes=2 --nproc-per-node=2 train.py", {"GPU": 2}, (4, None)),
        ("--nnodes=2:4 --nproc-per-node=1 train.py", {"GPU": 2}, (2, {"type": "GPU", "count": "1"})),
    ],
)
def test_the_machines_devices_are_dealt_to_the_ranks(
    here: Path, words: str, devices: dict[str, int], found: tuple[int, Any]
) -> None:
    job = meant(words, site(here, **devices))
    assert (role(job)["replicas"], role(job).get("accelerator")) == found
    few = "2 GPU here for 4 ranks: none gets one; --accelerator GPU=0.5 shares them"
    assert job.notes == ((few,) if devices == {"GPU": 2} and found[0] == 4 and not found[1] else ())


def test_the_machines_of_a_cluster_have_the_devices_of_their_ranks(here: Path) -> None:
    job = meant("--nnodes=2 --nproc-per-node=8 --accelerator NPU --image r:1 train.py", site(here, local=False))
    assert job.document["spec"]["nodeGroups"] == [
        {"name": "node", "replicas": 2, "cpu": "8", "accelerator": {"type": "NPU", "count": 8}}
    ]
    assert job.document["spec"]["image"] == "r:1"
    bare = meant("--nnodes=2 --nproc-per-node=8 train.py", site(here, local=False))
    assert bare.notes == ("no rank gets a device: --accelerator GPU gives one to each",)


@pytest.mark.parametrize(
    ("share", "each", "count"), [("0.6", 2, 2), ("0.5", 5, 3), ("0.3", 4, 2), ("0.4", 2, 1), ("2", 3, 6)]
)
def test_no_share_lies_on_two_devices_of_a_machine(here: Path, share: str, each: int, count: int) -> None:
    job = meant(f"--nnodes=2 --nproc-per-node={each} --accelerator GPU={share} train.py", site(here, local=False))
    assert job.document["spec"]["nodeGroups"][0]["accelerator"] == {"type": "GPU", "count": count}


def test_names_are_found_in_the_script_as_they_were_said(here: Path) -> None:
    found = role(meant("--role Trainer_A --rdzv-id=Exp_7 --nproc-per-node=2 train.py", site(here)))
    said = [{"name": "ROLE_NAME", "value": "Trainer_A"}, {"name": "TORCHELASTIC_RUN_ID", "value": "Exp_7"}]
    assert (found["name"], found["env"]) == ("trainer-a", said)
    signals = role(meant("--signals-to-handle=SIGUSR1 --nproc-per-node=2 train.py", site(here)))
    assert signals["env"] == [{"name": "TORCHELASTIC_SIGNALS_TO_HANDLE", "value": "SIGUSR1"}]
    assert "env" not in role(meant("--role trainer --nproc-per-node=2 train.py", site(here)))


@pytest.mark.parametrize(
    ("words", "local", "said", "found"),
    [
        ("--nproc-per-node=2 train.py", True, "6", "6"),
        ("--nproc-per-node=2 train.py", True, "", ""),
        ("--nproc-per-node=2 train.py", True, None, None),
        ("--nproc-per-node=1 train.py", True, "6", "6"),
        ("--nproc-per-node=1 train.py", True, None, "4"),
        ("--nnodes=2 --nproc-per-node=1 train.py", True, None, None),
        ("--nnodes=1:2 --nproc-per-node=1 train.py", True, None, None),
        ("--nproc-per-node=2 train.py", False, "6", "6"),
        ("--nproc-per-node=1 train.py", False, None, None),
    ],
)
def test_the_number_of_threads_is_the_users_and_one_rank_here_has_the_machine(
    here: Path, words: str, local: bool, said: str | None, found: str | None
) -> None:
    job = meant(words, replace(site(here, local=local), threads=said))
    (planned,) = plan(parse(job.document)).roles.values()
    assert dict(planned.env).get("OMP_NUM_THREADS") == found


def test_the_script_or_module_becomes_the_roles_entrypoint(here: Path) -> None:
    def run(words: str, *, local: bool = True) -> dict[str, Any]:
        return role(meant(words, site(here, local=local)))

    assert run("train.py --lr 3 --nnodes 9")["args"] == ["--lr", "3", "--nnodes", "9"]
    assert run("train.py")["entrypoint"] == {"module": "train.py"}
    assert run("./sub/../sub/Train_it.py")["entrypoint"] == {"module": "sub/Train_it.py"}
    assert run("-m pkg.train a")["entrypoint"] == {"module": "pkg.train"}
    assert run("--run-path --no-python -m train.py")["entrypoint"] == {"module": "train.py"}, "as torch has it"
    assert run("--no-python nvidia-smi -L")["entrypoint"] == {"command": ["nvidia-smi"]}
    assert run("start", local=False)["entrypoint"] == {"command": ["python", "-u", "start"]}
    assert run("start")["entrypoint"]["command"][1:] == ["-u", "start"]


def test_a_named_python_runs_the_script(here: Path) -> None:
    def run(words: str) -> dict[str, Any]:
        return role(meant(words, replace(site(here), python="/opt/python")))["entrypoint"]

    assert run("train.py") == {"command": ["/opt/python", "-u", "train.py"]}
    assert run("-m pkg.train a") == {"command": ["/opt/python", "-u", "-m", "pkg.train"]}
    assert run("--no-python nvidia-smi") == {"command": ["nvidia-smi"]}
    assert run("--run-path train.py") == {"module": "train.py"}, "torch does not read it then"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("train.py", "train"),
        ("sub/Train_it.py", "train-it"),
        ("-m pkg.sub.train", "train"),
        ("--rdzv-id 42_Run train.py", "job-42-run"),
        ("--name mine --rdzv-id 42 train.py", "mine"),
    ],
)
def test_the_job_is_named_after_the_script(here: Path, words: str, name: str) -> None:
    assert meant(words, site(here)).document["metadata"]["name"] == name


def test_restarts_count_from_the_start_of_the_job(here: Path) -> None:
    spec = meant("--max-restarts=3 --role Trainer train.py", site(here)).document["spec"]
    assert spec["faultTolerance"] == {
        "maxRestarts": 0,
        "windowSeconds": 2592000,
        "backoff": {"initialSeconds": 0, "maxSeconds": 0},
        "rules": [torchrun.LOST, torchrun.AGAIN],
    }
    assert (spec["roles"][0]["restartPolicy"], spec["roles"][0]["name"]) == ({"maxRestarts": 3}, "trainer")


@pytest.mark.parametrize("mode", torchrun_line.NUMA)
def test_numa_binding_is_a_word_about_the_devices(here: Path, mode: str) -> None:
    job = meant(f"--numa-binding {mode} --accelerator GPU=2 train.py", site(here, local=False))
    assert role(job)["accelerator"] == {"type": "GPU", "count": "2", "numaBinding": torchrun.NUMA[mode]}
    (planned,) = plan(parse(job.document)).roles.values()
    assert planned.numa_binding == mode, "torch's own word comes to the ranks"


@pytest.mark.parametrize("accelerator", ["none", "GPU"])
def test_a_virtual_local_rank_is_a_word_about_the_world(here: Path, accelerator: str) -> None:
    job = meant(f"--virtual-local-rank --accelerator {accelerator} train.py", site(here))
    assert role(job)["comm"] == {"virtualLocalRank": True}
    (planned,) = plan(parse(job.document)).roles.values()
    assert (planned.virtual_local_rank, planned.shared_sight) == (True, False)
    assert "comm" not in role(meant("train.py", site(here)))


def test_a_timeout_of_the_rendezvous_is_the_patience_before_the_job_runs(here: Path) -> None:
    spec = meant("--rdzv-conf is_host=1,join_timeout=60,timeout=9 train.py", site(here)).document["spec"]
    assert spec["preRunningDeadlineSeconds"] == 60
    assert meant("--rdzv-conf timeout=9 train.py", site(here)).document["spec"]["preRunningDeadlineSeconds"] == 9
    assert "preRunningDeadlineSeconds" not in meant("train.py", site(here)).document["spec"]


def test_options_without_effect_are_noted(here: Path) -> None:
    words = "--rdzv-backend=c10d --rdzv-endpoint=h:1 --log-dir x --namespace team --accelerator none"
    more = "--to kubernetes -t 3 -r 0:3 --local-ranks-filter 0 --log-line-prefix-template x --rdzv-conf a=1,timeout=2"
    job = meant(f"{words} {more} train.py", site(here, local=False))
    told = (
        "--rdzv-backend, --rdzv-endpoint, --local-ranks-filter, --log-dir, --log-line-prefix-template, --redirects, "
        "--tee, --rdzv-conf a"
    )
    assert job.notes == (f"not used: {told}; see dljob torchrun --help",)
    assert job.document["metadata"]["namespace"] == "team"
    assert meant("--log-dir x -t 3 train.py", site(here)).notes == (), "here they are obeyed"
    (shared,) = meant("--to h:1 --log-dir x -t 3 --accelerator none train.py", site(here, local=False)).notes
    assert "DLJOB_HOME" in shared


@pytest.mark.parametrize(
    ("words", "local", "told"),
    [
        ("--nnodes=0 train.py", True, "--nnodes=0 is no number of machines"),
        ("--nnodes=3:2 train.py", True, "--nnodes=3:2"),
        ("--nnodes=1:2:3 train.py", True, "--nnodes=1:2:3"),
        ("--standalone --nnodes=3 train.py", True, "--nnodes=3: --standalone is one machine"),
        ("--standalone --nnodes=2:3 train.py", True, "--nnodes=2:3: --standalone is one machine"),
        ("--standalone --nnodes=many train.py", True, "--nnodes=many is no number of machines"),
        ("--nproc-per-node=tpu train.py", True, "--nproc-per-node=tpu is no number of ranks"),
        ("--nproc-per-node=² train.py", True, "--nproc-per-node=² is no number of ranks"),
        ("--nproc-per-node=npu train.py", True, "--nproc-per-node=npu: this machine has no NPU"),
        ("--nproc-per-node=xpu train.py", True, "--nproc-per-node=xpu: this machine has no GPU"),
        ("--nproc-per-node=0 train.py", True, "--nproc-per-node=0"),
        ("--nproc-per-node=gpu train.py", True, "this machine has no GPU"),
        ("--nproc-per-node=auto train.py", False, "counted on this machine"),
        ("--node-rank=1 train.py", True, "given once"),
        ("--max-restarts=-1 train.py", True, "--max-restarts=-1 is below 0"),
        ("--numa-binding node train.py", True, "--numa-binding=node: no accelerator available for NUMA binding"),
        ("--numa-binding node --accelerator none train.py", False, "no accelerator available"),
        ("--no-python -m x", True, "do not go together"),
        ("trian.py", True, "there is no trian.py in"),
        ("--to kubernetes ../other.py", False, "not below"),
        ("--rdzv-conf join_timeout=soon train.py", True, "'soon' is no number of seconds"),
        ("--rdzv-conf timeout=² train.py", True, "'²' is no number of seconds"),
        ("--rdzv-conf join_timeout train.py", True, "'join_timeout' is no pair"),
        (
            "--nnodes=2 --accelerator GPU=many train.py",
            False,
            '--accelerator GPU=many: "many" is not a number of devices',
        ),
    ],
)
def test_an_impossible_torchrun_line_is_refused_with_a_hint(here: Path, words: str, local: bool, told: str) -> None:
    (here.parent / "other.py").write_text("")
    with pytest.raises(UsageError) as refused:
        meant(words, site(here, local=local))
    assert told in refused.value.message
    assert refused.value.hint or "below 0" in told or "together" in told or "many" in told


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"PET_NNODES": "0"}, "PET_NNODES=0 is no number of machines"),
        ({"PET_NNODES": "3", "PET_STANDALONE": "1"}, "PET_NNODES=3: PET_STANDALONE is one machine"),
        ({"PET_NPROC_PER_NODE": "foo"}, "PET_NPROC_PER_NODE=foo is no number of ranks"),
        ({"PET_NPROC_PER_NODE": "gpu"}, "PET_NPROC_PER_NODE=gpu: this machine has no GPU"),
        ({"PET_NODE_RANK": "1"}, "PET_NODE_RANK=1: dljob torchrun is given once"),
        ({"PET_MAX_RESTARTS": "-1"}, "PET_MAX_RESTARTS=-1 is below 0"),
        ({"PET_RDZV_CONF": "a"}, "PET_RDZV_CONF: 'a' is no pair"),
        ({"PET_RDZV_CONF": "timeout=a"}, "PET_RDZV_CONF: 'a' is no number of seconds"),
    ],
)
def test_an_error_in_a_variable_names_the_variable(here: Path, said: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError) as refused:
        torchrun.job(torchrun_line.read(["train.py"], said), site(here))
    assert refused.value.message.startswith(told)
    assert "--node-rank" not in refused.value.hint


def test_variables_without_effect_are_noted_by_their_names(here: Path) -> None:
    said = {"PET_RDZV_BACKEND": "c10d", "PET_RDZV_CONF": "a=1", "PET_NNODES": "1:4"}
    (told,) = torchrun.job(torchrun_line.read(["--standalone", "train.py"], said), site(here)).notes
    assert told.startswith("not used: PET_RDZV_BACKEND, PET_NNODES, PET_RDZV_CONF a; ")


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("job", "role-job"),
        ("Master", "role-master"),
        ("NODE", "role-node"),
        ("", "role"),
        ("日本", "role"),
        ("1st", "role-1st"),
        ("x" * 30, "x" * 24),
    ],
)
def test_any_role_of_torchruns_has_a_name_here(here: Path, said: str, named: str) -> None:
    job = torchrun.job(torchrun_line.read(["--role", said, "--nproc-per-node=2", "train.py"], {}), site(here))
    (planned,) = plan(parse(job.document)).roles.values()
    assert (planned.name, dict(planned.env)["ROLE_NAME"]) == (named, said)


@pytest.mark.parametrize(("to", "local"), [("local", True), ("ray-head:6379", False)])
def test_a_script_elsewhere_is_named_by_its_path_where_nothing_is_uploaded(here: Path, to: str, local: bool) -> None:
    (here.parent / "other.py").write_text("")
    found = role(meant(f"--to {to} ../other.py", site(here, local=local)))
    assert found["entrypoint"] == {"module": str(here.parent / "other.py")}


def test_a_script_of_the_image_is_taken_as_it_is_named(here: Path) -> None:
    def run(script: str) -> dict[str, Any]:
        return role(meant(f"--to kubernetes --no-upload --image x {script}", site(here, local=False)))["entrypoint"]

    assert run("/app/train.py") == {"module": "/app/train.py"}
    assert run("not_here.py") == {"module": "not_here.py"}
    assert run("/app") == {"command": ["python", "-u", "/app"]}


def test_a_folder_is_run_as_python_runs_it(here: Path) -> None:
    (here / "__main__.py").write_text("")
    assert role(meant("--to kubernetes .", site(here, local=False)))["entrypoint"] == {"command": ["python", "-u", "."]}
    assert role(meant(f"{here}/", site(here)))["entrypoint"]["command"][1:] == ["-u", "."]
    assert role(meant("sub", site(here)))["entrypoint"]["command"][1:] == ["-u", "sub"]


@pytest.mark.parametrize("words", [[""], ["-m", ""], ["--no-python", "", "x"], ["--no-upload", ""]])
def test_an_empty_script_is_refused(here: Path, words: list[str]) -> None:
    with pytest.raises(UsageError, match="SCRIPT is empty"):
        torchrun.job(torchrun_line.read(words, {}), site(here))


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("--logs_specs=X", "it is the name of an entry point of torchrun.logs_specs"),
        ("--rdzv-backend=cd10", "there are static, c10d, etcd, etcd-v2"),
        ("--event-log-handler=file", "there are null, console, dynamic_rendezvous"),
    ],
)
def test_a_plugin_that_torch_would_not_find_is_refused(word: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    line = torchrun_line.read([word, "train.py"], {})
    with pytest.raises(UsageError, match=f"^{word.replace('_', '-')}: torch knows no such name\n  {hint}$"):
        torchrun.refuse_unknown_plugins(line)
    monkeypatch.setattr(torchrun, "entry_points", lambda **asked: [asked])
    if "event" not in word:  # torch looks for no handlers of others
        torchrun.refuse_unknown_plugins(line)
    known = ["--rdzv-backend=c10d", "--event-log-handler=console"]
    for words in ([], known):
        torchrun.refuse_unknown_plugins(torchrun_line.read([*words, "train.py"], {}))
