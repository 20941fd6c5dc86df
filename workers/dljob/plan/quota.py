"""Units of roles with a quota, which reserve nothing: pieces from which a framework can make placement groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dljob.plan.capacity import demand_of
from dljob.plan.devices import BY_RAY
from dljob.plan.model import GRAIN, NODE_GROUP_LABEL, Bundle, Resources, Unit
from dljob.plan.packing import Batch
from dljob.plan.role import RolePlan


def quota_units(roles: Mapping[str, RolePlan]) -> tuple[Unit, ...]:
    """Return the units for which machines must have room when the job starts; they are never reserved.

    The quota of a framework may lie on several machines, in equal pieces: one for each whole device, or without devices
    for each whole CPU. It counts only where a device and its part of CPUs and memory are on one machine.
    """
    return tuple(
        unit
        for batch in quota_batches(roles.values())
        for unit in (_unit(batch.name, batch.sample, k) for k in range(batch.count))
    )


def quota_batches(roles: Iterable[RolePlan]) -> tuple[Batch, ...]:
    """Return the quota's units in batches of exchangeable ones."""
    return tuple(_batch(role) for role in roles if role.quota)


def piece(quota: Resources) -> tuple[int, Resources]:
    """Return the number of equal pieces of a rank's quota, and one of them; uneven amounts are rounded down."""
    amounts = dict(quota)
    # Frameworks make one bundle for each device, so a piece is what such a bundle needs on one machine.
    devices = max((amounts[name] // GRAIN for name in amounts if name in BY_RAY), default=0)
    # Without devices, and with less than two CPUs, the quota is one piece.
    count = max(1, devices or amounts.get("CPU", 0) // GRAIN)
    # The bundle in which the rank's driver lives takes one byte of its memory.
    cut = {name: (amount - GRAIN * (name == "memory")) // count for name, amount in quota}
    return count, tuple((name, amount) for name, amount in cut.items() if amount > 0)


def _batch(role: RolePlan) -> Batch:
    count, part = piece(role.quota or ())
    group = ((NODE_GROUP_LABEL, role.node_group),) if role.node_group else ()
    name = f"the quota of {role.name}"
    sample = Unit(f"{name}/0", (Bundle(part, ()),), (), (*group, *role.selector))
    return Batch(name, demand_of(sample), count * role.replicas, sample)


def _unit(name: str, sample: Unit, k: int) -> Unit:
    return Unit(f"{name}/{k}", sample.bundles, sample.members, sample.selector)
