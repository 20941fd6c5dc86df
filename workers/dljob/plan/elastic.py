"""The number of machines that a job needs for other sizes of its elastic roles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dljob.plan.capacity import copies, demand_of, room_of
from dljob.plan.model import JobPlan, MachineGroup, Series, UnitTable
from dljob.plan.role import RolePlan

MOST = 100_000
"""Units of one kind that a machine is taken to hold at most."""


def machines(plan: JobPlan, start: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return node group -> machines for these numbers of ranks, within the group's bounds.

    `start` holds the numbers of ranks for which the groups' `replicas` were planned.
    """
    groups = plan.node_groups.values()
    counts = counted(groups, plan.units, plan.roles, start, sizes)
    return {group.name: _within(group, counts[group.name]) for group in groups}


def counted(
    groups: Iterable[MachineGroup],
    units: UnitTable,
    roles: Mapping[str, RolePlan],
    start: Mapping[str, int],
    sizes: Mapping[str, int],
) -> dict[str, int]:
    """Return node group -> machines for these numbers of ranks, without regard to the groups' bounds.

    A role that grows asks for whole machines; one that shrinks gives back as many as its units alone fill.
    """
    # Groups that may grow are preferred as the place of further units.
    every = sorted(groups, key=lambda group: (group.bounds is None, group.name))
    counts = {group.name: group.replicas for group in every}
    for name, size in sorted(sizes.items()):
        more = (size - start[name]) // roles[name].group_size
        if more:
            group, per_machine = home_of(every, units.of_role(name))
            # Rounded up for both signs: growth takes a whole machine, shrinking keeps one that is partly in use.
            counts[group.name] += -(-more // per_machine)
    return counts


def _within(group: MachineGroup, count: int) -> int:
    low, high = group.bounds or (group.replicas, group.replicas)
    return min(max(count, low), high)


def home_of(groups: Iterable[MachineGroup], series: Series) -> tuple[MachineGroup, int]:
    """Return the group for further units of a role, and how many one machine holds: the plan has room for one."""
    demand = demand_of(series.unit(0))
    candidates = ((group, copies(room_of(group.resources, group.labels), demand, MOST)) for group in groups)
    return next(candidate for candidate in candidates if candidate[1])
