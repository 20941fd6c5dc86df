"""`dljob accelerate`: what its command line and its configuration become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dljob.api.torchrun import Site
from dljob.cli import main
from dljob.compat import accelerate_run
from dljob.errors import UsageError
from dljob.spec.loading.load import parse

CONFIG = """
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
dynamo_config: {dynamo_backend: INDUCTOR}
fsdp_config: {fsdp_version: 2, fsdp_transformer_layer_cls_to_wrap: Block}
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 2
same_network: true
tpu_env: []
tpu_use_cluster: false
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "config.yaml").write_text(CONFIG)
    return tmp_path


def job(folder: Path, *words: str, **environ: str) -> tuple[dict[str, Any], dict[str, str], tuple[str, ...]]:
    """The role of a command line, its variables, and the notes."""
    line = accelerate_run.read_line(words, environ)
    made = accelerate_run.job(line, Site(True, 4, {}, folder))
    parse(made.document)
    (role,) = made.document["spec"]["roles"]
    return role, {one["name"]: one["value"] for one in role["env"]}, made.notes


def test_a_configuration_becomes_a_role_and_its_variables(folder: Path) -> None:
    role, env, notes = job(folder, "launch", "--config_file", "config.yaml", "train.py", "--lr", "3")
    assert (role["type"], role["replicas"], role["entrypoint"], role["args"]) == (
        "Elastic",
        2,
        {"module": "train.py"},
        ["--lr", "3"],
    )
    assert env == {
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_DYNAMO_BACKEND": "INDUCTOR",
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_TRANSFORMER_CLS_TO_WRAP": "Block",
    }
    assert notes == ()


def test_the_command_line_comes_before_the_configuration(folder: Path) -> None:
    words = ("--config_file", "config.yaml", "--num_processes=4", "--mixed_precision", "fp16", "--cpu")
    role, env, notes = job(folder, *words, "--main_process_port", "3", "--max_restarts=2", "train.py")
    assert (role["replicas"], env["ACCELERATE_MIXED_PRECISION"], env["ACCELERATE_USE_CPU"]) == (4, "fp16", "True")
    assert role["restartPolicy"] == {"maxRestarts": 2}
    assert notes == ("not used: --main_process_port; see dljob accelerate --help",)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--use_deepspeed", "train.py"), "--use_deepspeed of accelerate is not carried over"),
        (("--fp8_format=E4M3", "train.py"), "--fp8_format of accelerate is not carried over"),
        (("--num_proceses", "2", "train.py"), "unrecognized arguments: --num_proceses"),
        (("config",), "only `launch` is taken over"),
        (("--num_processes", "3", "--num_machines", "2", "train.py"), "3 on 2 machines"),
        (("--config_file", "none.yaml", "train.py"), "cannot read none.yaml"),
    ],
)
def test_what_is_not_carried_is_refused_with_a_way(folder: Path, words: tuple[str, ...], why: str) -> None:
    with pytest.raises(UsageError, match=why) as error:
        job(folder, *words)
    assert error.value.hint or "cannot read" in why


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("debug: false\nnum_proceses: 2", "bad.yaml:2:1: unknown key 'num_proceses'"),
        ("deepspeed_config: {zero_stage: 2}", "deepspeed_config of accelerate is not carried over"),
        ("distributed_type: DEEPSPEED", "bad.yaml:1:1: distributed_type DEEPSPEED is not carried over"),
        ("compute_environment: AMAZON_SAGEMAKER", "compute_environment AMAZON_SAGEMAKER"),
        ("fsdp_config:\n  fsdp_version: 2\n  fsdp_versoin: 2", "bad.yaml:3:3: unknown key fsdp_config.fsdp_versoin"),
        ("fsdp_config: 2", "bad.yaml:1:1: fsdp_config is no mapping"),
        ("a: [", "bad.yaml:1:"),
        ("debug: true\ndebug: true", "bad.yaml:2:1: the key is listed twice"),
        ("", "it is not one YAML mapping"),
        ("- 1", "it is not one YAML mapping"),
        ("# " + "x" * (1 << 20), "has 1048578 bytes: no configuration of accelerate has more than 65536"),
    ],
)
def test_a_bad_configuration_is_told(folder: Path, text: str, why: str) -> None:
    (folder / "bad.yaml").write_text(text)
    with pytest.raises(UsageError) as error:
        job(folder, "--config_file", "bad.yaml", "train.py")
    assert why in str(error.value)


@pytest.mark.parametrize(
    ("place", "environ"),
    [
        ("home/.cache/huggingface", {"HOME": "home"}),
        ("cache/huggingface", {"HOME": "home", "XDG_CACHE_HOME": "cache"}),
        ("hub", {"HOME": "home", "HF_HOME": "hub"}),
        ("home/hub", {"HOME": "home", "HF_HOME": "~/hub"}),
    ],
)
def test_the_default_configuration_is_taken_over_and_told(folder: Path, place: str, environ: dict[str, str]) -> None:
    file = Path(place, "accelerate", "default_config.yaml")
    file.parent.mkdir(parents=True)
    file.write_text("num_processes: 3\nfsdp_config: {version: 2}\ndistributed_type: FSDP\n")
    role, env, notes = job(folder, "train.py", **environ)
    assert (role["replicas"], env["FSDP_VERSION"], env["ACCELERATE_USE_FSDP"]) == (3, "2", "true")
    assert notes == (f"settings of {file}, as in accelerate launch; --config_file names another file",)
    # As in accelerate: neither beside --cpu nor beside a file that is named; and --multi_gpu is no FSDP.
    assert job(folder, "--cpu", "--num_processes=1", "train.py", **environ)[2] == ()
    assert job(folder, "--config_file", "config.yaml", "train.py", **environ)[0]["replicas"] == 2
    assert "ACCELERATE_USE_FSDP" not in job(folder, "--multi_gpu", "train.py", **environ)[1]


@pytest.mark.parametrize(
    "words",
    [
        "--to kubernetes launch --num_processes 2 train.py launch",
        "--to kubernetes --num_processes 2 launch train.py launch",
        "launch --to kubernetes --num_processes 2 train.py launch",
        "launch --to kubernetes --num_processes 2 -- train.py launch",
        "--to kubernetes --num_processes 2 train.py launch",
    ],
)
def test_options_stand_before_or_behind_the_subcommand(folder: Path, words: str) -> None:
    line = accelerate_run.read_line(words.split(), {})
    assert (line.training_script, line.training_script_args, line.to) == ("train.py", ["launch"], "kubernetes")
    assert job(folder, *words.split())[0]["replicas"] == 2


def test_a_value_or_a_script_may_be_called_launch(folder: Path) -> None:
    (folder / "launch").touch()
    line = accelerate_run.read_line(["--name", "launch", "launch", "--no_python", "launch", "x"], {})
    assert (line.name, line.training_script, line.training_script_args) == ("launch", "launch", ["x"])


@pytest.mark.parametrize(
    ("words", "own"),
    [
        ("--to kubernetes launch --cpu train.py", 5),
        ("--name launch launch train.py --debug launch", 4),
        ("train.py launch --debug", 1),
        ("--cpu", 1),
        ("launch", 1),
    ],
)
def test_words_before_the_script_s_arguments_are_counted(words: str, own: int) -> None:
    assert accelerate_run.own(words.split()) == own


def test_another_subcommand_is_refused_behind_options_too(folder: Path) -> None:
    with pytest.raises(UsageError, match="dljob accelerate env: only `launch` is taken over"):
        job(folder, "--to", "kubernetes", "env")


def test_debug_behind_the_script_is_the_script_s(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert folder
    words = ["accelerate", "launch", "--debug", "--dry-run", "--num_processes=1", "train.py", "--debug"]
    with pytest.raises(SystemExit) as ended:
        main.main(words)
    assert not ended.value.code
    assert capsys.readouterr().out.count("--debug") == 1
