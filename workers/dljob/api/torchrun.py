"""A torchrun command as a DLJob: one Elastic role whose role groups are torchrun's nodes."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from dljob.api.torchrun_line import given, spelled
from dljob.errors import UsageError
from dljob.spec.machines import devices_per_group
from dljob.spec.quantity import parse_devices
from dljob.spec.rules import RESERVED_ROLES

AUTO = ("GPU", "NPU", "HPU")
"""What `--nproc-per-node=auto` counts, the first that the machine has; else its CPUs."""
COUNTED: Mapping[str, tuple[str, ...]] = {
    "auto": AUTO,
    "gpu": ("GPU",),
    "npu": ("NPU",),
    "hpu": ("HPU",),
    "xpu": ("GPU",),
    "cpu": (),
}
"""What `--nproc-per-node` may count: `xpu` are GPUs of Intel, `npu` and `hpu` the backends that plug into torch."""
FOR_EVER = 2592000
"""torchrun counts restarts from the start of the job; this is the longest window there is, a month."""
AGAIN = {"name": "torchrun", "onReasons": ["UserError", "ImportError"], "action": "RestartRole"}
"""torchrun does not look at what a script failed of: the same error twice is two failures, and no end before the count.
All of them are the role's: with a budget of the job as well, there would be as many again."""
LONGEST_NAME = 47
LONGEST_ROLE = 24
NOT_USED = frozenset(
    {
        *("rdzv-backend", "rdzv-endpoint", "master-addr", "master-port", "local-addr", "monitor-interval"),
        *("start-method", "signals-to-handle", "shutdown-timeout", "event-log-handler", "logs-specs"),
        *("duplicate-stdout-filters", "duplicate-stderr-filters"),
    }
)
CONSOLE = frozenset({"redirects", "tee", "log-line-prefix-template", "local-ranks-filter"})
"""What is said of the lines of ranks; on Kubernetes they come as `dljob run` shows them."""
NUMA = {"node": "Node", "socket": "Socket", "exclusive": "Exclusive", "core-complex": "CoreComplex"}
"""--numa-binding, and how `accelerator.numaBinding` says it."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where the job is to run."""

    local: bool
    cpus: int
    """Of this machine."""
    devices: Mapping[str, int]
    """Of this machine, by kind."""
    folder: Path
    """The folder of the code."""
    python: str = ""
    """What is to run the script (torchrun's PYTHON_EXEC); empty: a Python that ranks are forked from."""
    threads: str | None = None
    """OMP_NUM_THREADS of this command; None: it is not set."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a command means."""

    document: dict[str, Any]
    """The DLJob, as YAML has it."""
    notes: tuple[str, ...]
    """What the user is told of arguments that change nothing here."""
    ranks_per_node: int


def job(line: argparse.Namespace, site: Site) -> Job:
    """The DLJob of a command that `torchrun_line.read` has read.

    Raises:
        UsageError: it cannot be done.
    """
    _refuse(line)
    least, most = nnodes(line)
    each, kind = nproc(line, site)
    now = least if site.local else most
    device, word = accelerator(line, site, now * each, kind)
    role: dict[str, Any] = {
        "name": _role(line.role),
        "type": "Elastic",
        "replicas": now * each,
        "replicasPerGroup": each,
        **({"minReplicas": least * each, "maxReplicas": most * each} if least < most else {}),
        "entrypoint": entrypoint(line, site),
        **({"args": [argument(each) for each in said]} if (said := line.training_script_args) else {}),
        **({"accelerator": near(line, device)} if device or line.numa_binding else {}),
        **({"comm": {"virtualLocalRank": True}} if line.virtual_local_rank else {}),
        **({"env": told} if (told := _told(line, _threads(site, most * each))) else {}),
        "restartPolicy": {"maxRestarts": line.max_restarts},
    }
    spec: dict[str, Any] = {
        **({"image": line.image} if line.image else {}),
        **({"nodeGroups": [_machines(least, most, now, each, device)]} if most > 1 else {}),
        "roles": [role],
        "faultTolerance": {"maxRestarts": 0, "windowSeconds": FOR_EVER, "rules": [AGAIN]},
        **_patience(line),
    }
    meta = {"name": name(line), **({"namespace": line.namespace} if line.namespace else {})}
    document = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": meta, "spec": spec}
    return Job(document, tuple(filter(None, (word, *_notes(line)))), each)


def _refuse(line: argparse.Namespace) -> None:
    if not line.training_script:
        raise UsageError("SCRIPT is empty", hint="name a script, a module with -m, or a program with --no-python")
    if line.node_rank:
        said = spelled(line, "node-rank")
        raise UsageError(
            f"{said}={line.node_rank}: dljob torchrun is given once, and starts the ranks of all machines",
            hint=f"give it once, with {said} left out",
        )
    if line.max_restarts < 0:
        raise UsageError(f"{spelled(line, 'max-restarts')}={line.max_restarts} is below 0")


def nnodes(line: argparse.Namespace) -> tuple[int, int]:
    """The fewest and the most machines: `N` or `MIN:MAX`.

    Under torchrun a standalone node meets no other one: it waits for them in vain, or goes on alone where MIN is 1.
    """
    found = re.fullmatch(r"(\d+)(?::(\d+))?", line.nnodes)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    said = f"{spelled(line, 'nnodes')}={line.nnodes}"
    if not 0 < least <= most:
        raise UsageError(f"{said} is no number of machines", hint="write --nnodes=4 or --nnodes=2:8")
    if not line.standalone:
        return least, most
    if least > 1:
        alone = spelled(line, "standalone")
        raise UsageError(f"{said}: {alone} is one machine", hint=f"leave {alone} out, or write --nnodes=1")
    return 1, 1


def nproc(line: argparse.Namespace, site: Site) -> tuple[int, str]:
    """Ranks on each machine; and of which device each has one, if the words say so."""
    said, here = line.nproc_per_node, f"{spelled(line, 'nproc-per-node')}={line.nproc_per_node}"
    if said.isdecimal() and int(said) > 0:
        return int(said), ""
    if said not in COUNTED:
        words = "write a number, or auto, gpu, npu, hpu, xpu or cpu"
        raise UsageError(f"{here} is no number of ranks", hint=words)
    kinds = COUNTED[said]
    if not site.local:
        raise UsageError(
            f"{here} is counted on this machine, and the job runs on others",
            hint=f"say how many: --nproc-per-node=8 --accelerator {(kinds or AUTO)[0]}",
        )
    kind = next((kind for kind in kinds if site.devices.get(kind)), "")
    if said not in ("auto", "cpu") and not kind:
        raise UsageError(f"{here}: this machine has no {kinds[0]}", hint="--nproc-per-node=cpu, or a number")
    return (site.devices[kind], kind) if kind else (site.cpus, "")


def accelerator(line: argparse.Namespace, site: Site, ranks: int, kind: str) -> tuple[dict[str, Any], str]:
    """The devices of a rank, and a word where that may not be what was meant. `ranks` are those of all machines."""
    said = line.accelerator
    if said == "none":
        return {}, ""
    if said:
        named, _, count = said.partition("=")
        return {"type": named, "count": count or "1"}, ""
    if kind:
        return {"type": kind, "count": "1"}, ""
    if not site.local:
        return {}, "no rank gets a device: --accelerator GPU gives one to each"
    here = next((kind for kind in AUTO if site.devices.get(kind)), "")
    if here and site.devices[here] >= ranks:
        return {"type": here, "count": "1"}, ""
    if not here:
        return {}, ""
    few = f"{site.devices[here]} {here} here for {ranks} ranks: none gets one; --accelerator {here}=0.5 shares them"
    return {}, few


def near(line: argparse.Namespace, device: Mapping[str, Any]) -> dict[str, Any]:
    """The devices of a rank, with what --numa-binding says of them."""
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
    """What each rank runs."""
    script = line.training_script
    if line.no_python and not line.run_path:  # torch's order of the three
        if line.module:
            raise UsageError("--no-python and --module do not go together")
        return {"command": [script]}
    chosen = site.python if not line.run_path else ""
    if line.module and not line.run_path:
        return {"command": [chosen, "-u", "-m", script]} if chosen else {"module": script}
    path = _path(line, site)
    if path.endswith(".py") and not chosen:
        return {"module": path}
    return {"command": [chosen or (sys.executable if site.local else "python"), "-u", path]}


def argument(said: str) -> str:
    """A script's argument as a job has it: torchrun's `$$` and `$local_rank` are plain text to a job.

    Source: torch 2.15, `elastic.utils.api.macros`. A job knows `${local_rank}`, and `$$` in front of `{local_rank}`.
    """
    meant = Template(said).safe_substitute(local_rank="\0")  # which no argument has
    return re.sub(r"(\$*)(\0|\{local_rank\})", lambda found: found[1] * 2 + found[2], meant).replace(
        "\0", "${local_rank}"
    )


def _path(line: argparse.Namespace, site: Site) -> str:
    """The script as every machine finds it: from the folder of the code where it is in there."""
    script = str(line.training_script)
    if line.no_upload:  # it is in the image, and nobody here can look
        return script
    folder = site.folder.resolve()
    path = (folder / script).resolve()
    if not path.exists():
        raise UsageError(f"there is no {script} in {site.folder}", hint="-m for a module, --no-python for a program")
    if path.is_relative_to(folder):
        return str(path.relative_to(folder))
    if line.to != "kubernetes":
        return str(path)
    raise UsageError(
        f"{script} is not below {site.folder}, which is the folder that the machines get",
        hint="go to a folder above it, or give --no-upload for a script of the image",
    )


def _machines(least: int, most: int, now: int, each: int, device: Mapping[str, Any]) -> dict[str, Any]:
    """One node group: a machine for each role group."""
    devices = {"type": device["type"], "count": _devices(device, each)} if device else {}
    return {
        "name": "node",
        "replicas": now,
        **({"minReplicas": least, "maxReplicas": most} if least < most else {}),
        "cpu": str(each),
        **({"accelerator": devices} if devices else {}),
    }


def _devices(device: Mapping[str, Any], each: int) -> int:
    """Whole devices of a machine: no share lies on two of them."""
    try:
        return devices_per_group(each, parse_devices(str(device["count"])))
    except ValueError as error:
        raise UsageError(f"--accelerator {device['type']}={device['count']}: {error}") from error


def _threads(site: Site, ranks: int) -> str | None:
    """OMP_NUM_THREADS where torchrun has it as it is: it writes its 1 only where nobody said any, for several ranks.

    A host cannot tell whether somebody did: Ray sets the variable in all its processes. So one rank alone on this
    machine is given what the machine has, and elsewhere ranks have the CPUs that they take.
    """
    return str(site.cpus) if site.threads is None and site.local and ranks == 1 else site.threads


def _told(line: argparse.Namespace, threads: str | None) -> list[dict[str, str]]:
    """What the script is to find as it was said: names of ours are written in another way."""
    said = {"ROLE_NAME": line.role} if line.role != _role(line.role) else {}
    said |= {"TORCHELASTIC_RUN_ID": line.rdzv_id} if line.rdzv_id != "none" else {}
    said |= {"OMP_NUM_THREADS": threads} if threads is not None else {}
    return [{"name": variable, "value": value} for variable, value in said.items()]


def name(line: argparse.Namespace) -> str:
    """The job's name: what was said, else --rdzv-id, else the script's."""
    if line.name:
        return str(line.name)
    if line.rdzv_id != "none":
        return _named(line.rdzv_id, LONGEST_NAME)
    script = str(line.training_script)
    return _named(script.rpartition(".")[2] if line.module else Path(script).stem, LONGEST_NAME)


def _named(text: str, longest: int, kind: str = "job") -> str:
    """A text as names of Kubernetes are written; what it is of begins that of one that has no letter to begin with."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return (plain if plain[:1].isalpha() else f"{kind}-{plain}")[:longest].strip("-")


def _role(said: str) -> str:
    """The role's name here: torchrun knows no words that are taken."""
    named = _named(said, LONGEST_ROLE, "role")
    return f"role-{named}" if named in RESERVED_ROLES else named


def _conf(line: argparse.Namespace) -> dict[str, str]:
    """--rdzv-conf: `k1=v1,k2=v2`."""
    pairs = [pair.partition("=") for pair in line.rdzv_conf.split(",") if pair.strip()]
    if wrong := [key for key, sign, _ in pairs if not (key.strip() and sign)]:
        said = spelled(line, "rdzv-conf")
        raise UsageError(f"{said}: {wrong[0]!r} is no pair", hint="write --rdzv-conf join_timeout=600,timeout=60")
    return {key.strip(): value.strip() for key, _, value in pairs}


def _patience(line: argparse.Namespace) -> dict[str, Any]:
    """`join_timeout` (or `timeout`) of --rdzv-conf: how long the ranks are waited for at the start."""
    conf = _conf(line)
    seconds = conf.get("join_timeout") or conf.get("timeout", "")
    if not seconds:
        return {}
    if not seconds.isdecimal() or not int(seconds):
        said = spelled(line, "rdzv-conf")
        raise UsageError(f"{said}: {seconds!r} is no number of seconds", hint="write --rdzv-conf join_timeout=600")
    return {"preRunningDeadlineSeconds": int(seconds)}


def _notes(line: argparse.Namespace) -> tuple[str, ...]:
    """A word about what is taken and changes nothing."""
    said = set(given(line))
    idle = sorted(NOT_USED & said)
    idle += sorted({*CONSOLE, "log-dir"} & said) if line.to == "kubernetes" else []
    idle += ["nnodes"] if line.standalone and ":" in line.nnodes and "nnodes" in said else []
    flags = [spelled(line, argument) for argument in idle]
    flags += [f"{spelled(line, 'rdzv-conf')} {key}" for key in sorted(_conf(line).keys() - {"join_timeout", "timeout"})]
    words = [f"not used: {', '.join(flags)}; dljob torchrun --help says what is instead"] if flags else []
    if line.to not in ("local", "kubernetes"):
        words.append("lines are shown of ranks whose log can be read here: of all where DLJOB_HOME is on a shared disk")
    return tuple(words)
