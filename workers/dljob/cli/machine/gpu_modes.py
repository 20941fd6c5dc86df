"""GPUs that are divided among processes, as nvidia-smi tells it from NVML: MIG with its instances, and MPS."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from xml.etree import ElementTree

SMI = "nvidia-smi"
ANSWER_S = 20.0
"""Time limit, in seconds, of a question to the driver."""
_GPU = re.compile(r"GPU (\d+): .*")
_INSTANCE = re.compile(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (\S+)\)")
_SERVER = "nvidia-cuda-mps-server"


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A part of a GPU with memory and multiprocessors of its own."""

    profile: str
    """Its share, as 3g.40gb."""
    uuid: str


@dataclass(frozen=True, slots=True)
class GpuMode:
    """A GPU that is divided."""

    index: int
    mig: bool
    instances: tuple[MigInstance, ...]
    mps: bool
    """Whether a server of MPS runs on it, or a client of one."""


def gather() -> tuple[GpuMode, ...]:
    """Return the divided GPUs of this machine, in their order; none where nvidia-smi is not there or fails."""
    return parsed(_answer("-q", "-x"), _answer("-L"))


def _answer(*question: str) -> str:
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run([SMI, *question], capture_output=True, text=True, timeout=ANSWER_S, check=True)
        return done.stdout
    return ""


def parsed(log: str, listing: str) -> tuple[GpuMode, ...]:
    """Return the divided GPUs in the answers to `nvidia-smi -q -x` and `nvidia-smi -L`."""
    try:
        gpus = ElementTree.fromstring(log).findall("gpu")  # noqa: S314 - of the driver's own program
    except ElementTree.ParseError:
        return ()
    instances = _instances(listing.splitlines())
    modes = (
        GpuMode(index, gpu.findtext("mig_mode/current_mig") == "Enabled", instances.get(index, ()), _shared(gpu))
        for index, gpu in enumerate(gpus)
    )
    return tuple(mode for mode in modes if mode.mig or mode.mps)


def _instances(lines: Sequence[str]) -> dict[int, tuple[MigInstance, ...]]:
    instances_by_gpu: dict[int, tuple[MigInstance, ...]] = {}
    index = 0
    for line in lines:
        if gpu := _GPU.match(line):
            index = int(gpu[1])
        elif instance := _INSTANCE.match(line):
            instances_by_gpu[index] = (*instances_by_gpu.get(index, ()), MigInstance(instance[1], instance[2]))
    return instances_by_gpu


def _shared(gpu: ElementTree.Element) -> bool:
    processes = gpu.findall("processes/process_info")
    # The type of a client has an M: M, M+C. The server itself is a process of type C.
    clients = any("M" in (process.findtext("type") or "") for process in processes)
    return clients or any(_SERVER in (process.findtext("process_name") or "") for process in processes)
