"""`dljob accelerate`: what its command line and its configuration become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dljob.api import torchrun_line
from dljob.api.torchrun import Site
from dljob.cli import main
from dljob.compat import accelerate_run, dlrover_run
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


def job(
    folder: Path, *words: str, devices: dict[str, int] | None = None, **environ: str
) -> tuple[dict[str, Any], dict[str, str], tuple[str, ...]]:
    """The role of a command line, its variables, and the notes."""
    line = accelerate_run.read_line(words, environ)
    made = accelerate_run.job(line, Site(True, 4, devices or {}, folder))
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
        # The launcher's own defaults, which are not those of the script.
        "FSDP_SHARDING_STRATEGY": "FULL_SHARD",
        "FSDP_RESHARD_AFTER_FORWARD": "true",
        "FSDP_OFFLOAD_PARAMS": "false",
        "FSDP_MIN_NUM_PARAMS": "100000000",
        "FSDP_FORWARD_PREFETCH": "false",
        "FSDP_USE_ORIG_PARAMS": "true",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
        "FSDP_SYNC_MODULE_STATES": "true",
        "FSDP_ACTIVATION_CHECKPOINTING": "false",
    }
    assert notes == ()


def test_the_command_line_comes_before_the_configuration(folder: Path) -> None:
    words = ("--config_file", "config.yaml", "--num_processes=4", "--mixed_precision", "fp16", "--cpu")
    role, env, notes = job(folder, *words, "--main_process_port", "3", "--max_restarts=2", "train.py")
    assert (role["replicas"], env["ACCELERATE_MIXED_PRECISION"], env["ACCELERATE_USE_CPU"]) == (4, "fp16", "True")
    assert role["restartPolicy"] == {"maxRestarts": 2}
    assert notes == (
        "with --cpu accelerate starts one process, and dljob as many ranks as --num_processes says",
        "not used: --main_process_port; see dljob accelerate --help",
    )
    assert "ACCELERATE_USE_FSDP" not in env


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--use_megatron_lm", "train.py"), "--use_megatron_lm of accelerate is not carried over"),
        (("--use_deepspeed", "--deepspeed_config_file=no.json", "train.py"), "there is no no.json, DeepSpeed's own"),
        (("--config_file", "alone.yaml", "--num_machines=2", "train.py"), "NO is one process on one machine"),
        (("--fp8_format=E4M3", "train.py"), "--fp8_format of accelerate is not carried over"),
        (("--num_proceses", "2", "train.py"), "unrecognized arguments: --num_proceses"),
        (("config",), "only `launch` is taken over"),
        (("--num_processes", "3", "--num_machines", "2", "train.py"), "3 on 2 machines"),
        (("--config_file", "none.yaml", "train.py"), "cannot read none.yaml"),
    ],
)
def test_what_is_not_carried_is_refused_with_a_way(folder: Path, words: tuple[str, ...], why: str) -> None:
    (folder / "alone.yaml").write_text("distributed_type: NO")
    with pytest.raises(UsageError, match=why) as error:
        job(folder, *words)
    assert error.value.hint or "cannot read" in why


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("debug: false\nnum_proceses: 2", "bad.yaml:2:1: unknown key 'num_proceses'"),
        ("deepspeed_config: {zero_stgae: 2}", "bad.yaml:1:20: unknown key deepspeed_config.zero_stgae"),
        ("distributed_type: MEGATRON_LM", "bad.yaml:1:1: distributed_type MEGATRON_LM is not carried over"),
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
    assert accelerate_run.count_own_words(words.split()) == own


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


@pytest.mark.parametrize("script", [("train.py",), ("-m", "pkg.train"), ("--no_python", "train")])
def test_words_behind_the_script_are_never_read_as_the_launcher_s(folder: Path, script: tuple[str, ...]) -> None:
    """Neither as abbreviations of several flags, nor as flags that are refused."""
    (folder / "train").touch()
    words = ["--t", "5", "--dr", "--n", "--tpu_name", "x", "--fp8_format=E4M3", "--use_megatron_lm"]
    for subcommand in ((), ("launch",)):
        line = accelerate_run.read_line([*subcommand, "--num_processes=2", *script, *words], {})
        assert (line.training_script, line.training_script_args) == (script[-1], words)


PRESET = """
compute_environment: LOCAL_MACHINE
debug: false
deepspeed_config: <config>
distributed_type: DEEPSPEED
downcast_bf16: 'no'
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
use_cpu: false
"""
LAUNCHER = "deepspeed_multinode_launcher: standard"


@pytest.mark.parametrize(
    ("config", "variables"),
    [
        ("zero_stage: 0", {"DEEPSPEED_ZERO_STAGE": "0"}),
        (
            f"{LAUNCHER}, gradient_accumulation_steps: 1, zero3_init_flag: false, zero_stage: 1",
            {"GRADIENT_ACCUMULATION_STEPS": "1", "DEEPSPEED_ZERO3_INIT": "false", "DEEPSPEED_ZERO_STAGE": "1"},
        ),
        (
            f"{LAUNCHER}, offload_optimizer_device: none, offload_param_device: none, zero_stage: 2",
            {
                "DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "none",
                "DEEPSPEED_OFFLOAD_PARAM_DEVICE": "none",
                "DEEPSPEED_ZERO_STAGE": "2",
            },
        ),
        (
            f"{LAUNCHER}, offload_param_device: nvme, offload_param_nvme_path: /N, zero3_init_flag: yes, zero_stage: 3",
            {
                "DEEPSPEED_OFFLOAD_PARAM_DEVICE": "nvme",
                "DEEPSPEED_OFFLOAD_PARAM_NVME_PATH": "/N",
                "DEEPSPEED_ZERO3_INIT": "true",
                "DEEPSPEED_ZERO_STAGE": "3",
            },
        ),
        (
            "zero3_save_16bit_model: true, gradient_clipping: 1.0, deepspeed_moe_layer_cls_names: Block",
            {
                "DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "true",
                "GRADIENT_CLIPPING": "1.0",
                "DEEPSPEED_MOE_LAYER_CLS_NAMES": "Block",
            },
        ),
        ("deepspeed_config_file: ds/stage3.json, zero3_init_flag: true", {"DEEPSPEED_CONFIG_FILE": "ds/stage3.json"}),
    ],
)
def test_deepspeed_gets_its_settings_by_the_launcher_s_variables(
    folder: Path, config: str, variables: dict[str, str]
) -> None:
    """Each stage of ZeRO, as the presets of TRL and the files of open-instruct have them."""
    (folder / "ds").mkdir()
    (folder / "ds" / "stage3.json").write_text("{}")
    (folder / "zero.yaml").write_text(PRESET.replace("<config>", f"{{{config}}}"))
    role, env, notes = job(folder, "--config_file=zero.yaml", "train.py")
    assert (role["type"], role["replicas"], notes) == ("Elastic", 2, ())
    assert variables.items() <= {name.removeprefix("ACCELERATE_"): value for name, value in env.items()}.items()
    fields = [part.partition(":")[0].strip() for part in config.split(", ")]
    assert env["ACCELERATE_CONFIG_DS_FIELDS"] == ",".join([*fields, "mixed_precision"])
    assert env["ACCELERATE_USE_DEEPSPEED"] == "true"


def test_deepspeed_of_the_command_line_comes_before_the_file(folder: Path) -> None:
    """As in open-instruct's scripts; its own file lies in the folder of the code, or stays where it is."""
    (folder / "zero.yaml").write_text(
        "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\nnum_processes: 4\n"
    )
    (folder / "stage3.conf").write_text("{}")
    settings = str(folder / "stage3.conf")
    words = (
        "--mixed_precision",
        "bf16",
        "--num_processes",
        "4",
        "--use_deepspeed",
        "--deepspeed_config_file",
        settings,
    )
    role, env, _ = job(folder, *words, "train.py", "--gradient_accumulation_steps", "8")
    assert (role["replicas"], role["args"]) == (4, ["--gradient_accumulation_steps", "8"])
    assert (env["ACCELERATE_DEEPSPEED_CONFIG_FILE"], env["ACCELERATE_CONFIG_DS_FIELDS"]) == ("stage3.conf", "")
    _, env, _ = job(folder, "--config_file=zero.yaml", "--zero_stage=0", "train.py")
    assert env["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "0"
    _, env, _ = job(folder / "ds", *words, str(folder / "train.py"))
    assert env["ACCELERATE_DEEPSPEED_CONFIG_FILE"] == settings
    _, env, _ = job(folder, "--no_upload", "--use_deepspeed", "--deepspeed_config_file=/in/image", "train.py")
    assert env["ACCELERATE_DEEPSPEED_CONFIG_FILE"] == "/in/image"
    with pytest.raises(UsageError, match="is not below"):
        job(folder / "ds", "--to=kubernetes", *words, "train.py")


def test_settings_of_deepspeed_alone_are_told_as_not_used(folder: Path) -> None:
    """Accelerate reads them only with DeepSpeed; a script would else accumulate gradients that it never did."""
    _, env, notes = job(folder, "--multi_gpu", "--num_processes=2", "--gradient_accumulation_steps=4", "train.py")
    assert "ACCELERATE_GRADIENT_ACCUMULATION_STEPS" not in env
    assert notes[-1].endswith("as in accelerate launch: --gradient_accumulation_steps")


@pytest.mark.parametrize(
    ("key", "value", "is_told"),
    [
        *(
            ("gpu_ids", "2,3", True),
            ("gpu_ids", "all", False),
            ("machine_rank", "1", True),
            ("machine_rank", "0", False),
        ),
        *(("main_process_ip", "10.0.0.1", True), ("main_process_port", "29501", True), ("rdzv_backend", "c10d", True)),
        *(("rdzv_backend", "static", False), ("monitor_interval", "5", True), ("main_training_function", "go", True)),
    ],
)
def test_what_is_not_used_is_told_of_the_file_as_of_the_command_line(
    folder: Path, key: str, value: str, *, is_told: bool
) -> None:
    """Except what `accelerate config` writes into each file."""
    (folder / "some.yaml").write_text(f"distributed_type: MULTI_GPU\nnum_processes: 2\n{key}: {value}\n")
    (folder / "plain.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 2\n")
    for words, name in (
        (("--config_file=some.yaml",), key),
        (("--config_file=plain.yaml", f"--{key}", value), f"--{key}"),
    ):
        notes = job(folder, *words, "train.py")[2]
        assert notes == ((f"not used: {name}; see dljob accelerate --help",) if is_told else ())


def test_settings_of_deepspeed_s_own_launcher_are_told_of_the_file_too(folder: Path) -> None:
    (folder / "zero.yaml").write_text(PRESET.replace("<config>", "{zero_stage: 1, deepspeed_hostfile: /hosts}"))
    assert job(folder, "--config_file=zero.yaml", "train.py")[2] == (
        "not used: deepspeed_hostfile; see dljob accelerate --help",
    )


@pytest.mark.parametrize("words", [(), ("--machine_rank=1",)])
def test_a_line_for_another_machine_is_refused_as_it_is_of_torchrun(folder: Path, words: tuple[str, ...]) -> None:
    """Started on each machine it would submit the job as often."""
    key = "" if words else "machine_rank: 1\n"
    (folder / "some.yaml").write_text(f"distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 4\n{key}")
    with pytest.raises(UsageError, match="machine_rank is 1: dljob accelerate is given once") as error:
        job(folder, "--config_file=some.yaml", *words, "train.py")
    assert error.value.hint == f"give it once, with {'--' if words else ''}machine_rank left out"


@pytest.mark.parametrize("kind", ['distributed_type: "NO"', "distributed_type: NO", "mixed_precision: bf16"])
@pytest.mark.parametrize("more", ["", "num_processes: 8\n", "use_cpu: no\n", "gpu_ids: 0\n"])
def test_a_configuration_of_type_no_starts_one_process(folder: Path, kind: str, more: str) -> None:
    """Whatever num_processes says, as TRL's preset for one GPU has it; it sees all devices, or those that are named."""
    (folder / "alone.yaml").write_text(f"{kind}\n{more}num_machines: 1\n")
    for devices in ({}, {"GPU": 4}):
        for words in ((), ("--num_processes=3",)):
            role, env, notes = job(folder, "--config_file=alone.yaml", *words, "train.py", devices=devices)
            assert (role["replicas"], "ACCELERATE_USE_CPU" in env) == (1, False)
            count = "1" if "gpu_ids" in more else "4"
            assert not any("not used" in note for note in notes)
            assert role.get("accelerator") == ({"type": "GPU", "count": count} if devices else None)
            assert sum("one process, since distributed_type is NO" in one for one in notes) == bool(
                words or "8" in more
            )
    assert job(folder, "--config_file=alone.yaml", "--multi_gpu", "--num_processes=3", "train.py")[0]["replicas"] == 3


@pytest.mark.parametrize(("words", "devices", "ranks"), [((), {}, 1), (("--cpu",), {"GPU": 2}, 1), ((), {"GPU": 2}, 2)])
def test_without_a_number_there_are_as_many_ranks_as_devices(
    folder: Path, words: tuple[str, ...], devices: dict[str, int], ranks: int
) -> None:
    """Not one for each CPU: accelerate starts one process where there is no device."""
    assert job(folder, *words, "train.py", devices=devices)[0]["replicas"] == ranks


@pytest.mark.parametrize(
    "arguments",
    [
        (
            *accelerate_run.TORCH,
            *accelerate_run.CARRIED,
            *accelerate_run.FSDP,
            *accelerate_run.DEEPSPEED,
            *accelerate_run.IDLE,
        ),
        dlrover_run.LAUNCHER.arguments,
        (*torchrun_line.ARGUMENTS, *torchrun_line.OURS),
    ],
)
def test_each_line_of_a_launchers_help_says_what_the_flag_does(arguments: tuple[torchrun_line.Argument, ...]) -> None:
    told = [each.help for each in arguments]
    assert [words for words in told if " " not in words and not words.startswith("--")] == []
    assert [words for words in told if "as there" in words or len(words) > 100] == []
    one_meaning = [words for words in told if not words.startswith("not used")]
    assert len(set(one_meaning)) == len(one_meaning)
