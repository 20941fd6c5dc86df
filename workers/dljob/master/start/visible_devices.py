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


def of_nodes(d: StateTransaction, role: str) -> VisibleDevices:
    """Return the devices that all ranks of a role see on each node; empty if each rank sees those of its host alone."""
    facts = d.facts(role)
    if not facts.plan.shared_sight or not facts.world:
        return {}
    found: dict[str, dict[str, None]] = {}
    for index in range(facts.host_count):
        host = d.hosts[HostId(role, index)]
        # Ranks that share a device name it once.
        found.setdefault(host.node, {}).update(dict.fromkeys(_flat(host.slots)))
    return {node: tuple(ids) for node, ids in found.items()}


def of_rank(
    facts: RoleFacts, host: HostState, rank: int, there: VisibleDevices
) -> tuple[tuple[tuple[str, tuple[str, ...]], ...], int]:
    """Return the devices that a rank sees, by Ray resource, and the index of its own (first) device among its kind."""
    accelerator = facts.plan.accelerator
    slot = rank % facts.ranks_per_host
    if accelerator is None:
        return host.devices, 0
    if slot >= len(host.slots):
        # The journal is older than `slots`: only the host's devices as a whole are known, so share them evenly.
        return host.devices, slot * len(dict(host.devices).get(accelerator[0], ())) // facts.ranks_per_host
    own = seen = host.slots[slot]
    if facts.plan.shared_sight:
        mine = tuple(dict.fromkeys(_flat(host.slots)))
        seen = there.get(host.node, mine)
    devices = tuple((name, seen if name == accelerator[0] else ids) for name, ids in host.devices)
    return devices, seen.index(own[0]) if own else 0


def _flat(slots: Iterable[tuple[str, ...]]) -> Iterable[str]:
    return (each for slot in slots for each in slot)
