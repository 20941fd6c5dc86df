"""A job's constants: its plan, its spec, and arithmetic on them. They are planned again, never journaled.

Only the number of ranks of elastic roles varies (`Job.sized`); the journal keeps those sizes in `JobState.sizes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dljob.master.state.views import HostId
from dljob.plan.model import JobPlan
from dljob.plan.role import HostKind, RolePlan
from dljob.spec.model import DLJobSpec, FaultTolerance

STORE_HOST_INDEX = -1
"""Index of the host that serves a role's torch store. Negative, since hosts that run ranks count from 0."""


@dataclass(frozen=True)
class RoleFacts:
    """A role's shape, and the mapping between its ranks, hosts, groups and units."""

    plan: RolePlan
    series: str
    """Name prefix of its units: "<series>/<group>"."""
    dependents: tuple[str, ...]
    """Roles whose `dependsOn` names this role."""
    starts_with_job: bool
    """Whether it waits for no role to complete, even indirectly. The job runs once all such roles are ready."""
    roles_taken_along: tuple[str, ...] = ()
    """Roles that restart as a whole whenever any of its ranks restarts: those that its restartPolicy.with names, and
    those that these name in turn. The role itself is one of them where the names lead back to it."""
    restart_partners: tuple[str, ...] = ()
    """Roles that may be in one coupled restart with it, as those that restart first or as those that are taken along;
    itself among them."""

    @cached_property
    def is_torch_world(self) -> bool:
        """Whether its ranks form a torch world through a store, so that they can only start together."""
        return self.plan.uses_store

    @cached_property
    def fleet(self) -> bool:
        """Whether its ranks come and go one by one while the others run on: they form no world."""
        return self.plan.fleet

    @cached_property
    def ranks_per_host(self) -> int:
        """Number of ranks in one host: 1 in a thread host, a whole group in a fork host."""
        return self.plan.group_size if self.plan.host is HostKind.FORK else 1

    @cached_property
    def ranks(self) -> Sequence[int]:
        """The numbers of its ranks."""
        return self.plan.ranks

    @cached_property
    def groups(self) -> Sequence[int]:
        """The numbers of its role groups."""
        return self.plan.group_numbers

    @cached_property
    def group_units(self) -> tuple[str, ...]:
        """The names of the units of its role groups."""
        return tuple(f"{self.series}/{group}" for group in self.groups)

    @cached_property
    def places(self) -> Mapping[int, int]:
        """Number of a group -> how many lower ones there are: its place in the role's seats."""
        return {number: place for place, number in enumerate(self.groups)}

    @cached_property
    def host_count(self) -> int:
        """Number of hosts that run its ranks, the store host not counted."""
        return self.plan.replicas // self.ranks_per_host

    def host_of(self, rank: int) -> HostId:
        """Return the host of a rank."""
        return HostId(self.plan.name, rank // self.ranks_per_host)

    def ranks_of(self, index: int) -> range:
        """Return the ranks of a host."""
        return range(index * self.ranks_per_host, (index + 1) * self.ranks_per_host)

    def group_ranks(self, group: int) -> range:
        """Return the ranks of a role group."""
        return range(group * self.plan.group_size, (group + 1) * self.plan.group_size)

    def unit_of(self, host: HostId) -> str:
        """Return the unit that a host lives in."""
        # The store host (index -1) lives with rank 0.
        return f"{self.series}/{max(host.index, 0) * self.ranks_per_host // self.plan.group_size}"

    def hosts(self) -> Iterator[HostId]:
        """Yield all hosts of the role; in a torch world first the store's host, which all ranks need."""
        if self.is_torch_world:
            yield HostId(self.plan.name, STORE_HOST_INDEX)
        for index in dict.fromkeys(rank // self.ranks_per_host for rank in self.ranks):
            yield HostId(self.plan.name, index)


@dataclass(frozen=True)
class Job:
    """A job's constants."""

    plan: JobPlan
    spec: DLJobSpec
    uid: str
    own_nodes: bool = False
    """Whether the nodes of the plan are created for this job, so that missing ones can be waited for."""

    @property
    def fault_tolerance(self) -> FaultTolerance:
        """The spec's budgets and rules."""
        return self.spec.fault_tolerance

    @cached_property
    def roles(self) -> Mapping[str, RoleFacts]:
        """The facts of each role, in the order of the spec."""
        plans = self.plan.roles
        late = _roles_after_a_completion(plans)
        coupled = {name: _coupled_roles(plans, name) for name in plans}
        return {
            name: RoleFacts(
                plan=role,
                series=self.plan.units.of_role(name).name,
                dependents=tuple(user for user, p in plans.items() if any(name == dep for dep, _ in p.depends_on)),
                starts_with_job=name not in late,
                roles_taken_along=coupled[name],
                restart_partners=_restart_partners(coupled, name),
            )
            for name, role in plans.items()
        }

    def sized(self, sizes: Mapping[str, int], left_groups: Mapping[str, tuple[int, ...]] | None = None) -> Job:
        """Return the same job with these numbers of ranks, by role; `left_groups`: numbers of groups to leave out."""
        plan = self.plan.sized(sizes, left_groups)
        return self if plan is self.plan else replace(self, plan=plan)

    @cached_property
    def drivers(self) -> tuple[str, ...]:
        """The roles whose completion ends the job; rank 0 of the first one gives the job's result."""
        return tuple(name for name, role in self.plan.roles.items() if role.driver)

    @cached_property
    def loading(self) -> tuple[str, ...]:
        """The roles whose weights dljob loads."""
        return tuple(name for name, role in self.plan.roles.items() if role.weights is not None)

    @cached_property
    def unit_count(self) -> int:
        """Number of units of the job."""
        return len(self.plan.units)


def _roles_after_a_completion(plans: Mapping[str, RolePlan]) -> frozenset[str]:
    """Return the roles that wait for another one to complete, directly or through a role that they wait for."""
    late_roles: set[str] = set()
    while True:
        new_roles = {
            name
            for name, role in plans.items()
            if name not in late_roles and any(kind == "Complete" or dep in late_roles for dep, kind in role.depends_on)
        }
        if not new_roles:
            return frozenset(late_roles)
        late_roles |= new_roles


def _coupled_roles(plans: Mapping[str, RolePlan], role: str) -> tuple[str, ...]:
    """Return the roles that restart with a role, in the order of the plan."""
    coupled_roles: set[str] = set()
    new_roles = set(plans[role].restart_with)
    while new_roles:
        coupled_roles |= new_roles
        new_roles = {name for coupled_role in new_roles for name in plans[coupled_role].restart_with} - coupled_roles
    return tuple(name for name in plans if name in coupled_roles)


def _restart_partners(coupled: Mapping[str, tuple[str, ...]], role: str) -> tuple[str, ...]:
    """Return the roles of all coupled restarts that a role can be in."""
    groups = [{name, *others} for name, others in coupled.items() if others and role in (name, *others)]
    return tuple(name for name in coupled if any(name in group for group in groups))
