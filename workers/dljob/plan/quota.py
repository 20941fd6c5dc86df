"""What must be free for roles that hold nothing: pieces that a framework can make placement groups of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dljob.plan.capacity import demand_of
from dljob.plan.devices import BY_RAY
from dljob.plan.model import GRAIN, NODE_GROUP_LABEL, Bundle, Resources, Unit
from dljob.plan.packing import Batch
from dljob.plan.role import RolePlan


def quota_units(roles: Mapping[str, RolePlan]) -> tuple[Unit, ...]:
    """Units that are looked for when the job starts, and never reserved.

    A framework's quota may lie on several machines, in equal pieces: one for each whole device, or where there is none
    for each whole CPU. So it counts only where a device and its part of the CPUs and the memory are on one machine.
    """
    return tuple(
        unit
        for batch in quota_batches(roles.values())
        for unit in (_unit(batch.name, batch.sample, k) for k in range(batch.count))
    )


def quota_batches(roles: Iterable[RolePlan]) -> tuple[Batch, ...]:
    """The same, exchangeable ones together."""
    return tuple(_batch(role) for role in roles if role.quota)


def piece(quota: Resources) -> tuple[int, Resources]:
    """How many equal pieces a rank's quota is cut into, and one of them; what cannot be cut evenly is rounded down."""
    amounts = dict(quota)
    devices = max((amounts[name] // GRAIN for name in amounts if name in BY_RAY), default=0)
    count = max(1, devices or amounts.get("CPU", 0) // GRAIN)
    # A byte of each rank's memory is for the bundle that its driver lives in.
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
