"""Binding of ranks to the cores near their devices, by torch's rules: `torch.numa.binding`, torchrun's --numa-binding.

torch initialises a device to find its NUMA node, and all devices for `exclusive` and `core-complex`. A probe process
does that once per host, as torchrun does it in its agent and not in its ranks. The probe sees all devices of the
machine, whoever uses them, so that two jobs on one machine do not get the same cores.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dljob.master.state.actions import RankStart
from dljob.runtime.process.environment import variable_of

LOOK_S = 180.0
"""Seconds for the probe to import torch and look at all devices."""
_BOOT = """import json, sys
boot = json.loads(sys.argv.pop())
sys.path[:] = boot.pop("path") + (sys.path if boot.pop("own") else [])
from dljob.runtime.worker.numa import main
main(**boot)
"""


@dataclass(frozen=True, slots=True)
class Near:
    """The cores of one device, or the reason why there are none."""

    cores: tuple[int, ...] = ()
    error: str = ""


class BindingError(Exception):
    """A rank cannot be bound to the cores near its device."""


class Cores:
    """The cores near the devices of a host's ranks. `mode` is torch's affinity mode; empty: no rank is bound.

    `python` is the interpreter of the ranks, and a folder that holds dljob for it; empty: this one, with `import_path`.
    """

    def __init__(self, mode: str, python: tuple[str, str] = ("", ""), import_path: Sequence[str] = ()) -> None:
        self._mode = mode
        self._python = python
        self._import_path = import_path
        self._known: dict[str, Near] = {}

    def find(self, starts: Iterable[RankStart], kind: str) -> None:
        """Find the cores of ranks about to start, as far as they are unknown; takes seconds the first time."""
        if not self._mode:
            return
        devices = {device: None for start in starts for device in dict(start.devices).get(kind, ())}
        if not devices.keys() <= self._known.keys():
            self._known |= probe_cores(self._mode, tuple(devices), variable_of(kind), self._python, self._import_path)

    def of(self, start: RankStart, kind: str) -> dict[str, Any] | None:
        """Return what `bind` needs for a rank; None: the rank is not bound."""
        if not self._mode:
            return None
        device = _device_of(start, kind)
        near = self._known.get(device) or Near(error=f"Ray assigned no {kind} to it")
        return {"mode": self._mode, "device": f"{kind} {device}", "cores": near.cores, "error": near.error}


def _device_of(start: RankStart, kind: str) -> str:
    ids = dict(start.devices).get(kind, ())
    return ids[start.device_index] if ids else ""


def probe_cores(
    mode: str,
    devices: Sequence[str],
    variable: str,
    python: tuple[str, str] = ("", ""),
    import_path: Sequence[str] = (),
) -> dict[str, Near]:
    """Ask torch, in a probe process, for the cores near each device; `variable` names the visible devices there."""
    program, library = python
    path = [library] if program else [entry for entry in import_path or sys.path if entry]
    boot = {"path": path, "own": bool(program), "mode": mode, "devices": devices, "variable": variable}
    # -P: no file of the current folder may stand in for a module.
    command = [program or sys.executable, "-P", "-c", _BOOT, json.dumps(boot)]
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LOOK_S, check=False)
    except subprocess.TimeoutExpired:
        return dict.fromkeys(devices, Near(error=f"torch did not report its cores within {LOOK_S:g} s"))
    if ended.returncode:
        last_line = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        words = f"the process that asked torch for its cores ended with code {ended.returncode}: {last_line}"
        return dict.fromkeys(devices, Near(error=words))
    # Only the last line: modules that the probe imports may print, too.
    cores_by_device = json.loads(ended.stdout.splitlines()[-1])
    return {device: Near(tuple(cores), error) for device, (cores, error) in cores_by_device.items()}


def main(mode: str, devices: Sequence[str], variable: str) -> None:
    """Print the cores near each device as JSON: {device: [cores, error]}."""
    if all(device.isdecimal() for device in devices):
        os.environ.pop(variable, None)
        indices = {device: int(device) for device in devices}
    else:  # ids of another form (UUIDs) are translated by the variable alone: torch sees no other devices then
        os.environ[variable] = ",".join(devices)
        indices = {device: index for index, device in enumerate(devices)}
    sys.stdout.write(f"\n{json.dumps({device: _near(mode, index) for device, index in indices.items()})}\n")


def _near(mode: str, index: int) -> tuple[list[int], str]:
    try:
        return sorted(_torch_says(mode, index)), ""
    except Exception as error:  # noqa: BLE001 - whatever torch raises is why the rank cannot be bound
        return [], f"{type(error).__name__}: {error}"


def _torch_says(mode: str, index: int) -> set[int]:
    """Return the cores that torch chooses for a device, without its check for numactl, which nothing here runs."""
    try:
        from torch.numa.binding import AffinityMode, NumaOptions, _get_logical_cpus_to_bind_to
    except ImportError as error:
        raise BindingError(
            f"the installed torch has no torch.numa.binding; torch 2.9 and later have it ({error})"
        ) from error
    options = NumaOptions(affinity_mode=AffinityMode(mode))
    known = inspect.signature(_get_logical_cpus_to_bind_to).parameters
    which = {name: index for name in ("device_index", "gpu_index") if name in known}  # the latter in older releases
    cores: set[int] = _get_logical_cpus_to_bind_to(**which, numa_options=options)
    if not cores:
        raise BindingError("Must bind to a non-empty set of CPU indices")
    return cores


def bind(near: Mapping[str, Any]) -> str:
    """Bind this process's threads that still have its affinity, and so their future children. Returns words for a log.

    Raises:
        BindingError: It is impossible; the message says why and what to do.
    """
    cores_text = f"cores near {near['device']} (accelerator.numaBinding, --numa-binding={near['mode']})"
    if near["error"]:
        raise BindingError(f"not bound to {cores_text}: {near['error']}; correct that, or remove the setting")
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, near["cores"])
    except OSError as error:  # the cores of its control group changed since the probe looked
        allowed_text, near_text = ranges(before), ranges(near["cores"])
        raise BindingError(
            f"not bound to {near_text}, the {cores_text}: {error}; the rank may run on {allowed_text};"
            " remove that setting"
        ) from error
    # Threads that already run keep their affinity; one that was bound elsewhere is left alone.
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it ended meanwhile
            if os.sched_getaffinity(int(thread.name)) == before:
                os.sched_setaffinity(int(thread.name), near["cores"])
    return f"bound to {ranges(near['cores'])}, the {cores_text}"


def ranges(cores: Iterable[int]) -> str:
    """Format cores as Linux does: "0-2,4"."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and runs[-1][-1] == core - 1:
            runs[-1][-1] = core
        else:
            runs.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
