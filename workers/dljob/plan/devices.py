"""The kinds of devices, with their names in Ray, in Kubernetes and in the vendor's runtime. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dljob.spec.devices import KUBERNETES, RAY


@dataclass(frozen=True, slots=True)
class Device:
    """A kind of device, as the spec names it."""

    type: str
    ray: str
    """Ray's resource; empty for Custom, where the node group names it."""
    kubernetes: str
    """The usual extended resource of Kubernetes; a node group may name another."""
    visible_env: str
    """Variable that hides the machine's other devices from a process; empty where there is none."""
    auto: bool
    """Whether KubeRay 1.6.2 reports it to Ray by itself; otherwise `resources` of the worker group must."""


DEVICES: dict[str, Device] = {
    device.type: device
    for device in (
        Device("GPU", RAY["GPU"], KUBERNETES["GPU"], "CUDA_VISIBLE_DEVICES", auto=True),
        Device("NPU", RAY["NPU"], KUBERNETES["NPU"], "ASCEND_RT_VISIBLE_DEVICES", auto=False),
        Device("TPU", RAY["TPU"], KUBERNETES["TPU"], "TPU_VISIBLE_CHIPS", auto=True),
        Device("HPU", RAY["HPU"], KUBERNETES["HPU"], "HABANA_VISIBLE_MODULES", auto=False),
        Device("Neuron", RAY["Neuron"], KUBERNETES["Neuron"], "NEURON_RT_VISIBLE_CORES", auto=True),
        Device("Custom", "", "", "", auto=False),
    )
}

# Prefix of the switches by which Ray leaves a variable alone.
NOSET = "RAY_EXPERIMENTAL_NOSET_"
_OWN_NOSET = {
    "RBLN_DEVICES": "RBLN_RT_VISIBLE_DEVICES",
    "TT_VISIBLE_DEVICES": "TENSTORRENT_VISIBLE_DEVICES",
    "QBRUNTIME_VISIBLE_DEVICES": "MBLT_RT_VISIBLE_DEVICES",
}
"""Variable -> the name in Ray's switch, where the switch is not named after the variable."""
OTHER_GPUS = ("HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
"""Variables that hide GPUs of AMD and of Intel; only the machine knows which of them it has."""
_BEFORE = {"FURIOSA_DEVICES": "npu:"}
"""Variable -> prefix of each id. Source: ray 2.60, `ray/_private/accelerators`; a test compares all of this with it."""
_TPU_BOUNDS = {1: "1,1,1", 2: "1,2,1"}
"""Chips -> their layout on the host. Source: ray 2.60, `ray/_private/accelerators/tpu.py`."""

BY_RAY: dict[str, Device] = {device.ray: device for device in DEVICES.values() if device.ray}
"""Devices by Ray's resource. Any other resource is a plain number to Ray, without device ids."""


def visible_devices(variable: str, ids: tuple[str, ...]) -> dict[str, str]:
    """Return the environment that shows a process only these devices; empty for a resource without a variable."""
    if not variable:
        return {}
    env = {variable: ",".join(f"{_BEFORE.get(variable, '')}{device}" for device in ids)}
    # To the runtime of TPUs, a part of a host's chips is a host of its own.
    if variable == "TPU_VISIBLE_CHIPS" and len(ids) in _TPU_BOUNDS:
        env |= {"TPU_CHIPS_PER_HOST_BOUNDS": _TPU_BOUNDS[len(ids)], "TPU_HOST_BOUNDS": "1,1,1"}
    return env


def leaves_variable(variable: str, env: Mapping[str, str]) -> bool:
    """Return whether an environment tells Ray not to set this variable: a framework hands out the devices itself."""
    return env.get(f"{NOSET}{_OWN_NOSET.get(variable, variable)}", "0").lower() in ("1", "true")


def all_left_alone() -> dict[str, str]:
    """Return the environment in which Ray hides no device of any kind."""
    usual = (device.visible_env for device in DEVICES.values() if device.visible_env)
    return {f"{NOSET}{variable}": "1" for variable in (*usual, *OTHER_GPUS)}
