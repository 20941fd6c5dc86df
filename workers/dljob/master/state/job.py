"""What never changes while a job runs: its plan, its spec, and arithmetic on them. No part of it is journaled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from dljob.master.state.views import HostId
from dljob.plan.model import JobPlan
from dljob.plan.role import HostKind, RolePlan
from dljob.spec.model import DLJobSpec, FaultTolerance

STORE = -1
"""The index of the host that serves a role's torch store."""


@dataclass(frozen=True)
class RoleFacts:
    """A role's shape, ready for arithmetic."""

    plan: RolePlan
    series: str
    """Its units are "<series>/<group>"."""
    dependents: tuple[str, ...]
    """Roles that wait for it."""
    first_wave: bool
    """It waits for no role to complete, however indirectly: the job is not running before it is ready."""

    @cached_property
    def world(self) -> bool:
        """Whether its ranks meet through a store, so that they can only start together."""
        return self.plan.uses_store

    @cached_property
    def ranks_per_host(self) -> int:
        """1 in a thread host, a whole group in a fork host."""
        return self.plan.group_size if self.plan.host is HostKind.FORK else 1

    @cached_property
    def host_count(self) -> int:
        """How many hosts run its ranks."""
        return self.plan.replicas // self.ranks_per_host

    def host_of(self, rank: int) -> HostId:
        """The host of a rank."""
        return HostId(self.plan.name, rank // self.ranks_per_host)

    def ranks_of(self, index: int) -> range:
        """The ranks of a host."""
        return range(index * self.ranks_per_host, (index + 1) * self.ranks_per_host)

    def group_ranks(self, group: int) -> range:
        """The ranks of a role group."""
        return range(group * self.plan.group_size, (group + 1) * self.plan.group_size)

    def unit_of(self, host: HostId) -> str:
        """The unit that a host lives in; the store lives with rank 0."""
        return f"{self.series}/{max(host.index, 0) * self.ranks_per_host // self.plan.group_size}"

    def hosts(self) -> Iterator[HostId]:
        """All its hosts, the store first."""
        if self.world:
            yield HostId(self.plan.name, STORE)
        for index in range(self.host_count):
            yield HostId(self.plan.name, index)


@dataclass(frozen=True)
class Job:
    """A job's constants."""

    plan: JobPlan
    spec: DLJobSpec
    uid: str
    own_nodes: bool = False
    """Whether somebody makes the nodes of the plan for this job: then they come, however late."""

    @property
    def fault_tolerance(self) -> FaultTolerance:
        """Budgets and rules."""
        return self.spec.fault_tolerance

    @cached_property
    def roles(self) -> Mapping[str, RoleFacts]:
        """Facts of each role, in the order of the spec."""
        plans = self.plan.roles
        late = _late(plans)
        return {
            name: RoleFacts(
                plan=role,
                series=self.plan.units.of_role(name).name,
                dependents=tuple(other for other, p in plans.items() if any(name == dep for dep, _ in p.depends_on)),
                first_wave=name not in late,
            )
            for name, role in plans.items()
        }

    def sized(self, sizes: Mapping[str, int]) -> Job:
        """The same with these numbers of ranks."""
        plan = self.plan.sized(sizes)
        return self if plan is self.plan else replace(self, plan=plan)

    @cached_property
    def drivers(self) -> tuple[str, ...]:
        """The roles that the job ends with; the first one's rank 0 gives the result."""
        return tuple(name for name, role in self.plan.roles.items() if role.driver)

    @cached_property
    def unit_count(self) -> int:
        """How many units the job has."""
        return len(self.plan.units)


def _late(plans: Mapping[str, RolePlan]) -> frozenset[str]:
    """Roles that wait for another to complete, themselves or through a role that they wait for."""
    late: set[str] = set()
    while True:
        more = {
            name
            for name, role in plans.items()
            if name not in late and any(kind == "Complete" or dep in late for dep, kind in role.depends_on)
        }
        if not more:
            return frozenset(late)
        late |= more
