"""A torchrun command as a DLJob: one Elastic role whose role groups are torchrun's nodes."""

from __future__ import annotations

import argparse
import posixpath
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dljob.api.torchrun_line import given
from dljob.errors import UsageError

AUTO = ("GPU", "NPU", "HPU")
"""What `--nproc-per-node=auto` counts, the first that the machine has; else its CPUs."""
FOR_EVER = 2592000
"""torchrun counts restarts from the start of the job; this is the longest window there is, a month."""
LONGEST_NAME = 47
LONGEST_ROLE = 24
NOT_USED = frozenset(
    {
        *("rdzv-backend", "rdzv-endpoint", "master-addr", "master-port", "local-addr", "monitor-interval"),
        *("start-method", "signals-to-handle", "shutdown-timeout", "event-log-handler", "logs-specs"),
        *("duplicate-stdout-filters", "duplicate-stderr-filters"),
    }
)
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
    device, word = accelerator(line, site, each, kind)
    now = least if site.local else most
    role: dict[str, Any] = {
        "name": _role(line.role),
        "type": "Elastic",
        "replicas": now * each,
        "replicasPerGroup": each,
        **({"minReplicas": least * each, "maxReplicas": most * each} if least < most else {}),
        "entrypoint": entrypoint(line, site),
        **({"args": line.training_script_args} if line.training_script_args else {}),
        **({"accelerator": near(line, device)} if device or line.numa_binding else {}),
        **({"comm": {"virtualLocalRank": True}} if line.virtual_local_rank else {}),
        "restartPolicy": {"maxRestarts": line.max_restarts},
    }
    spec: dict[str, Any] = {
        **({"image": line.image} if line.image else {}),
        **({"nodeGroups": [_machines(least, most, now, each, device)]} if most > 1 else {}),
        "roles": [role],
        "faultTolerance": {"maxRestarts": line.max_restarts, "windowSeconds": FOR_EVER},
        **_patience(line.rdzv_conf),
    }
    meta = {"name": name(line), **({"namespace": line.namespace} if line.namespace else {})}
    document = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": meta, "spec": spec}
    return Job(document, tuple(filter(None, (word, *_notes(line, site)))), each)


def _refuse(line: argparse.Namespace) -> None:
    if line.node_rank:
        raise UsageError(
            f"--node-rank={line.node_rank}: dljob torchrun is given once, and starts the ranks of all machines",
            hint="give it once, with --node-rank left out",
        )
    if line.max_restarts < 0:
        raise UsageError(f"--max-restarts={line.max_restarts} is below 0")


def nnodes(line: argparse.Namespace) -> tuple[int, int]:
    """The fewest and the most machines: `N` or `MIN:MAX`."""
    if line.standalone:
        return 1, 1
    found = re.fullmatch(r"(\d+)(?::(\d+))?", line.nnodes)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 0 < least <= most:
        raise UsageError(f"--nnodes={line.nnodes} is no number of machines", hint="write --nnodes=4 or --nnodes=2:8")
    return least, most


def nproc(line: argparse.Namespace, site: Site) -> tuple[int, str]:
    """Ranks on each machine; and of which device each has one, if the words say so."""
    said = line.nproc_per_node
    if said.isdigit() and int(said) > 0:
        return int(said), ""
    if said not in ("auto", "gpu", "cpu"):
        raise UsageError(f"--nproc-per-node={said} is no number of ranks", hint="write a number, or auto, gpu or cpu")
    if not site.local:
        raise UsageError(
            f"--nproc-per-node={said} is counted on this machine, and the job runs on others",
            hint="say how many: --nproc-per-node=8 --accelerator GPU",
        )
    kinds = {"auto": AUTO, "gpu": ("GPU",), "cpu": ()}[said]
    kind = next((kind for kind in kinds if site.devices.get(kind)), "")
    if said == "gpu" and not kind:
        raise UsageError("--nproc-per-node=gpu: this machine has no GPU", hint="--nproc-per-node=cpu, or a number")
    return (site.devices[kind], kind) if kind else (site.cpus, "")


def accelerator(line: argparse.Namespace, site: Site, each: int, kind: str) -> tuple[dict[str, Any], str]:
    """The devices of a rank, and a word where that may not be what was meant."""
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
    if here and site.devices[here] >= each:
        return {"type": here, "count": "1"}, ""
    if not here:
        return {}, ""
    few = f"{site.devices[here]} {here} here for {each} ranks: none gets one; --accelerator {here}=0.5 shares them"
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
    if line.no_python:
        if line.module:
            raise UsageError("--no-python and --module do not go together")
        return {"command": [script]}
    if line.module:
        return {"module": script}
    path = _inside(script, site)
    python = sys.executable if site.local else "python"
    return {"module": path} if path.endswith(".py") else {"command": [python, "-u", path]}


def _inside(script: str, site: Site) -> str:
    """The script from the folder of the code, as every machine has it."""
    path = (site.folder / script).resolve()
    if not path.exists():
        raise UsageError(f"there is no {script} in {site.folder}", hint="-m for a module, --no-python for a program")
    if path.is_relative_to(site.folder.resolve()):
        return posixpath.join(*path.relative_to(site.folder.resolve()).parts)
    if site.local:
        return str(path)
    raise UsageError(
        f"{script} is not below {site.folder}, which is the folder that the machines get",
        hint="go to a folder above it, or write -m for a module of the image",
    )


def _machines(least: int, most: int, now: int, each: int, device: Mapping[str, Any]) -> dict[str, Any]:
    """One node group: a machine for each role group."""
    count = float(device.get("count", 0)) * each
    devices = {"type": device["type"], "count": max(1, round(count))} if device else {}
    return {
        "name": "node",
        "replicas": now,
        **({"minReplicas": least, "maxReplicas": most} if least < most else {}),
        "cpu": str(each),
        **({"accelerator": devices} if devices else {}),
    }


def name(line: argparse.Namespace) -> str:
    """The job's name: what was said, else --rdzv-id, else the script's."""
    if line.name:
        return str(line.name)
    if line.rdzv_id != "none":
        return _named(line.rdzv_id, LONGEST_NAME)
    script = str(line.training_script)
    return _named(script.rpartition(".")[2] if line.module else Path(script).stem, LONGEST_NAME)


def _named(text: str, longest: int) -> str:
    """A text as names of Kubernetes are written."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return (plain if plain[:1].isalpha() else f"job-{plain}")[:longest].strip("-")


def _role(said: str) -> str:
    return _named(said, LONGEST_ROLE)


def _patience(conf: str) -> dict[str, Any]:
    """`join_timeout` (or `timeout`) of --rdzv-conf: how long the ranks are waited for at the start."""
    said: dict[str, str] = {}
    for pair in conf.split(","):
        key, _, value = pair.partition("=")
        said[key.strip()] = value.strip()
    seconds = said.get("join_timeout") or said.get("timeout", "")
    if not seconds:
        return {}
    if not seconds.isdigit() or not int(seconds):
        raise UsageError(f"--rdzv-conf: {seconds!r} is no number of seconds", hint="write --rdzv-conf join_timeout=600")
    return {"preRunningDeadlineSeconds": int(seconds)}


def _notes(line: argparse.Namespace, site: Site) -> tuple[str, ...]:
    """A word about what is taken and changes nothing."""
    idle = sorted(NOT_USED & set(given(line)))
    if not site.local and line.log_dir:
        idle.append("log-dir")
    flags = ", ".join(f"--{argument}" for argument in idle)
    return (f"not used: {flags}; dljob torchrun --help says what is instead",) if idle else ()
