"""A role of a plan: frozen data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dljob.plan.amounts import GRAIN, Amount, Resources
from dljob.plan.role_options import RoleOptions
from dljob.plan.serving import DrainPlan, ProbePlan, WeightsPlan


class HostKind(StrEnum):
    """The kind of process that runs a role's ranks: a thread in a Ray actor, or children forked by one."""

    THREAD = "thread"
    FORK = "fork"


@dataclass(frozen=True, slots=True)
class AutoscalePlan:
    """Scaling of a role by its load."""

    by: str
    """queue | calls | metric."""
    name: str
    """Name of the queue or metric; empty for calls."""
    target: int
    """Load of one rank."""
    cooldown_s: float


@dataclass(frozen=True, slots=True)
class RolePlan(RoleOptions):
    """A role with all fields resolved that depend on other ones."""

    name: str
    elastic: bool
    host: HostKind
    entrypoint: tuple[str, ...]
    """("class", "pkg.mod.Name") | ("module", "pkg.mod" or "train.py") | ("command", *argv)."""
    args: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    config: Mapping[str, Any]
    """The job's config, overridden by the role's own."""
    replicas: int
    group_size: int
    driver: bool
    depends_on: tuple[tuple[str, str], ...]
    """(role, "Ready" | "Complete")."""
    per_rank: Resources
    accelerator: tuple[str, Amount] | None
    """(Ray resource name, amount per rank), also contained in `per_rank`."""
    restart_level: str
    """InProcess | Process | RoleGroup | Role | Job | Never."""
    max_restarts: int
    comm_backend: str | None
    """"gloo", "nccl", "hccl"; None when the role has no torch process group."""
    comm_timeout_s: int
    init_process_group: bool
    selector: tuple[tuple[str, str], ...] = ()
    """Ray label selectors for its nodes, beside that of its node group."""
    pre_check: bool = False
    """Whether its nodes are checked before its ranks start."""
    min_replicas: int = 0
    """Fewest ranks with which it continues; 0 if its size is fixed."""
    max_replicas: int = 0
    """Most ranks that it may get; 0 if its size is fixed."""
    shared_sight: bool = False
    """Whether each rank sees the devices of all ranks of its role on its node, and not only its own."""
    sub_master: str = ""
    """Entry point of the user's SubMaster; empty for ElasticMaster, where the ranks have a process group."""
    quota: Resources | None = None
    """Free resources that a rank's own Ray driver needs, not reserved; None if `per_rank` is reserved."""
    topology_key: str = ""
    """Label that has one value on all its nodes; empty for none."""
    preferred_key: str = ""
    """Label that has one value on all its nodes if there is room for that; empty for none."""
    spread: bool = False
    """Whether each of its groups needs a node of its own."""
    numa_binding: str = ""
    """node | socket | exclusive | core-complex, in torch's terms; empty if ranks run on any core."""
    virtual_local_rank: bool = False
    """Whether LOCAL_RANK is 0 in each rank, which then sees only its own devices, whatever Ray's switches say."""
    restart_with: tuple[str, ...] = ()
    """Roles that its restartPolicy.with names: they restart as a whole whenever any of its ranks does."""
    ports: tuple[tuple[str, int], ...] = ()
    """(name, number or 0) of each port on which a rank listens."""
    readiness: ProbePlan | None = None
    """Says whether a rank is ready; None: it is ready once it has started."""
    startup: ProbePlan | None = None
    """Holds the other probes back until it succeeds; a rank that it gives up is ended."""
    liveness: ProbePlan | None = None
    """Ends a rank that it finds unhealthy."""
    autoscale: AutoscalePlan | None = None
    """Scales the role by its load; None: only orders do."""
    gone: tuple[int, ...] = ()
    """Numbers of groups, below the highest one that it has, that left while higher ones stayed (ADR 96)."""
    drain: DrainPlan | None = None
    """Comes before SIGTERM when a rank is ended in order."""
    weights: WeightsPlan | None = None
    """The weights that dljob loads into its ranks."""
    tf: str = ""
    """chief | ps | worker | evaluator, its task in a cluster of TensorFlow; empty: none."""
    memory_unlimited: bool = False
    """Whether a rank with a share of a GPU may take more than that share of its memory."""

    @property
    def memory_share(self) -> float:
        """The share of its GPU's memory to which a rank is held; 0 if to none: a command is another program."""
        kind, amount = self.accelerator or ("", GRAIN)
        is_limited = not self.memory_unlimited and self.entrypoint[0] != "command" and kind == "GPU" and amount < GRAIN
        return amount / GRAIN if is_limited else 0.0

    @property
    def probed(self) -> bool:
        """Whether its ranks have probes."""
        return any(probe is not None for probe in (self.startup, self.readiness, self.liveness))

    @property
    def startup_s(self) -> float:
        """Seconds that its startup probe gives a rank to begin."""
        probe = self.startup
        return float(probe.delay_s + probe.failures * probe.period_s) if probe else 0.0

    @property
    def drain_s(self) -> float:
        """Seconds that an orderly end may take longer, since a rank finishes its requests."""
        return float(self.drain.timeout_s) if self.drain else 0.0

    @property
    def resizes(self) -> bool:
        """Whether its number of ranks may change while it runs."""
        return self.min_replicas < self.max_replicas

    @property
    def fleet(self) -> bool:
        """Whether its ranks come and go one by one while the others run on: they form no world."""
        return self.resizes and not self.elastic

    @property
    def groups(self) -> int:
        """The number of role groups."""
        return self.replicas // self.group_size

    @property
    def group_numbers(self) -> Sequence[int]:
        """The numbers of its role groups: without gaps, unless groups of a fleet left."""
        if not self.gone:
            return range(self.groups)
        return [number for number in range(self.groups + len(self.gone)) if number not in self.gone]

    @property
    def ranks(self) -> Sequence[int]:
        """The numbers of its ranks."""
        if not self.gone:
            return range(self.replicas)
        size = self.group_size
        return [rank for number in self.group_numbers for rank in range(number * size, (number + 1) * size)]

    @property
    def end(self) -> int:
        """The number after its highest rank."""
        return self.replicas + len(self.gone) * self.group_size

    @property
    def is_torchrun_script(self) -> bool:
        """Whether its ranks are scripts or commands of a torch world, as those of `dljob torchrun`."""
        return self.elastic and self.host is HostKind.FORK

    @property
    def uses_store(self) -> bool:
        """Whether ranks meet through a store: torch's, served by ElasticMaster, or that of their own SubMaster."""
        return self.elastic and (self.comm_backend is not None or bool(self.sub_master))

    @property
    def rejoins(self) -> bool:
        """Whether its ranks can leave their process group and form another one in the same process.

        A thread host makes the group, and can interrupt its one user thread. A script controls both itself.
        """
        return self.uses_store and self.init_process_group and self.host is HostKind.THREAD
