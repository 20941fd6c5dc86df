"""Visible devices of a rank: its own only, or those of all ranks of its role on its node in the order of local ranks.

Scripts written for torchrun expect the latter: `torch.cuda.set_device(LOCAL_RANK)`. All device ids on the node must be
known for it, so it is for ranks that start as one world. Where ranks start one by one, a rank sees its host's devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from dljob.master.state.job import RoleFacts
from dljob.master.state.state import HostState
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import HostId

VisibleDevices: TypeAlias = Mapping[str, tuple[str, ...]]
"""Node -> device ids of a role there, in the order of its ranks."""


def visible_on_nodes(tx: StateTransaction, role: str) -> VisibleDevices:
    """Return the devices that all ranks of a role see on each node; empty if each rank sees those of its host alone."""
    facts = tx.facts(role)
    if not facts.plan.shared_sight or not facts.is_torch_world:
        return {}
    devices_by_node: dict[str, dict[str, None]] = {}
    for index in range(facts.host_count):
        host = tx.hosts[HostId(role, index)]
        # Ranks that share a device name it once.
        devices_by_node.setdefault(host.node, {}).update(dict.fromkeys(_flat(host.slots)))
    return {node: tuple(ids) for node, ids in devices_by_node.items()}


def visible_to_rank(
    facts: RoleFacts, host: HostState, rank: int, devices_by_node: VisibleDevices
) -> tuple[tuple[tuple[str, tuple[str, ...]], ...], int]:
    """Return the devices that a rank sees, by Ray resource, and the index of its own (first) device among its kind."""
    accelerator = facts.plan.accelerator
    slot = rank % facts.ranks_per_host
    if accelerator is None:
        return host.devices, 0
    if slot >= len(host.slots):
        # The journal is older than `slots`: only the host's devices as a whole are known, so share them evenly.
        return host.devices, slot * len(dict(host.devices).get(accelerator[0], ())) // facts.ranks_per_host
    own_devices = visible = host.slots[slot]
    if facts.plan.shared_sight:
        host_devices = tuple(dict.fromkeys(_flat(host.slots)))
        visible = devices_by_node.get(host.node, host_devices)
    devices = tuple((name, visible if name == accelerator[0] else ids) for name, ids in host.devices)
    return devices, visible.index(own_devices[0]) if own_devices else 0


def _flat(slots: Iterable[tuple[str, ...]]) -> Iterable[str]:
    return (device for slot in slots for device in slot)
