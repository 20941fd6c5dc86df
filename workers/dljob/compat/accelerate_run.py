"""`accelerate launch`'s command line and its YAML as a job: each carried, named, or refused.

Its values reach the script as they do there, by ACCELERATE_* and FSDP_* variables; the rest is torchrun's. Source:
accelerate 1.15, `commands/launch.py`, `commands/config/config_args.py` and `utils/launch.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from dljob.api import torchrun, torchrun_line
from dljob.api.torchrun_line import OURS, Argument, Parser
from dljob.api.values import suggestion
from dljob.errors import UsageError
from dljob.spec.text.tree import read as read_yaml

COMMAND = "dljob accelerate"
OTHERS = ("config", "env", "test", "estimate-memory", "merge-weights", "tpu-config", "to-fsdp2")
"""Subcommands of accelerate beside `launch`."""
LARGEST = 64 * 1024
"""Largest configuration file, in bytes; accelerate writes some 30 lines."""
MIXED = ("no", "fp16", "bf16", "fp8")
TORCH = (
    Argument("tee", "0", short="-t", help="ranks shown with a prefix: 3 for all, or 0:3,1:3 by local rank"),
    Argument("log-dir", help="folder that gets a link to the ranks' logs, on this machine"),
    Argument("role", "default", help="name of the role"),
    Argument("rdzv-conf", "", help="join_timeout=S: the job fails when it is not placed after S seconds"),
    Argument("max-restarts", 0, int, help="restarts before the job fails"),
    Argument("module", default=False, flag=True, short="-m", help="SCRIPT is a module"),
    Argument("no-python", default=False, flag=True, help="SCRIPT is a program"),
)
"""Arguments that go to torchrun as they are."""
CARRIED = (
    Argument(
        "config-file", help="YAML of `accelerate config`, by default at its own place; the command line comes before it"
    ),
    Argument("num-processes", None, int, help="ranks on all machines"),
    Argument("num-machines", None, int, help="number of machines"),
    Argument("cpu", default=False, flag=True, help="no rank gets a device"),
    Argument("multi-gpu", default=False, flag=True, help="each rank gets a GPU"),
    Argument("mixed-precision", choices=MIXED, help="the Accelerator's precision"),
    Argument("num-cpu-threads-per-process", None, int, help="OMP_NUM_THREADS of each rank"),
    Argument("enable-cpu-affinity", default=False, flag=True, help="bind each rank to the CPUs near its GPU"),
    Argument("dynamo-backend", help="compile the model by a backend of torch.compile, such as inductor"),
    Argument("dynamo-mode", help="mode of torch.compile: default, reduce-overhead or max-autotune"),
    Argument(
        "dynamo-use-fullgraph", default=False, flag=True, help="torch.compile takes the model as one graph, or fails"
    ),
    Argument("dynamo-use-dynamic", default=False, flag=True, help="torch.compile expects shapes that change"),
    Argument("dynamo-use-regional-compilation", default=False, flag=True, help="compile a repeated block once"),
    Argument("use-fsdp", default=False, flag=True, help="shard the model by FSDP"),
    Argument("debug", default=False, flag=True, help="in the YAML; in the command line it is dljob's own"),
    Argument("downcast-bf16", default=False, flag=True, help="with bf16 on TPU: double tensors become bfloat16, too"),
)
FSDP = tuple(
    Argument(f"fsdp-{name}", help=words)
    for name, words in {
        "version": "FSDP's version, 1 or 2",
        "offload-params": "true: parameters and gradients lie in the host's memory",
        "min-num-params": "parameters from which SIZE_BASED_WRAP wraps a module",
        "sharding-strategy": "version 1: FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2",
        "reshard-after-forward": "version 2: true frees gathered parameters after each forward",
        "auto-wrap-policy": "modules that are wrapped: TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP",
        "transformer-layer-cls-to-wrap": "classes of layers that are wrapped, with commas between",
        "backward-prefetch": "parameters gathered early in backward: BACKWARD_PRE, BACKWARD_POST or NO_PREFETCH",
        "state-dict-type": "form of saved states: FULL_STATE_DICT, LOCAL_STATE_DICT or SHARDED_STATE_DICT",
        "forward-prefetch": "true: gather the next parameters during forward",
        "use-orig-params": "version 1: true keeps the parameters' own shapes, so that some may be frozen",
        "cpu-ram-efficient-loading": "true: only the first rank reads the weights into memory",
        "sync-module-states": "true: the first rank sends its weights to the others at the start",
        "activation-checkpointing": "true: compute activations again in backward, to save memory",
        "activation-checkpointing-offload": "true: keep checkpointed activations in the host's memory",
        "ignored-modules": "modules that are not sharded: their names, or a regular expression",
    }.items()
)
DEEPSPEED = (
    Argument("use-deepspeed", default=False, flag=True, help="let the Accelerator train with DeepSpeed"),
    Argument("deepspeed-config-file", help="JSON of DeepSpeed, in the folder of the code"),
    Argument("zero-stage", None, int, help="stage of ZeRO, 0 to 3; 2 by default"),
    Argument("gradient-accumulation-steps", help="batches of one step, or auto"),
    Argument("gradient-clipping", help="largest norm of the gradients, or auto"),
    Argument("offload-optimizer-device", help="place of the optimizer's states: none, cpu or nvme"),
    Argument("offload-param-device", help="place of the parameters: none, cpu or nvme"),
    Argument("offload-optimizer-nvme-path", help="folder of the optimizer's states on nvme"),
    Argument("offload-param-nvme-path", help="folder of the parameters on nvme"),
    Argument("zero3-init-flag", help="true: stage 3 shards a model while it is made"),
    Argument("zero3-save-16bit-model", help="true: stage 3 saves whole weights of 16 bits"),
    Argument("deepspeed-moe-layer-cls-names", help="classes of layers of experts, with commas between"),
)
"""Arguments of DeepSpeed, which reach the script by variables."""
IDLE = (
    Argument("deepspeed-multinode-launcher", help="not used: PrimeMaster starts the ranks"),
    Argument("deepspeed-hostfile", help="not used: dljob places the ranks"),
    Argument("deepspeed-inclusion-filter", help="not used: dljob places the ranks"),
    Argument("deepspeed-exclusion-filter", help="not used: dljob places the ranks"),
    Argument("machine-rank", None, int, help="not used: give the command once"),
    Argument("main-process-ip", help="not used: dljob takes the first machine"),
    Argument("main-process-port", None, int, help="not used: dljob takes a free port"),
    Argument("rdzv-backend", help="not used: PrimeMaster assigns the ranks"),
    Argument("monitor-interval", None, float, help="not used: the end of a process is noticed at once"),
    Argument("same-network", default=False, flag=True, help="not used: dljob connects the machines"),
    Argument("gpu-ids", help="not used: dljob gives each rank its devices"),
    Argument("main-training-function", help="not used: only TPU pods need it"),
    Argument("quiet", default=False, flag=True, short="-q", help="not used"),
)
FILE_DEFAULTS = {
    "deepspeed_multinode_launcher": "standard",
    "machine_rank": 0,
    "rdzv_backend": "static",
    "monitor_interval": 0.1,
    "same_network": True,
    "gpu_ids": "all",
    "main_training_function": "main",
}
"""What `accelerate config` writes into each file for those that are not used."""
WAYS = {
    "megatron_lm": "give the Accelerator a MegatronLMPlugin in the script",
    "parallelism_config": "give the Accelerator a ParallelismConfig in the script",
    "tpu": "dljob places TPU by roles[].accelerator; the script starts its ranks itself",
    "mpirun": "PrimeMaster starts the ranks",
    "sagemaker": "dljob runs on Kubernetes: --to kubernetes",
    "fp8": "give the Accelerator an FP8 recipe in the script",
}
"""Parts of accelerate that are refused, with our way."""
REFUSED = {
    **dict.fromkeys(("use_megatron_lm", "megatron_lm_config"), "megatron_lm"),
    **dict.fromkeys(("use_parallelism_config", "parallelism_config"), "parallelism_config"),
    **dict.fromkeys(("tpu", "tpu_cluster", "tpu_use_cluster", "tpu_use_sudo", "tpu_name", "tpu_zone", "vm"), "tpu"),
    **dict.fromkeys(("tpu_vm", "tpu_env", "commands", "command_file"), "tpu"),
    **dict.fromkeys(("mpirun_config", "mpirun_hostfile"), "mpirun"),
    **dict.fromkeys(("aws_access_key_id", "aws_secret_access_key", "iam_role_name"), "sagemaker"),
    **dict.fromkeys(("fp8_config", "fp8_backend"), "fp8"),
}
PREFIXES = {
    "megatron_lm_": "megatron_lm",
    "parallelism_config_": "parallelism_config",
    "fp8_": "fp8",
    "aws_": "sagemaker",
}
KINDS = {"NO", "MULTI_GPU", "MULTI_NPU", "MULTI_CPU", "MULTI_HPU", "FSDP", "DEEPSPEED"}
"""Values of `distributed_type` that are carried."""
SWITCHES = {
    "cpu": ("USE_CPU", "True"),
    "dynamo_use_fullgraph": ("DYNAMO_USE_FULLGRAPH", "True"),
    "dynamo_use_dynamic": ("DYNAMO_USE_DYNAMIC", "True"),
    "dynamo_use_regional_compilation": ("DYNAMO_USE_REGIONAL_COMPILATION", "True"),
    "downcast_bf16": ("DOWNCAST_BF16", "true"),
    "debug": ("DEBUG_MODE", "true"),
    "enable_cpu_affinity": ("CPU_AFFINITY", "1"),
}
"""Flag -> its variable behind ACCELERATE_, and the value."""
FSDP_DEFAULTS = {
    "fsdp_version": "1",
    "fsdp_sharding_strategy": "FULL_SHARD",
    "fsdp_reshard_after_forward": "true",
    "fsdp_offload_params": "false",
    "fsdp_min_num_params": "100000000",
    "fsdp_forward_prefetch": "false",
    "fsdp_use_orig_params": "true",
    "fsdp_cpu_ram_efficient_loading": "true",
    "fsdp_sync_module_states": "true",
    "fsdp_activation_checkpointing": "false",
}
"""What the launcher says where nobody says anything; the script's own defaults are other ones."""
PLAIN = (
    *("compute_environment", "distributed_type", "use_cpu", "fsdp_config", "dynamo_config", "deepspeed_config"),
    "fp16",
)
"""Keys of a configuration that are no flags."""
INNER = {
    "fsdp_config": {argument.dest for argument in FSDP},
    "dynamo_config": {argument.dest for argument in CARRIED if argument.dest.startswith("dynamo_")},
    "deepspeed_config": {flag.dest for flag in (*DEEPSPEED[1:], *IDLE[:4])},
}
"""Parts of a configuration, and the flags that their keys are."""


def count_own_words(words: Sequence[str]) -> int:
    """Return how many words belong to dljob and accelerate rather than to the script."""
    launch_words, _ = _without_subcommand(words)
    at = torchrun_line.script_at(launch_words, parser(add_help=False))
    return len(words) if at is None else at + 1 + (len(words) - len(launch_words))


def _without_subcommand(words: Sequence[str]) -> tuple[list[str], str]:
    """Return the words without the subcommand, and that; empty where it was left out."""
    at = torchrun_line.script_at(words, parser(add_help=False))
    if at is None or words[at] not in ("launch", *OTHERS):
        return list(words), ""
    return [*words[:at], *words[at + 1 :]], words[at]


def parser(*, add_help: bool = True) -> Parser:
    """Return a parser of the arguments that are carried or not used."""
    new_parser = Parser(
        prog=COMMAND,
        usage=f"{COMMAND} launch [options] SCRIPT [arguments of the script]",
        description="Run an unchanged script of accelerate as a job. `launch` may be left out. Give the command once "
        "for all machines.",
        allow_abbrev=False,
        add_help=add_help,
    )
    for title, some in (("accelerate's", (*CARRIED, *FSDP, *DEEPSPEED, *TORCH, *IDLE)), ("target", OURS)):
        group = new_parser.add_argument_group(title)
        for argument in some:
            torchrun_line.add(group, argument)
    new_parser.add_argument(
        "training_script", metavar="SCRIPT", help="a script, a module (-m) or a program (--no_python)"
    )
    new_parser.add_argument(
        "training_script_args", metavar="...", nargs=argparse.REMAINDER, help="its arguments, unchanged"
    )
    return new_parser


def read_line(words: Sequence[str], environ: Mapping[str, str]) -> argparse.Namespace:
    """Parse a command line and its configuration into a line of torchrun; `env` holds accelerate's variables.

    Raises:
        UsageError: an argument or a key is unknown or refused, or the configuration cannot be read.
    """
    launch_words, subcommand = _without_subcommand(words)
    if subcommand in OTHERS:
        raise UsageError(
            f"{COMMAND} {subcommand}: only `launch` is taken over", hint=f"accelerate {subcommand} as before"
        )
    for word in words[: count_own_words(words)]:
        name = word.removeprefix("--").partition("=")[0].replace("-", "_")
        if word.startswith("--") and (part := refused(name)):
            raise UsageError(f"{word.partition('=')[0]} of accelerate is not carried over", hint=WAYS[part])
    line = parser().parse_args(launch_words)
    flags = {argument.dest for argument in IDLE if getattr(line, argument.dest) != argument.default}
    # As there: the default one is for a command line that names neither a file nor --cpu.
    by_default = None if line.config_file or line.cpu else default_configuration(environ)
    file = Path(line.config_file) if line.config_file else by_default
    config = configuration(file) if file else {}
    notes = _settle(line, config)
    names = {argument.dest: f"--{argument.dest}" if argument.dest in flags else argument.dest for argument in IDLE}
    if str(line.machine_rank or 0) != "0" and (line.num_machines or 1) > 1:
        raise UsageError(
            f"{names['machine_rank']} is {line.machine_rank}: {COMMAND} is given once, and starts the ranks of all "
            "machines",
            hint=f"give it once, with {names['machine_rank']} left out",
        )
    torchrun_namespace = _torchrun(line, config, environ)
    if torchrun_namespace.has_all_devices and line.to == "local":
        del names["gpu_ids"]
    idle = [names[key] for key in names if getattr(line, key) not in (None, False, FILE_DEFAULTS.get(key))]
    if idle:
        notes.append(f"not used: {', '.join(idle)}; see {COMMAND} --help")
    if by_default:
        notes.append(f"settings of {by_default}, as in accelerate launch; --config_file names another file")
    torchrun_namespace.notes, torchrun_namespace.gpu_ids = notes, line.gpu_ids
    return torchrun_namespace


def _settle(line: argparse.Namespace, config: dict[str, Any]) -> list[str]:
    """Set what the command line leaves to the configuration, as the launcher does; return notes about that."""
    notes: list[str] = []
    ways = ("multi_gpu", "use_fsdp", "use_deepspeed")
    is_chosen = any(getattr(line, way) for way in ways)
    if is_chosen or line.cpu:
        config |= {way: getattr(line, way) for way in ways}
    if config.get("distributed_type") == "NO" and not is_chosen:
        notes += _one_process(line, config)
    elif line.cpu and (line.num_processes or config.get("num_processes") or 1) > 1:
        notes.append("with --cpu accelerate starts one process, and dljob as many ranks as --num_processes says")
    # DeepSpeed is told which settings its own file may not contradict: those of the configuration alone.
    line.deepspeed_fields = [
        *(config.get("deepspeed_config") or ()),
        *(["mixed_precision"] if config.get("mixed_precision") is not None and not line.mixed_precision else ()),
    ]
    for key, value in config.items():
        if hasattr(line, key) and (getattr(line, key) is None or getattr(line, key) is False):
            setattr(line, key, None if value == "no" and key != "mixed_precision" else value)
    unused = [f"--{flag.dest}" for flag in DEEPSPEED[1:] if getattr(line, flag.dest) is not None]
    if unused and not line.use_deepspeed:
        notes.append(f"not used without DeepSpeed, as in accelerate launch: {', '.join(unused)}")
    return notes


def _one_process(line: argparse.Namespace, config: dict[str, Any]) -> list[str]:
    """Let a configuration of type NO start one process, as its launcher does; return notes about that."""
    number = line.num_processes or config.get("num_processes") or 1
    if (line.num_machines or config.get("num_machines") or 1) > 1:
        raise UsageError("distributed_type NO is one process on one machine", hint="distributed_type: MULTI_GPU")
    line.num_processes, config["is_alone"] = 1, True
    words = f"one process, since distributed_type is NO: MULTI_GPU in the file, or --multi_gpu, starts {number} ranks"
    return [words] if number != 1 else []


def default_configuration(environ: Mapping[str, str]) -> Path | None:
    """Return the file that `accelerate config` wrote for this user; None when there is none."""
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    place = environ.get("HF_HOME") or f"{cache}/huggingface"
    # Not by `expanduser`, which would read the variables of this process.
    if place.startswith("~/") and environ.get("HOME"):
        place = environ["HOME"] + place[1:]
    file = Path(place, "accelerate", "default_config.yaml")
    return file if file.is_file() else None


def refused(name: str) -> str:
    """Return the part of accelerate that a flag or key belongs to, where it is refused; else empty."""
    return REFUSED.get(name) or next((part for prefix, part in PREFIXES.items() if name.startswith(prefix)), "")


def configuration(file: Path) -> dict[str, Any]:
    """Return the keys of a configuration file, with those of its parts, by the names of their flags.

    Raises:
        UsageError: the file is none, or has something that is refused.
    """
    try:
        size = file.stat().st_size
        if size > LARGEST:
            raise UsageError(
                f"{file} has {size} bytes: no configuration of accelerate has more than {LARGEST}",
                hint="`accelerate config` writes some 30 lines",
            )
        # PyYAML reads YAML 1.1, as kubectl does: `use_cpu: no` is false.
        documents = read_yaml(file.read_text(encoding="utf-8-sig"), kubectl="follow")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from None
    if len(documents) != 1 or not isinstance(documents[0].data, dict):
        broken = documents[0].faults[:1] if documents else []
        raise UsageError(
            f"{file}:{broken[0].mark.line}:{broken[0].mark.column}: {broken[0].message}"
            if broken
            else f"{file}: it is not one YAML mapping",
            hint="`accelerate config` writes one",
        )
    if documents[0].faults:
        first = documents[0].faults[0]
        raise UsageError(f"{file}:{first.mark.line}:{first.mark.column}: {first.message}", hint=first.hint)
    document = cast("dict[str, Any]", documents[0].data)
    _check(lambda *loc: f"{file}:{documents[0].key_mark(loc).line}:{documents[0].key_mark(loc).column}", document)
    settings = dict(document)
    for part in INNER:
        inside = cast("dict[str, Any]", document.get(part) or {})
        settings |= {_flag(part, key): value for key, value in inside.items()}
    kind = _kind(document)
    settings |= {"cpu": bool(document.get("use_cpu")), "distributed_type": kind}
    settings |= {"use_fsdp": kind == "FSDP", "use_deepspeed": kind == "DEEPSPEED", "multi_gpu": kind == "MULTI_GPU"}
    return settings


def _kind(document: Mapping[str, Any]) -> str:
    """Return the type of a configuration; NO without quotes is false to YAML."""
    return str(document.get("distributed_type") or "NO")


def _flag(part: str, key: str) -> str:
    """Return the flag of a key within a part: accelerate takes `version` in fsdp_config, too."""
    prefix = part.removesuffix("config")
    return key if key.startswith(prefix) or part == "deepspeed_config" else f"{prefix}{key}"


def _check(place: Callable[..., str], document: Mapping[str, Any]) -> None:
    """Raise UsageError at the place of a key that is unknown or refused."""
    flags = {argument.dest for argument in (*CARRIED, *IDLE, *TORCH)}
    for key, value in document.items():
        if value in (None, {}, [], False):
            known = key in flags or key in PLAIN or refused(key)
        elif part := refused(key):
            raise UsageError(f"{place(key)}: {key} of accelerate is not carried over", hint=WAYS[part])
        else:
            known = key in flags or key in PLAIN
        if not known:
            raise UsageError(f"{place(key)}: unknown key {key!r}", hint=suggestion(key, {*flags, *PLAIN, *REFUSED}))
    _check_kind(place, document)
    for part, known in INNER.items():
        inside = cast("dict[str, Any] | Any", document.get(part) or {})
        if not isinstance(inside, dict):
            raise UsageError(f"{place(part)}: {part} is no mapping", hint="`accelerate config` writes one")
        for key in cast("dict[str, Any]", inside):
            if _flag(part, key) not in known:
                raise UsageError(f"{place(part, key)}: unknown key {part}.{key}", hint=suggestion(key, known))


def _check_kind(place: Callable[..., str], document: Mapping[str, Any]) -> None:
    if (environment := document.get("compute_environment", "LOCAL_MACHINE")) != "LOCAL_MACHINE":
        raise UsageError(f"{place('compute_environment')}: compute_environment {environment}", hint=WAYS["sagemaker"])
    if (kind := _kind(document)) not in KINDS:
        part = next((way for way in WAYS if way.startswith(kind.lower().partition("_")[0])), "")
        raise UsageError(
            f"{place('distributed_type')}: distributed_type {kind} is not carried over",
            hint=WAYS.get(part, "see --help"),
        )


def _torchrun(line: argparse.Namespace, config: Mapping[str, Any], environ: Mapping[str, str]) -> argparse.Namespace:
    machines = line.num_machines or 1
    ranks: int | None = line.num_processes
    if ranks is not None and (ranks < 1 or ranks % machines):
        raise UsageError(f"--num_processes {ranks} on {machines} machines", hint="each machine has as many ranks")
    nproc = str(ranks // machines) if ranks is not None else "1" if line.cpu else "auto"
    words = [f"--nnodes={machines}", f"--nproc-per-node={nproc}"]
    for argument in (*TORCH, *OURS):
        value = getattr(line, argument.dest)
        if value != argument.default:
            words.append(f"--{argument.name}" if argument.flag else f"--{argument.name}={value}")
    if not line.accelerator and (line.cpu or line.multi_gpu):
        words.append(f"--accelerator={'none' if line.cpu else 'GPU'}")
    torchrun_namespace = torchrun_line.read([*words, line.training_script, *line.training_script_args], {})
    torchrun_namespace.env = dict(variables(line, config, environ))
    # One process drives all devices, as it likes.
    torchrun_namespace.has_all_devices = bool(config.get("is_alone")) and not line.accelerator and not line.cpu
    return torchrun_namespace


def variables(
    line: argparse.Namespace, config: Mapping[str, Any], environ: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield the variables by which accelerate tells its settings to the script."""
    yield "ACCELERATE_MIXED_PRECISION", line.mixed_precision or ("fp16" if config.get("fp16") else "no")
    yield "ACCELERATE_DYNAMO_BACKEND", str(line.dynamo_backend or "no").upper()
    if line.dynamo_mode is not None:
        yield "ACCELERATE_DYNAMO_MODE", str(line.dynamo_mode)
    for name, (variable, value) in SWITCHES.items():
        if getattr(line, name):
            yield f"ACCELERATE_{variable}", value
    threads = line.num_cpu_threads_per_process or environ.get("OMP_NUM_THREADS")
    if threads:
        yield "OMP_NUM_THREADS", str(threads)
    if line.use_deepspeed:
        yield from _deepspeed(line)
    elif line.use_fsdp:
        yield from _fsdp(line)


def _fsdp(line: argparse.Namespace) -> Iterator[tuple[str, str]]:
    yield "ACCELERATE_USE_FSDP", "true"
    for argument in FSDP:
        value = getattr(line, argument.dest)
        value = FSDP_DEFAULTS.get(argument.dest) if value is None else _word(value)
        if value is not None:
            yield argument.dest.upper().replace("TRANSFORMER_LAYER_CLS", "TRANSFORMER_CLS"), value


def _deepspeed(line: argparse.Namespace) -> Iterator[tuple[str, str]]:
    yield "ACCELERATE_USE_DEEPSPEED", "true"
    yield "ACCELERATE_CONFIG_DS_FIELDS", ",".join(line.deepspeed_fields).lower()
    for flag in DEEPSPEED[1:]:
        name = flag.dest.upper().removeprefix("DEEPSPEED_").replace("ZERO3_INIT_FLAG", "ZERO3_INIT")
        prefix = "" if name.startswith("GRADIENT_") else "DEEPSPEED_"
        if (value := getattr(line, flag.dest)) is not None:
            yield f"ACCELERATE_{prefix}{name}", _word(value)


def _word(value: object) -> str:
    """Return a value as the launcher writes it: truth in small letters."""
    return str(value).lower() if isinstance(value, bool) or str(value) in ("True", "False") else str(value)


def job(line: argparse.Namespace, site: torchrun.Site) -> torchrun.TorchrunJob:
    """Translate a command line that `read_line` has parsed."""
    kind = next((kind for kind in torchrun.AUTO if site.devices.get(kind)), "")
    if line.nproc_per_node == "auto" and site.local and not kind:
        line.nproc_per_node = "1"  # as in accelerate: without devices one process, and not one for each CPU
    if line.has_all_devices and site.local and kind:
        is_all = line.gpu_ids in (None, "all")
        line.accelerator = f"{kind}={site.devices[kind] if is_all else len(str(line.gpu_ids).split(','))}"
    if settings := line.env.get("ACCELERATE_DEEPSPEED_CONFIG_FILE"):
        line.env["ACCELERATE_DEEPSPEED_CONFIG_FILE"] = _in_folder(settings, line, site)
    torchrun_job = torchrun.job(line, site)
    (role,) = torchrun_job.document["spec"]["roles"]
    kept_variables = [variable for variable in role.get("env", []) if variable["name"] not in line.env]
    role["env"] = [*kept_variables, *({"name": name, "value": value} for name, value in line.env.items())]
    return replace(torchrun_job, notes=(*torchrun_job.notes, *line.notes))


def _in_folder(file: str, line: argparse.Namespace, site: torchrun.Site) -> str:
    """Return the path of DeepSpeed's file as the ranks find it, which start in the folder of the code."""
    if line.no_upload:
        return file
    folder = site.folder.resolve()
    path = (folder / file).resolve()
    if not path.is_file():
        raise UsageError(f"there is no {file}, DeepSpeed's own configuration", hint="--deepspeed_config_file FILE")
    if path.is_relative_to(folder):
        return str(path.relative_to(folder))
    if line.to == "kubernetes":
        raise UsageError(
            f"{file} is not below {site.folder}, which is the folder that the machines get", hint="copy it"
        )
    return str(path)
