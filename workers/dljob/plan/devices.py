"""The kinds of device: how Ray, Kubernetes and the device's own runtime call each. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dljob.spec.devices import KUBERNETES


@dataclass(frozen=True, slots=True)
class Device:
    """A kind of device as the spec names it."""

    type: str
    ray: str
    """Ray's resource; empty for Custom, where the node group says it."""
    kubernetes: str
    """The usual extended resource; a node group may name another."""
    visible_env: str
    """The variable that hides the other devices of the machine from a process; empty where there is none."""
    auto: bool
    """Whether KubeRay 1.6.2 tells Ray of it by itself; else the worker group's `resources` must."""


DEVICES: dict[str, Device] = {
    device.type: device
    for device in (
        Device("GPU", "GPU", KUBERNETES["GPU"], "CUDA_VISIBLE_DEVICES", auto=True),
        Device("NPU", "NPU", KUBERNETES["NPU"], "ASCEND_RT_VISIBLE_DEVICES", auto=False),
        Device("TPU", "TPU", KUBERNETES["TPU"], "TPU_VISIBLE_CHIPS", auto=True),
        Device("HPU", "HPU", KUBERNETES["HPU"], "HABANA_VISIBLE_MODULES", auto=False),
        Device("Neuron", "neuron_cores", KUBERNETES["Neuron"], "NEURON_RT_VISIBLE_CORES", auto=True),
        Device("Custom", "", "", "", auto=False),
    )
}

NOSET = "RAY_EXPERIMENTAL_NOSET_"
_OWN_NOSET = {
    "RBLN_DEVICES": "RBLN_RT_VISIBLE_DEVICES",
    "TT_VISIBLE_DEVICES": "TENSTORRENT_VISIBLE_DEVICES",
    "QBRUNTIME_VISIBLE_DEVICES": "MBLT_RT_VISIBLE_DEVICES",
}
"""What Ray's switch is called after, where it is not the variable."""
OTHER_GPUS = ("HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
"""What hides GPUs of AMD and of Intel; which there are on a machine is known on the machine."""
_BEFORE = {"FURIOSA_DEVICES": "npu:"}
"""What stands before each id. Source: ray 2.60, `ray/_private/accelerators`; a test holds all of this to it."""
_TPU_BOUNDS = {1: "1,1,1", 2: "1,2,1"}
"""Chips -> how they lie on the host. Source: ray 2.60, `ray/_private/accelerators/tpu.py`."""

BY_RAY: dict[str, Device] = {device.ray: device for device in DEVICES.values() if device.ray}
"""By Ray's resource. What is not here is a plain number to Ray: it has no device ids."""


def visible_devices(variable: str, ids: tuple[str, ...]) -> dict[str, str]:
    """The environment that shows a process these devices only; empty for a resource without a variable."""
    if not variable:
        return {}
    env = {variable: ",".join(f"{_BEFORE.get(variable, '')}{each}" for each in ids)}
    if variable == "TPU_VISIBLE_CHIPS" and len(ids) in _TPU_BOUNDS:
        env |= {"TPU_CHIPS_PER_HOST_BOUNDS": _TPU_BOUNDS[len(ids)], "TPU_HOST_BOUNDS": "1,1,1"}
    return env


def left_alone(variable: str, env: Mapping[str, str]) -> bool:
    """Whether an environment tells Ray to leave this variable as it is: a framework hands out the devices itself."""
    return env.get(f"{NOSET}{_OWN_NOSET.get(variable, variable)}", "0").lower() in ("1", "true")


def all_left_alone() -> dict[str, str]:
    """The environment that leaves every kind of device as the machine shows it."""
    usual = (device.visible_env for device in DEVICES.values() if device.visible_env)
    return {f"{NOSET}{variable}": "1" for variable in (*usual, *OTHER_GPUS)}
