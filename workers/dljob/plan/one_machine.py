"""Sizes of elastic roles where no machine can join: a Ray of `dljob run` has the planned machines from start to end.

Kubernetes adds pods for a role that grows. Here a derived machine is made larger instead, as far as the real one goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dljob.plan.devices import BY_RAY
from dljob.plan.domains import pack_in_domains
from dljob.plan.elastic import home_of
from dljob.plan.model import JobPlan, MachineGroup, Resources, add_up
from dljob.plan.nodes import batches_of
from dljob.plan.packing import Packing, machines_of, runs_of
from dljob.plan.quota import quota_batches


def with_room_to_grow(plan: JobPlan, spare: Resources) -> list[MachineGroup]:
    """Return the plan's machines, the derived ones enlarged for further ranks of elastic roles.

    Machines that the user declared stay as declared.

    Args:
        plan: The job.
        spare: What the real machine has for this. Roles are served in order, each up to its largest size.
    """
    rest, groups = dict(spare), dict(plan.node_groups)
    every = sorted(groups.values(), key=lambda group: (group.bounds is None, group.name))
    for role in (role for role in plan.roles.values() if role.resizes):
        series = plan.units.of_role(role.name)
        home, demand = home_of(every, series)[0], series.unit(0).demand
        more = (role.max_replicas - role.replicas) // role.group_size
        count = min([more, *(rest.get(kind, 0) // amount for kind, amount in demand)])
        # Machines of a group are equal. CPUs and memory may be rounded up, as ranks can share them; devices may not.
        is_indivisible = any(kind in BY_RAY for kind, _ in demand)
        per_machine = count // home.replicas if is_indivisible else -(-count // home.replicas)
        if home.derived and per_machine:
            rest |= {kind: rest[kind] - count * amount for kind, amount in demand}
            group = groups[home.name]
            groups[home.name] = replace(group, resources=add_up(group.resources, *[demand] * per_machine))
    return list(groups.values())


def largest_sizes(plan: JobPlan, groups: Sequence[MachineGroup]) -> dict[str, int]:
    """Return role -> the most ranks that find room on these machines; empty if all roles fit in their largest sizes.

    Each role is enlarged alone, beside the others in their first sizes.
    """
    machines = machines_of([replace(group, replicas=group.replicas - group.spares) for group in groups])
    growing = {name: role for name, role in plan.roles.items() if role.resizes}

    def fits(sizes: Mapping[str, int]) -> bool:
        batches = (*batches_of(plan.sized(sizes).units), *quota_batches(plan.roles.values()))
        return isinstance(pack_in_domains(batches, runs_of(machines, batches), {})[0], Packing)

    if fits({name: role.max_replicas for name, role in growing.items()}):
        return {}
    sizes_here: dict[str, int] = {}
    for name, role in growing.items():
        low, high = role.groups, role.max_replicas // role.group_size
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits({name: middle * role.group_size}) else (low, middle - 1)
        sizes_here[name] = low * role.group_size
    return sizes_here
