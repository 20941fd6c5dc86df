"""Which devices a rank sees: its own alone, or those of all ranks of its role on its node, in the order of local ranks.

The second is what torchrun's scripts expect: `torch.cuda.set_device(LOCAL_RANK)`. It needs all of them to be known, so
it is for ranks that start as one world; where ranks start one by one, a rank sees those of its own host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from dljob.master.state.job import RoleFacts
from dljob.master.state.state import HostState
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import HostId

There: TypeAlias = Mapping[str, tuple[str, ...]]
"""Node -> ids of a role's devices there, in the order of its ranks."""


def of_nodes(d: StateTransaction, role: str) -> There:
    """What the ranks of a role see on each node; empty where each sees no more than its host has."""
    facts = d.facts(role)
    if not facts.plan.shared_sight or not facts.world:
        return {}
    found: dict[str, dict[str, None]] = {}
    for index in range(facts.host_count):
        host = d.hosts[HostId(role, index)]
        found.setdefault(host.node, {}).update(dict.fromkeys(_flat(host.slots)))
    return {node: tuple(ids) for node, ids in found.items()}


def of_rank(
    facts: RoleFacts, host: HostState, rank: int, there: There
) -> tuple[tuple[tuple[str, tuple[str, ...]], ...], int]:
    """The devices that a rank of a host sees, by Ray resource, and which of its kind is its own."""
    accelerator = facts.plan.accelerator
    slot = rank % facts.ranks_per_host
    if accelerator is None:
        return host.devices, 0
    if slot >= len(host.slots):  # a journal of before: nothing is known but all of them
        return host.devices, slot * len(dict(host.devices).get(accelerator[0], ())) // facts.ranks_per_host
    own = seen = host.slots[slot]
    if facts.plan.shared_sight:
        mine = tuple(dict.fromkeys(_flat(host.slots)))
        seen = there.get(host.node, mine)
    devices = tuple((name, seen if name == accelerator[0] else ids) for name, ids in host.devices)
    return devices, seen.index(own[0]) if own else 0


def _flat(slots: Iterable[tuple[str, ...]]) -> Iterable[str]:
    return (each for slot in slots for each in slot)
