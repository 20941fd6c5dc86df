"""What a plan is made of: frozen data, no behaviour beyond arithmetic on itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

Amount: TypeAlias = int
"""A quantity of a resource in ten-thousandths (Ray's own grain): 1 CPU = 10_000; memory likewise, in bytes x 10_000."""

GRAIN = 10_000

Resources: TypeAlias = tuple[tuple[str, Amount], ...]
"""Resource name as Ray spells it (CPU, memory, GPU, NPU, ...) -> amount; sorted by name, no zeros."""


class HostKind(StrEnum):
    """Which process runs a role's ranks: a thread in a Ray actor, or children forked by one."""

    THREAD = "thread"
    FORK = "fork"


@dataclass(frozen=True, slots=True)
class RolePlan:
    """A role with everything resolved that depends on other fields."""

    name: str
    elastic: bool
    host: HostKind
    entrypoint: tuple[str, ...]
    """("class", "pkg.mod.Name") | ("module", "pkg.mod" or "train.py") | ("command", *argv)."""
    args: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    config: Mapping[str, Any]
    """The job's config with the role's own laid over it."""
    replicas: int
    group_size: int
    driver: bool
    depends_on: tuple[tuple[str, str], ...]
    """(role, "Ready" | "Complete")."""
    per_rank: Resources
    accelerator: tuple[str, Amount] | None
    """(Ray resource name, amount per rank), also contained in `per_rank`."""
    node_group: str
    restart_level: str
    """Process | RoleGroup | Role | Job | Never."""
    max_restarts: int
    comm_backend: str | None
    """"gloo", "nccl", "hccl"; None when the role has no torch process group."""
    comm_timeout_s: int
    init_process_group: bool

    @property
    def groups(self) -> int:
        """How many role groups."""
        return self.replicas // self.group_size

    @property
    def uses_store(self) -> bool:
        """Whether ranks meet through a torch store that ElasticMaster serves."""
        return self.elastic and self.comm_backend is not None


@dataclass(frozen=True, slots=True)
class Bundle:
    """One device slot (or one CPU share) of a unit."""

    resources: Resources
    ranks: tuple[tuple[str, int], ...]
    """(role, rank) of each sharer."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The smallest set of processes that must share a host; one placement group."""

    name: str
    """"<role or collocation>/<k>"."""
    bundles: tuple[Bundle, ...]
    members: tuple[tuple[str, int], ...]
    """(role, group) of each role group in it."""
    selector: tuple[tuple[str, str], ...]
    """Ray label selectors that the node must satisfy."""
    apart: tuple[str, str] | None = None
    """(Separate collocation, role): units of different roles of one such collocation never share a node."""

    @property
    def demand(self) -> Resources:
        """The sum of its bundles."""
        total: dict[str, Amount] = {}
        for bundle in self.bundles:
            for name, amount in bundle.resources:
                total[name] = total.get(name, 0) + amount
        return tuple(sorted(total.items()))


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Machines of one kind, as declared or derived from the roles."""

    name: str
    replicas: int
    resources: Resources
    labels: tuple[tuple[str, str], ...]
    """What each node of the group carries, `dljob.io/node-group` included."""
    derived: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank sits: its group, its index in the group, its unit and its bundle."""

    group: int
    local: int
    unit: str
    bundle: int


@dataclass(frozen=True)
class JobPlan:
    """A whole job, resolved. Equal specs give equal plans; `digest` says so in 16 hex digits."""

    name: str
    roles: Mapping[str, RolePlan]
    units: Mapping[str, Unit]
    node_groups: Mapping[str, NodeGroup]
    manifest: Mapping[str, Any] = field(repr=False)
    """The RayCluster that would carry the job."""
    digest: str

    def place(self, role: str, rank: int) -> Place:
        """Where a rank sits; arithmetic, so that 100,000 ranks need no table."""
        raise KeyError((role, rank))
