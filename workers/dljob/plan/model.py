"""The parts of a plan: frozen data, without behaviour beyond arithmetic on itself.

Units are not stored but computed from `Series`, one for each role or collocation: a plan of 100,000 ranks is as small
as a plan of 16.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from dljob.plan.amounts import GRAIN as GRAIN  # noqa: PLC0414 - found here as well
from dljob.plan.amounts import LEAST, Amount, Resources, add_up
from dljob.plan.role import RolePlan
from dljob.plan.witnesses import WitnessPlan
from dljob.spec.standing import StandbyMode

NODE_GROUP_LABEL = "dljob.io/node-group"
"""Label of each machine of a node group, with the group's name."""
CPU_LABEL = "dljob.io/cpu"
"""Label of a machine with a fraction of a CPU, with the CPUs that its plan counts; Ray counts whole ones."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """One device slot (or one CPU share) of a unit."""

    resources: Resources
    ranks: tuple[tuple[str, int], ...]
    """(role, rank) of each rank that shares it."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The smallest set of processes that must share a host: one placement group."""

    name: str
    """"<role or collocation>/<k>"."""
    bundles: tuple[Bundle, ...]
    members: tuple[tuple[str, int], ...]
    """(role, group) of each role group in it."""
    selector: tuple[tuple[str, str], ...]
    """Ray label selectors that the node must satisfy."""
    apart: tuple[str, str] | None = None
    """(Separate collocation, role): units of different roles of one such collocation never share a node."""
    topology_key: str = ""
    """Label that has one value on the nodes of all units of its series; empty for none."""
    spread: bool = False
    """Whether it may share no node with another unit of its series."""
    preferred_key: str = ""
    """Label that has one value on the nodes of all units of its series if there is room for that; empty for none."""

    @property
    def series(self) -> str:
        """The role or collocation that the unit belongs to."""
        return self.name.rpartition("/")[0]

    @property
    def demand(self) -> Resources:
        """The sum of its bundles."""
        return add_up(*(bundle.resources for bundle in self.bundles))


@dataclass(frozen=True, slots=True)
class MachineGroup:
    """Machines of one kind, declared or derived from the roles."""

    name: str
    replicas: int
    """Number of machines at the start, spares included."""
    resources: Resources
    """Resources of one machine. Memory that is not stated is not counted."""
    labels: tuple[tuple[str, str], ...]
    """Labels of each node of the group, with `dljob.io/node-group`."""
    derived: bool = False
    spares: int = 0
    """Number of its machines that stay free of ranks."""
    device: tuple[str, str] | None = None
    """(Ray resource, Kubernetes resource) of its accelerator."""
    shared_memory: Amount = 0
    """Size of /dev/shm in bytes x 10_000; 0 for the default."""
    bounds: tuple[int, int] | None = None
    """Fewest and most machines, spares included; None when `replicas` never changes."""
    domains: tuple[str, ...] = ()
    """Labels with a stand-in value: all machines are in one domain, whichever one Kubernetes chooses."""
    spread: bool = False
    """Whether each of its machines must be another host."""
    preferred: tuple[str, ...] = ()
    """Labels with a stand-in value, as in `domains`, of which Kubernetes prefers one domain and needs none."""
    image: str = ""
    """Image of its pods; empty for the job's."""


class Place(NamedTuple):
    """The place of a rank: its group, its index in the group, its unit and its bundle."""

    group: int
    local: int
    unit: str
    bundle: int


@dataclass(frozen=True, slots=True)
class Member:
    """The part of a role in a series of units."""

    role: str
    groups: int
    group_size: int
    per_rank: Resources


class Shape(NamedTuple):
    """The common content of units `first` to `end` - 1 of a series."""

    first: int
    end: int
    bundles: tuple[tuple[Resources, tuple[tuple[str, int, int], ...]], ...]
    """(resources, (role, group size, local index) of each sharer) of each bundle."""
    roles: tuple[str, ...]
    offsets: Mapping[str, int]
    """Role -> bundle of its local index 0."""


@dataclass(frozen=True)
class Series:
    """The units of one role or collocation: unit k holds group k of every member that has one.

    Units with the same members have one shape, so a few shapes describe any number of units.
    """

    name: str
    members: tuple[Member, ...]
    """Sorted by role."""
    shared: bool
    """Device collocation: rank i of each group is in bundle i. Otherwise each rank has a bundle of its own."""
    selector: tuple[tuple[str, str], ...] = ()
    apart: tuple[str, str] | None = None
    topology_key: str = ""
    spread: bool = False
    gone: tuple[int, ...] = ()
    """Numbers of units that left while higher ones stayed."""
    preferred_key: str = ""

    @property
    def end(self) -> int:
        """The number after the highest unit: as many as the member with the most groups has."""
        return self.shapes[-1].end

    @property
    def count(self) -> int:
        """The number of units."""
        return self.end - len(self.gone)

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of the units."""
        for number in range(self.end):
            if number not in self.gone:
                yield number

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes of the units, in order."""
        # Where a member has no further groups, another shape begins.
        ends = sorted({member.groups for member in self.members})
        return tuple(self._shape(first, end) for first, end in zip([0, *ends], ends, strict=False))

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {member.role: member.group_size for member in self.members}

    def _shape(self, first: int, end: int) -> Shape:
        # Members with fewer groups are missing from later units; within a shape the same members are present.
        present = [member for member in self.members if first < member.groups]
        if self.shared:
            # Row i has the i-th rank of each member: these share a device.
            rows = [[(m, i) for m in present if i < m.group_size] for i in range(max(m.group_size for m in present))]
            offsets = {member.role: 0 for member in present}
        else:
            rows = [[(member, local)] for member in present for local in range(member.group_size)]
            offsets = {member.role: sum(m.group_size for m in present if m.role < member.role) for member in present}
        bundles = tuple(
            (add_up(*(m.per_rank for m, _ in row)) or LEAST, tuple((m.role, m.group_size, local) for m, local in row))
            for row in rows
        )
        return Shape(first, end, bundles, tuple(member.role for member in present), offsets)

    def _shape_of(self, k: int) -> Shape:
        shapes = self.shapes
        # Most units have the first shape.
        return shapes[0] if k < shapes[0].end else next(shape for shape in shapes if k < shape.end)

    def bundle_of(self, role: str, rank: int) -> tuple[int, int]:
        """Return (unit, bundle) of a rank."""
        group, local = divmod(rank, self._sizes[role])
        return group, self._shape_of(group).offsets[role] + local

    def unit(self, k: int) -> Unit:
        """Build unit k."""
        shape = self._shape_of(k)
        bundles = tuple(
            [
                Bundle(resources, tuple([(role, k * size + local) for role, size, local in sharers]))
                for resources, sharers in shape.bundles
            ]
        )
        members = tuple([(role, k) for role in shape.roles])
        name = f"{self.name}/{k}"
        marks = (self.selector, self.apart, self.topology_key, self.spread, self.preferred_key)
        return Unit(name, bundles, members, *marks)


def _sized(series: Series, groups: Mapping[str, int], left_out: Mapping[str, tuple[int, ...]]) -> Series:
    # Roles that resize share no units, so such a series has one member.
    only = series.members[0]
    if only.role not in groups:
        return series
    without = left_out.get(only.role, ())
    return replace(series, members=(replace(only, groups=groups[only.role] + len(without)),), gone=without)


@dataclass(frozen=True)
class UnitTable(Mapping[str, Unit]):
    """All units by name, built on access; picklable, and as small as its series."""

    series: tuple[Series, ...]
    """Sorted by name."""

    # Cached, since units are looked up rank by rank.
    @cached_property
    def _by_name(self) -> dict[str, Series]:
        return {series.name: series for series in self.series}

    @cached_property
    def _by_role(self) -> dict[str, Series]:
        return {member.role: series for series in self.series for member in series.members}

    def __getitem__(self, name: str) -> Unit:
        series = self._by_name.get(name.rpartition("/")[0])
        number = name.rpartition("/")[2]
        # `str(int())` refuses "01" and digits of other scripts, which would be second names of a unit.
        if series is None or not number.isdecimal() or str(int(number)) != number or int(number) >= series.end:
            raise KeyError(name)
        if int(number) in series.gone:
            raise KeyError(name)
        return series.unit(int(number))

    def __iter__(self) -> Iterator[str]:
        for series in self.series:
            for k in series.numbers():
                yield f"{series.name}/{k}"

    def __len__(self) -> int:
        return sum(series.count for series in self.series)

    def sized(self, groups: Mapping[str, int], left_out: Mapping[str, tuple[int, ...]] | None = None) -> UnitTable:
        """Return a copy with other numbers of groups of these roles, none of which shares its units.

        `left_out`: numbers that a role leaves out; its last group has a number that is as much higher.
        """
        return UnitTable(tuple(_sized(series, groups, left_out or {}) for series in self.series))

    def of_role(self, role: str) -> Series:
        """Return the series of a role's groups."""
        return self._by_role[role]


@dataclass(frozen=True)
class JobPlan:
    """A whole job, resolved. Equal specs give equal plans.

    Plans of one digest (16 hex digits) put the same ranks into the same places of the same machines.
    """

    name: str
    roles: Mapping[str, RolePlan]
    """In the order of the spec."""
    units: UnitTable
    node_groups: Mapping[str, MachineGroup]
    digest: str
    witnesses: tuple[WitnessPlan, ...] = ()
    standby: StandbyMode = "Never"
    """`master.standby`."""

    def sized(self, sizes: Mapping[str, int], left_out: Mapping[str, tuple[int, ...]] | None = None) -> JobPlan:
        """Return a copy with these numbers of ranks. Group k is in unit k, however many there are.

        `left_out`: numbers of groups that a role leaves out, below its highest one; without it there are none.
        """
        # The node groups stay as they are: their machines are counted by `elastic.machines`.
        without = {name: (left_out or {}).get(name, ()) for name in sizes}
        changed = {
            name: size
            for name, size in sizes.items()
            if (self.roles[name].replicas, self.roles[name].gone) != (size, without[name])
        }
        if not changed:
            return self
        roles = {
            name: replace(role, replicas=changed[name], gone=without[name]) if name in changed else role
            for name, role in self.roles.items()
        }
        groups = {name: roles[name].groups for name in changed}
        return replace(self, roles=roles, units=self.units.sized(groups, without))

    @property
    def widest(self) -> JobPlan:
        """The same plan with the most ranks that each role may get."""
        return self.sized({name: role.max_replicas for name, role in self.roles.items() if role.resizes})

    def place(self, role: str, rank: int) -> Place:
        """Return the place of a rank by arithmetic, so that 100,000 ranks need no table."""
        plan = self.roles[role]
        if not 0 <= rank < plan.end:
            raise KeyError((role, rank))
        series = self.units.of_role(role)
        group, bundle = series.bundle_of(role, rank)
        return Place(group, rank - group * plan.group_size, f"{series.name}/{group}", bundle)
