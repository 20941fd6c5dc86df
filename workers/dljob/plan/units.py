"""Role groups that share a machine: roles and collocations become series of units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from dljob.errors import PlacementError
from dljob.plan.model import GRAIN, NODE_GROUP_LABEL, Member, Series, UnitTable
from dljob.plan.role import RolePlan
from dljob.spec.model import Collocation, DLJobSpec
from dljob.spec.quantity import show
from dljob.telemetry.wording import counted


def build_units(spec: DLJobSpec, roles: Mapping[str, RolePlan]) -> UnitTable:
    """Put every rank into exactly one unit, whatever the order of roles and collocations.

    Raises:
        PlacementError: Roles of a collocation cannot share what it wants shared.
    """
    series: list[Series] = []
    apart: dict[str, tuple[str, str]] = {}
    together: set[str] = set()
    for index, collocation in enumerate(spec.collocations):
        if collocation.level == "Separate":
            apart.update({name: (collocation.name, name) for name in collocation.roles})
        else:
            together.update(collocation.roles)
            members = [roles[name] for name in sorted(collocation.roles)]
            try:
                series.append(_collocated(collocation, members, set(roles)))
            except PlacementError as error:
                # The checks know the collocation, and not where it stands.
                loc = ("spec", "collocations", index)
                raise PlacementError(error.message, hint=error.hint, loc=loc) from None
    # Roles of a Separate collocation keep units of their own; the claim only keeps these off each other's nodes.
    for name, role in roles.items():
        if name not in together:
            series.append(_series(name, [role], shared=False, apart=apart.get(name)))
    return UnitTable(tuple(sorted(series, key=lambda s: s.name)))


def _series(name: str, roles: Sequence[RolePlan], *, shared: bool, apart: tuple[str, str] | None = None) -> Series:
    """Build a series; the domain and spread of one role hold for the units that it shares with others."""
    return Series(
        name,
        tuple(_member(role) for role in roles),
        shared=shared,
        selector=_selector(roles),
        apart=apart,
        # Roles that share units have one key or none (`_check_domains`), so the greatest is the key.
        topology_key=max(role.topology_key for role in roles),
        spread=any(role.spread for role in roles),
        # What one role needs the others need not prefer.
        preferred_key="" if any(role.topology_key for role in roles) else max(role.preferred_key for role in roles),
    )


def _member(role: RolePlan) -> Member:
    return Member(role.name, role.groups, role.group_size, role.per_rank)


def _selector(roles: Sequence[RolePlan]) -> tuple[tuple[str, str], ...]:
    # One role's binding holds for the whole unit, which is on one machine. _check_node_group has refused two of them.
    groups = sorted({role.node_group for role in roles if role.node_group})
    labels = sorted({pair for role in roles for pair in role.selector})
    return (*((NODE_GROUP_LABEL, group) for group in groups), *labels)


def _collocated(collocation: Collocation, roles: Sequence[RolePlan], used_names: set[str]) -> Series:
    _check_groups(collocation, roles)
    _check_node_group(collocation, roles)
    _check_domains(collocation, roles)
    shared = collocation.level == "Device"
    if shared:
        _check_shares(collocation, roles)
    name = collocation.name
    # Names of units must be unique, and a collocation may have the name of a role outside it.
    while name in used_names:
        name = f"{name}-units"
    return _series(name, roles, shared=shared)


def _check_groups(collocation: Collocation, roles: Sequence[RolePlan]) -> None:
    """Check that of any two group counts one divides the other, since unit k holds group k of every role."""
    for a, b in combinations(roles, 2):
        if max(a.groups, b.groups) % min(a.groups, b.groups):
            raise PlacementError(
                f"collocation {collocation.name}: {a.name} has {counted(a.groups, 'group')} and {b.name} has "
                f"{b.groups}; of two collocated roles one's number of groups must divide the other's",
                hint="change replicas or replicasPerGroup of one of them",
            )


def _check_node_group(collocation: Collocation, roles: Sequence[RolePlan]) -> None:
    for a, b in combinations([role for role in roles if role.node_group], 2):
        if a.node_group != b.node_group:
            raise PlacementError(
                f"collocation {collocation.name}: {a.name} is bound to node group {a.node_group} and {b.name} to "
                f"{b.node_group}; they cannot share a machine",
                hint="give both the same nodeGroup, or take one out of the collocation",
            )


def _check_domains(collocation: Collocation, roles: Sequence[RolePlan]) -> None:
    keys = {role.name: role.topology_key or role.preferred_key for role in roles}
    for a, b in combinations([name for name, key in keys.items() if key], 2):
        if keys[a] != keys[b]:
            raise PlacementError(
                f"collocation {collocation.name}: {a} wants one {keys[a]} and {b} one {keys[b]}; "
                "what shares machines is in one domain",
                hint="give both the same topology-key, or one of them none",
            )


def _check_shares(collocation: Collocation, roles: Sequence[RolePlan]) -> None:
    """Check that sharers of a device want one kind, and at most 1 together; the error names as few as possible."""
    holders = [(role.name, *role.accelerator) for role in roles if role.accelerator]
    for (a, kind_a, _), (b, kind_b, _) in combinations(holders, 2):
        if kind_a != kind_b:
            raise PlacementError(
                f"collocation {collocation.name}: {a} takes {kind_a} and {b} takes {kind_b}; "
                "roles that share a device need the same kind",
                hint="use level Host, where each has its own devices",
            )
    # Largest first, so that the message names as few roles as possible.
    largest = sorted(holders, key=lambda holder: (-holder[2], holder[0]))
    total, names = 0, list[str]()
    for name, _, share in largest:
        total += share
        names.append(f"{name} {show(share)}")
        if total > GRAIN:
            raise PlacementError(
                f"collocation {collocation.name}: the shares of one device are more than 1: {' + '.join(names)} = "
                f"{show(total)}, {show(total - GRAIN)} too much",
                hint="lower the counts, or use level Host, where each role has its own devices",
            )
