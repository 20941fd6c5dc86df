"""A role of a plan: frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dljob.plan.amounts import Amount, Resources


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
    """InProcess | Process | RoleGroup | Role | Job | Never."""
    max_restarts: int
    comm_backend: str | None
    """"gloo", "nccl", "hccl"; None when the role has no torch process group."""
    comm_timeout_s: int
    init_process_group: bool
    selector: tuple[tuple[str, str], ...] = ()
    """Ray label selectors that its nodes must satisfy, beside that of its node group."""
    pre_check: bool = False
    """Whether its nodes are checked before its ranks start."""
    min_replicas: int = 0
    """The fewest ranks that it goes on with; 0: it always has as many."""
    max_replicas: int = 0
    """The most ranks that it may be given; 0: it always has as many."""
    shared_sight: bool = False
    """Whether each rank sees the devices of all ranks of its role on its node, not its own alone."""
    sub_master: str = ""
    """The entry point that serves where its ranks meet; empty: ElasticMaster, where they have a process group."""
    quota: Resources | None = None
    """What must be free for a rank's own Ray driver, and is not held; None: `per_rank` is held."""
    topology_key: str = ""
    """The label that has one value on all its nodes; empty: none."""
    spread: bool = False
    """Whether no two of its groups share a node."""
    numa_binding: str = ""
    """node | socket | exclusive | core-complex, in torch's words; empty: ranks run on any core."""
    virtual_local_rank: bool = False
    """Whether LOCAL_RANK is 0 in each rank, which sees its own devices alone whatever Ray's switches say."""

    @property
    def resizes(self) -> bool:
        """Whether it may have another number of ranks while it runs."""
        return self.min_replicas < self.max_replicas

    @property
    def groups(self) -> int:
        """How many role groups."""
        return self.replicas // self.group_size

    @property
    def uses_store(self) -> bool:
        """Whether ranks meet through a store: torch's, which ElasticMaster serves, or what their own SubMaster does."""
        return self.elastic and (self.comm_backend is not None or bool(self.sub_master))

    @property
    def rejoins(self) -> bool:
        """Whether its ranks can leave their process group and form another one in the same process.

        A thread host can take its one thread back from user code, and makes the group; a script has both in its hands.
        """
        return self.uses_store and self.init_process_group and self.host is HostKind.THREAD
