"""Machines: node groups as declared, or derived from the units; and whether the units fit on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dljob.errors import PlacementError
from dljob.plan.capacity import demand_of, total_demand
from dljob.plan.derive import derive
from dljob.plan.devices import DEVICES
from dljob.plan.domains import pack_in_domains, why_not
from dljob.plan.elastic import counted
from dljob.plan.model import GRAIN, NODE_GROUP_LABEL, Amount, MachineGroup, UnitTable, add_up
from dljob.plan.packing import Batch, Packing, machines_of, runs_of
from dljob.plan.quota import quota_batches
from dljob.plan.role import RolePlan
from dljob.spec import model as spec_model
from dljob.spec.model import DLJobSpec
from dljob.spec.quantity import parse_cpu, parse_memory

DERIVED_DOMAIN = "of-the-job"
"""Stand-in value for the domain of derived machines."""


def build_node_groups(spec: DLJobSpec, units: UnitTable, roles: Mapping[str, RolePlan]) -> dict[str, MachineGroup]:
    """Return the job's machines by the name of their group, spares added.

    Raises:
        PlacementError: The units do not fit on the declared machines.
    """
    spares = spec.fault_tolerance.spares.nodes
    quotas = quota_batches(roles.values())
    batches = (*batches_of(units), *quotas)
    if spec.node_groups:
        groups = _declared_groups(spec.node_groups, batches, units, roles)
        # A size that does not fit is refused now, and not when the role is to get it.
        check_fit(batches, groups)
        _check_bounds(groups, units, roles)
    else:
        drivers = {role.name for role in roles.values() if role.quota}  # hold a byte each, beside their quota
        derived = derive([batch for batch in batches if batch.name not in drivers])
        groups = _bounded([_in_domains(group, units) for group in derived], units, roles)
    # Spares last: they stay free, so the units must fit without them.
    ordered = sorted(groups, key=lambda group: group.name)
    return {g.name: _with_spares(g, spares) for g in ordered}


def declared_machines(spec: DLJobSpec) -> dict[str, MachineGroup]:
    """Return the declared machines of a job without a plan; one without `cpu` has one CPU."""
    return {group.name: _declared(group, parse_cpu(group.cpu or "1")) for group in spec.node_groups}


def _declared_groups(
    declared: Sequence[spec_model.NodeGroup],
    batches: Sequence[Batch],
    units: UnitTable,
    roles: Mapping[str, RolePlan],
) -> list[MachineGroup]:
    """Return the declared groups. A group without `cpu` gets the fewest whole CPUs per machine with which the job fits.

    First all such groups get the same number; then each in turn gets the fewest that still fit.
    """
    cpus = {group.name: parse_cpu(group.cpu) for group in declared if group.cpu}
    open_ = [group.name for group in declared if not group.cpu]

    def groups_with(more: Mapping[str, Amount]) -> list[MachineGroup]:
        return [_in_domains(_declared(group, {**cpus, **more}[group.name]), units) for group in declared]

    def fits(more: Mapping[str, Amount]) -> bool:
        try:
            check_fit(batches, groups_with(more))
            _check_bounds(groups_with(more), units, roles)
        except PlacementError:
            return False
        return True

    # On a machine with the CPUs of all units together, CPUs cannot be the reason why they do not fit.
    cpu_sum = sum(dict(total_demand(batch.demand)).get("CPU", 0) * batch.count for batch in batches)
    most = max(1, -(-cpu_sum // GRAIN))
    chosen = dict.fromkeys(open_, most * GRAIN)
    # If plenty of CPUs does not help, check_fit refuses the groups for the real reason.
    if not open_ or not fits(chosen):
        return groups_with(chosen)
    fewest = _fewest(most, lambda count: fits(dict.fromkeys(open_, count * GRAIN)))
    chosen = dict.fromkeys(open_, fewest * GRAIN)
    # With one such group, the number found above is already its fewest.
    for name in open_ if len(open_) > 1 else ():
        fewest_of_group = _fewest(fewest, lambda count, name=name: fits({**chosen, name: count * GRAIN}))
        chosen[name] = fewest_of_group * GRAIN
    return groups_with(chosen)


def _fewest(most: int, enough: Callable[[int], bool]) -> int:
    """Return the smallest number from 1 to `most` for which `enough` holds, by bisection; `most` is enough."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


def _in_domains(group: MachineGroup, units: UnitTable) -> MachineGroup:
    """Return a group with the demands that series of units have on machines that are pods: one domain, separate hosts.

    Kubernetes chooses the domain, so a value stands in for it; labels that the group has are the user's word. Derived
    groups form one domain together, since units of one series may have several sizes.
    """
    labels = dict(group.labels)
    members = [
        row for row in units.series if labels[NODE_GROUP_LABEL] == dict(row.selector).get(NODE_GROUP_LABEL, group.name)
    ]
    keys = sorted({row.topology_key for row in members if row.topology_key} - labels.keys())
    preferred = sorted({row.preferred_key for row in members if row.preferred_key} - labels.keys() - set(keys))
    value = DERIVED_DOMAIN if group.derived else group.name
    labels.update(dict.fromkeys((*keys, *preferred), value))
    # One machine is one pod here, so units that must be apart need pods that are.
    spread = any(row.spread for row in members)
    marks = tuple(sorted(labels.items()))
    return replace(group, labels=marks, domains=tuple(keys), spread=spread, preferred=tuple(preferred))


def _with_spares(group: MachineGroup, spares: int) -> MachineGroup:
    bounds = group.bounds and (group.bounds[0] + spares, group.bounds[1] + spares)
    return replace(group, replicas=group.replicas + spares, spares=spares, bounds=bounds)


def _sizes(roles: Mapping[str, RolePlan]) -> dict[str, tuple[int, int, int]]:
    """Return the fewest, the first and the most ranks of each role that may change its size."""
    return {name: (role.min_replicas, role.replicas, role.max_replicas) for name, role in roles.items() if role.resizes}


def _bounded(groups: Sequence[MachineGroup], units: UnitTable, roles: Mapping[str, RolePlan]) -> list[MachineGroup]:
    """Return derived groups with bounds for all sizes that elastic roles may get."""
    sizes = _sizes(roles)
    first = {name: bounds[1] for name, bounds in sizes.items()}
    low, high = (
        counted(groups, units, roles, first, {name: bounds[at] for name, bounds in sizes.items()}) for at in (0, 2)
    )
    return [replace(g, bounds=(max(1, low[g.name]), high[g.name])) if low[g.name] < high[g.name] else g for g in groups]


def _check_bounds(groups: Sequence[MachineGroup], units: UnitTable, roles: Mapping[str, RolePlan]) -> None:
    """Check that elastic roles fit with the fewest ranks on the fewest machines, and with the most on the most."""
    sizes = _sizes(roles)
    for at, end, field in ((0, 0, "minReplicas"), (2, 1, "maxReplicas")) if sizes else ():
        counts = {name: size[at] // roles[name].group_size for name, size in sizes.items()}
        machines = [replace(group, replicas=group.bounds[end] if group.bounds else group.replicas) for group in groups]
        check_fit(
            (*batches_of(units.sized(counts)), *quota_batches(roles.values())),
            machines,
            f" with the {field} of both roles and nodeGroups",
        )


def batches_of(units: UnitTable) -> tuple[Batch, ...]:
    """Return all units in batches of exchangeable ones: a handful, however many units there are."""
    batches: list[Batch] = []
    for series in units.series:
        for shape in series.shapes:
            sample = series.unit(shape.first)
            batches.append(Batch(series.name, demand_of(sample), shape.end - shape.first, sample))
    return tuple(batches)


def check_fit(batches: Sequence[Batch], groups: Sequence[MachineGroup], when: str = "") -> None:
    """Check whether the units fit on empty machines of these groups.

    Raises:
        PlacementError: They do not; the message names the smallest conflicting set.
    """
    runs = runs_of(machines_of(groups), batches)
    packing, _ = pack_in_domains(batches, runs, {})
    if not isinstance(packing, Packing):
        # The reasons take many searches, so they are looked for only in a refusal.
        conflict = why_not(batches, runs, {}, proven=packing.proven)
        sure = "" if conflict.proven else " (no way was found; whether there is one is not proven)"
        raise PlacementError(
            f"the job does not fit on its nodeGroups{when}: {conflict.reason}{sure}",
            hint="add replicas or larger machines to nodeGroups, or ask for less",
            loc=("spec", "nodeGroups"),
        )


def _declared(group: spec_model.NodeGroup, cpu: Amount) -> MachineGroup:
    accelerator = group.accelerator
    device: tuple[str, str] | None = None
    if accelerator is not None:
        kind = DEVICES[accelerator.type]
        # Custom devices have no usual names: the node group gives both.
        device = (kind.ray or accelerator.ray_resource or "", accelerator.resource_name or kind.kubernetes)
    return MachineGroup(
        name=group.name,
        replicas=group.replicas,
        resources=add_up(
            (("CPU", cpu),),
            (("memory", parse_memory(group.memory)),) if group.memory else (),
            ((device[0], accelerator.count * GRAIN),) if device and accelerator else (),
        ),
        labels=tuple(sorted({**group.labels, NODE_GROUP_LABEL: group.name}.items())),
        device=device,
        shared_memory=parse_memory(group.shared_memory) if group.shared_memory else 0,
        bounds=_bounds(group),
        image=group.image or "",
    )


def _bounds(group: spec_model.NodeGroup) -> tuple[int, int] | None:
    low, high = group.min_replicas or group.replicas, group.max_replicas or group.replicas
    return (low, high) if low < high else None
