"""The kinds of device: how Ray, Kubernetes and the device's own runtime call each. Data only."""

from __future__ import annotations

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

BY_RAY: dict[str, Device] = {device.ray: device for device in DEVICES.values() if device.ray}
"""By Ray's resource. What is not here is a plain number to Ray: it has no device ids."""


def visible_devices(ray_resource: str, ids: tuple[str, ...]) -> dict[str, str]:
    """The environment that shows a process these devices only; empty for a resource without ids."""
    device = BY_RAY.get(ray_resource)
    return {device.visible_env: ",".join(ids)} if device else {}
