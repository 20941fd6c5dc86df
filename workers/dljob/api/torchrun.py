"""Translation of a torchrun command line into a DLJob: one Elastic role whose role groups are torchrun's nodes."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from string import Template
from typing import Any

from dljob.api.torchrun_line import given_arguments, spelled
from dljob.errors import UsageError
from dljob.plan.env import DEFAULT_SIGNALS, SIGNALS
from dljob.spec.quantity import parse_devices
from dljob.spec.rules.machines import devices_per_group
from dljob.spec.rules.rules import RESERVED_ROLES
from dljob.spec.scalars import dns_name
from dljob.telemetry.wording import counted

AUTO = ("GPU", "NPU", "HPU")
"""Device kinds that `--nproc-per-node=auto` counts: the first that the machine has, else its CPUs."""
COUNTED: Mapping[str, tuple[str, ...]] = {
    "auto": AUTO,
    "gpu": ("GPU",),
    "npu": ("NPU",),
    "hpu": ("HPU",),
    "xpu": ("GPU",),
    "cpu": (),
}
"""Device kinds by word of `--nproc-per-node`; `xpu` are Intel GPUs, `npu` and `hpu` backends that plug into torch."""
FOR_EVER = 2592000
"""Longest restart window of the spec, 30 days: torchrun counts restarts from the start of the job, without a window."""
AT_ONCE = {"initialSeconds": 0, "maxSeconds": 0}
"""Backoff: torchrun has none."""
AGAIN = {"name": "torchrun", "onReasons": ["UserError", "ImportError"], "action": "RestartRole"}
"""Restart rule for errors of the script itself.

torchrun does not look at why a script failed: without this rule the same error twice would end the job before
`--max-restarts` is used up. The role's budget counts these restarts; a budget of the job as well would allow as many
    again.
"""
LOST = {
    "name": "lost-nodes",
    "onReasons": ["NodeLost", "NodeFrozen", "Preempted"],
    "action": "RestartRole",
    "countsTowardsLimit": False,
}
"""Restart rule for lost machines: torchrun counts failures of workers, not machines that leave."""
LONGEST_NAME = 47
LONGEST_ROLE = 24
NOT_USED = frozenset(
    {
        *("rdzv-backend", "rdzv-endpoint", "master-addr", "master-port", "local-addr", "monitor-interval"),
        *("start-method", "signals-to-handle", "shutdown-timeout", "event-log-handler", "logs-specs"),
        *("duplicate-stdout-filters", "duplicate-stderr-filters"),
    }
)
PLUGINS = {
    "rdzv-backend": ("torchrun.handlers", ("static", "c10d", "etcd", "etcd-v2")),
    "event-log-handler": ("", ("null", "console", "dynamic_rendezvous")),
    "logs-specs": ("torchrun.logs_specs", ()),
}
"""Argument that names a plugin of torch -> the group of its entry points, and the names that torch has itself."""
CONSOLE = frozenset({"redirects", "tee", "log-line-prefix-template", "local-ranks-filter"})
"""Options about how lines of ranks are shown; on Kubernetes they are shown as `dljob run` does."""
NUMA = {"node": "Node", "socket": "Socket", "exclusive": "Exclusive", "core-complex": "CoreComplex"}
"""Values of --numa-binding, with those of `accelerator.numaBinding`."""


@dataclass(frozen=True, slots=True)
class Site:
    """Place where the job runs, and facts about this machine."""

    local: bool
    cpus: int
    """Number of CPUs of this machine."""
    devices: Mapping[str, int]
    """Number of devices of this machine, by kind."""
    folder: Path
    """The folder of the code."""
    python: str = ""
    """Python of the script (torchrun's PYTHON_EXEC); empty: dljob's own, whose ranks are forked."""
    threads: str | None = None
    """OMP_NUM_THREADS of this command; None: unset."""


@dataclass(frozen=True, slots=True)
class TorchrunJob:
    """Result of the translation."""

    document: dict[str, Any]
    """The DLJob as a document, like YAML."""
    notes: tuple[str, ...]
    """Notes for the user about arguments without effect."""
    ranks_per_node: int


def job(line: argparse.Namespace, site: Site) -> TorchrunJob:
    """Translate a command line that `torchrun_line.read` has parsed.

    Raises:
        UsageError: the arguments contradict each other, or dljob cannot do what they ask.
    """
    _refuse(line)
    least, most = nnodes(line)
    ranks_per_node, kind = nproc(line, site)
    # A laptop cannot wait for further machines: the job begins at the minimum. On a cluster it asks for the maximum
    # and shrinks to what it gets.
    now = least if site.local else most
    device, word = accelerator(line, site, now * ranks_per_node, kind)
    role: dict[str, Any] = {
        "name": _role(line.role),
        "type": "Elastic",
        "replicas": now * ranks_per_node,
        "replicasPerGroup": ranks_per_node,
        **({"minReplicas": least * ranks_per_node, "maxReplicas": most * ranks_per_node} if least < most else {}),
        "entrypoint": entrypoint(line, site),
        **(
            {"args": [argument(ranks_per_node) for ranks_per_node in script_args]}
            if (script_args := line.training_script_args)
            else {}
        ),
        **({"accelerator": near(line, device)} if device or line.numa_binding else {}),
        **({"comm": {"virtualLocalRank": True}} if line.virtual_local_rank else {}),
        **(
            {"env": user_variables}
            if (user_variables := _user_spelling(line, _threads(site, most * ranks_per_node)))
            else {}
        ),
        "restartPolicy": {"maxRestarts": line.max_restarts},
    }
    spec: dict[str, Any] = {
        **({"image": line.image} if line.image else {}),
        **({"nodeGroups": [_machines(least, most, now, ranks_per_node, device)]} if most > 1 else {}),
        "roles": [role],
        # No budget of the job besides the role's: restarts that the role has used up would begin anew in that one.
        "faultTolerance": {"maxRestarts": 0, "windowSeconds": FOR_EVER, "backoff": AT_ONCE, "rules": [LOST, AGAIN]},
        **_patience(line),
    }
    meta = {"name": name(line), **({"namespace": line.namespace} if line.namespace else {})}
    document = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": meta, "spec": spec}
    return TorchrunJob(document, tuple(filter(None, (word, *_notes(line)))), ranks_per_node)


def _refuse(line: argparse.Namespace) -> None:
    if not line.training_script:
        raise UsageError("SCRIPT is empty", hint="name a script, a module with -m, or a program with --no-python")
    # torchrun is started on each machine with another --node-rank; a copied line would submit the job many times.
    if line.node_rank:
        option = spelled(line, "node-rank")
        raise UsageError(
            f"{option}={line.node_rank}: dljob torchrun is given once, and starts the ranks of all machines",
            hint=f"give it once, with {option} left out",
        )
    if line.max_restarts < 0:
        raise UsageError(f"{spelled(line, 'max-restarts')}={line.max_restarts} is below 0")


def refuse_unknown_plugins(line: argparse.Namespace) -> None:
    """Refuse names that torchrun would not find on this machine, though dljob does not use what they name.

    Raises:
        UsageError: a name is unknown.
    """
    for option, (group, known) in PLUGINS.items():
        text = getattr(line, option.replace("-", "_"))
        if text and text not in known and not (group and entry_points(group=group, name=text)):
            names = f"there are {', '.join(known)}" if known else f"it is the name of an entry point of {group}"
            raise UsageError(f"{spelled(line, option)}={text}: torch knows no such name", hint=names)


def nnodes(line: argparse.Namespace) -> tuple[int, int]:
    """Return the minimum and maximum number of machines, from `N` or `MIN:MAX`; one with --standalone."""
    match = re.fullmatch(r"(\d+)(?::(\d+))?", line.nnodes)
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    option = f"{spelled(line, 'nnodes')}={line.nnodes}"
    if not 0 < least <= most:
        raise UsageError(f"{option} is no number of machines", hint="write --nnodes=4 or --nnodes=2:8")
    if not line.standalone:
        return least, most
    # Under torchrun a standalone node never meets another: it waits in vain, or goes on alone where MIN is 1.
    if least > 1:
        standalone_option = spelled(line, "standalone")
        raise UsageError(
            f"{option}: {standalone_option} is one machine", hint=f"leave {standalone_option} out, or write --nnodes=1"
        )
    return 1, 1


def nproc(line: argparse.Namespace, site: Site) -> tuple[int, str]:
    """Return the ranks of each machine, and the device kind that was counted; empty when a number was given."""
    count_text, option = line.nproc_per_node, f"{spelled(line, 'nproc-per-node')}={line.nproc_per_node}"
    if count_text.isdecimal() and int(count_text) > 0:
        return int(count_text), ""
    if count_text not in COUNTED:
        words = "write a number, or auto, gpu, npu, hpu, xpu or cpu"
        raise UsageError(f"{option} is no number of ranks", hint=words)
    kinds = COUNTED[count_text]
    if not site.local:
        raise UsageError(
            f"{option} is counted on this machine, and the job runs on others",
            hint=f"say how many: --nproc-per-node=8 --accelerator {(kinds or AUTO)[0]}",
        )
    # torch counts the first backend that is available, and CPUs where there is none.
    kind = next((kind for kind in kinds if site.devices.get(kind)), "")
    if count_text not in ("auto", "cpu") and not kind:
        raise UsageError(f"{option}: this machine has no {kinds[0]}", hint="--nproc-per-node=cpu, or a number")
    return (site.devices[kind], kind) if kind else (site.cpus, "")


def accelerator(line: argparse.Namespace, site: Site, ranks: int, kind: str) -> tuple[dict[str, Any], str]:
    """Return the devices of a rank, and a note when they may differ from what the user meant.

    Args:
        line: the command line.
        site: where the job runs.
        ranks: the number of ranks on all machines.
        kind: the device kind that `nproc` counted, or empty.
    """
    device_text = line.accelerator
    if device_text == "none":
        return {}, ""
    if device_text:
        named, _, count = device_text.partition("=")
        return {"type": named, "count": count or "1"}, ""
    if kind:
        return {"type": kind, "count": "1"}, ""
    if not site.local:
        return {}, "no rank gets a device: --accelerator GPU gives one to each"
    # torchrun knows no devices: each process takes cuda:LOCAL_RANK. Give each rank one where there are enough.
    device_kind = next((kind for kind in AUTO if site.devices.get(kind)), "")
    if device_kind and site.devices[device_kind] >= ranks:
        return {"type": device_kind, "count": "1"}, ""
    if not device_kind:
        return {}, ""
    words = f"{site.devices[device_kind]} {device_kind} here for {counted(ranks, 'rank')}: none gets one"
    few = f"{words}; --accelerator {device_kind}=0.5 shares them"
    return {}, few


def near(line: argparse.Namespace, device: Mapping[str, Any]) -> dict[str, Any]:
    """Return the devices of a rank with the placement of --numa-binding."""
    if not line.numa_binding:
        return dict(device)
    if not device:
        raise UsageError(
            f"--numa-binding={line.numa_binding}: no accelerator available for NUMA binding, which is to the "
            "cores near a rank's device",
            hint="give each rank one, with --accelerator GPU, or leave --numa-binding out",
        )
    return {**device, "numaBinding": NUMA[line.numa_binding]}


def entrypoint(line: argparse.Namespace, site: Site) -> dict[str, Any]:
    """Return the entrypoint of the role."""
    script = line.training_script
    if line.no_python and not line.run_path:  # torch's order of the three
        if line.module:
            raise UsageError("--no-python and --module do not go together")
        return {"command": [script]}
    # --run-path makes a script of anything, and torch runs it in the present interpreter.
    chosen = site.python if not line.run_path else ""
    if line.module and not line.run_path:
        return {"command": [chosen, "-u", "-m", script]} if chosen else {"module": script}
    path = _path(line, site)
    # Python files run in dljob's own interpreter, whose ranks are forked; only another interpreter needs a command.
    if path.endswith(".py") and not chosen:
        return {"module": path}
    # `-u` as torchrun gives it: lines arrive when they are printed.
    return {"command": [chosen or (sys.executable if site.local else "python"), "-u", path]}


def argument(script_argument: str) -> str:
    """Escape an argument of the script for a job, after expanding torchrun's `$$` and `$local_rank`.

    Source: torch 2.15, `elastic.utils.api.macros`. A job knows `${local_rank}`, and `$$` in front of `{local_rank}`.
    """
    expanded = Template(script_argument).safe_substitute(local_rank="\0")  # a placeholder: no argument can contain NUL
    return re.sub(r"(\$*)(\0|\{local_rank\})", lambda match: match[1] * 2 + match[2], expanded).replace(
        "\0", "${local_rank}"
    )


def _path(line: argparse.Namespace, site: Site) -> str:
    """Return the script's path as every machine finds it: relative to the code folder when it lies in there."""
    script = str(line.training_script)
    if line.no_upload:  # the script is in the image, which cannot be looked into from here
        return script
    folder = site.folder.resolve()
    path = (folder / script).resolve()
    if not path.exists():
        raise UsageError(f"there is no {script} in {site.folder}", hint="-m for a module, --no-python for a program")
    # Only this folder travels to other machines, and there it has another absolute path.
    if path.is_relative_to(folder):
        return str(path.relative_to(folder))
    if line.to != "kubernetes":
        return str(path)
    raise UsageError(
        f"{script} is not below {site.folder}, which is the folder that the machines get",
        hint="go to a folder above it, or give --no-upload for a script of the image",
    )


def _machines(least: int, most: int, now: int, ranks_per_node: int, device: Mapping[str, Any]) -> dict[str, Any]:
    """Return the node group: one machine for each role group."""
    devices = {"type": device["type"], "count": _devices(device, ranks_per_node)} if device else {}
    return {
        "name": "node",
        "replicas": now,
        **({"minReplicas": least, "maxReplicas": most} if least < most else {}),
        "cpu": str(ranks_per_node),
        **({"accelerator": devices} if devices else {}),
    }


def _devices(device: Mapping[str, Any], ranks_per_node: int) -> int:
    """Return the whole devices of a machine: a share never spans two devices."""
    try:
        return devices_per_group(ranks_per_node, parse_devices(str(device["count"])))
    except ValueError as error:
        raise UsageError(f"--accelerator {device['type']}={device['count']}: {error}") from error


def _threads(site: Site, ranks: int) -> str | None:
    """Return OMP_NUM_THREADS as torchrun would leave it; None: as dljob sets it.

    A single rank on this machine gets this machine's CPUs; elsewhere ranks get as many as they reserve.
    """
    # torchrun sets it to 1 only when it is unset and there are several ranks. A host cannot tell whether a user set
    # it, because Ray sets the variable in all its processes, so it is decided here.
    return str(site.cpus) if site.threads is None and site.local and ranks == 1 else site.threads


def _user_spelling(line: argparse.Namespace, threads: str | None) -> list[dict[str, str]]:
    """Return variables with the user's own words: names that had to become Kubernetes names, and signals."""
    variables = {"ROLE_NAME": line.role} if line.role != _role(line.role) else {}
    # "none" is torchrun's default, and means that no id was given.
    variables |= {"TORCHELASTIC_RUN_ID": line.rdzv_id} if line.rdzv_id != "none" else {}
    variables |= {SIGNALS: line.signals_to_handle} if line.signals_to_handle != DEFAULT_SIGNALS else {}
    variables |= {"OMP_NUM_THREADS": threads} if threads is not None else {}
    return [{"name": variable, "value": value} for variable, value in variables.items()]


def has_derived_name(line: argparse.Namespace) -> bool:
    """Whether the job is named after its script; a second one that runs at once gets a number."""
    return not line.name and line.rdzv_id == "none"


def name(line: argparse.Namespace) -> str:
    """Return the job's name: --name, else from --rdzv-id, else from the script."""
    if not has_derived_name(line):
        return str(line.name or dns_name(line.rdzv_id, LONGEST_NAME))
    script = str(line.training_script)
    return dns_name(script.rpartition(".")[2] if line.module else Path(script).stem, LONGEST_NAME)


def _role(role_text: str) -> str:
    """Convert the role's name; torchrun has no reserved names, dljob has."""
    named = dns_name(role_text, LONGEST_ROLE, "role")
    return f"role-{named}" if named in RESERVED_ROLES else named


def _conf(line: argparse.Namespace) -> dict[str, str]:
    """Parse --rdzv-conf: `k1=v1,k2=v2`."""
    pairs = [pair.partition("=") for pair in line.rdzv_conf.split(",") if pair.strip()]
    if wrong := [key for key, sign, _ in pairs if not (key.strip() and sign)]:
        option = spelled(line, "rdzv-conf")
        raise UsageError(f"{option}: {wrong[0]!r} is no pair", hint="write --rdzv-conf join_timeout=600,timeout=60")
    return {key.strip(): value.strip() for key, _, value in pairs}


def _patience(line: argparse.Namespace) -> dict[str, Any]:
    """Return the deadline for all ranks to be ready, from `join_timeout` (or `timeout`) of --rdzv-conf."""
    # The only settings of the rendezvous with an equivalent: PrimeMaster replaces the rest of it.
    conf = _conf(line)
    seconds = conf.get("join_timeout") or conf.get("timeout", "")
    if not seconds:
        return {}
    if not seconds.isdecimal() or not int(seconds):
        option = spelled(line, "rdzv-conf")
        raise UsageError(f"{option}: {seconds!r} is no number of seconds", hint="write --rdzv-conf join_timeout=600")
    return {"preRunningDeadlineSeconds": int(seconds)}


def _notes(line: argparse.Namespace) -> tuple[str, ...]:
    """Return the notes about accepted options without effect."""
    given_names = set(given_arguments(line))
    idle = sorted(NOT_USED & given_names)
    idle += sorted({*CONSOLE, "log-dir"} & given_names) if line.to == "kubernetes" else []
    idle += ["nnodes"] if line.standalone and ":" in line.nnodes and "nnodes" in given_names else []
    flags = [spelled(line, argument) for argument in idle]
    flags += [f"{spelled(line, 'rdzv-conf')} {key}" for key in sorted(_conf(line).keys() - {"join_timeout", "timeout"})]
    words = [f"not used: {', '.join(flags)}; see dljob torchrun --help"] if flags else []
    if line.to not in ("local", "kubernetes"):
        words.append("only logs that can be read here are shown: those of all ranks if DLJOB_HOME is on a shared disk")
    return tuple(words)
