"""The models of failure handling: restart budgets, backoff, spares and rules."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from dljob.spec import cel, scalars
from dljob.spec.capabilities import Capability, Needs
from dljob.spec.scalars import MAP_BY_NAME, SET, Factor, LabelKey, Memory, Model, Name, RoleName
from dljob.spec.standing import LEASE_SECONDS
from dljob.spec.witness import Witness

RestartLevel = Literal["InProcess", "Process", "RoleGroup", "Role", "Job", "Never"]
RuleAction = Literal[
    "RestartInProcess",
    "RestartProcess",
    "RestartRoleGroup",
    "RestartRole",
    "RestartJob",
    "ReplaceNode",
    "Fail",
    "Ignore",
]
REPLACES_NODE = Needs(Capability.NODE_AGENTS, "replacement of a bad node", values=("ReplaceNode",))
RuleReason = Literal[
    "UserError",
    "ImportError",
    "NodeLost",
    "NodeFrozen",
    "OOMKilled",
    "DeviceError",
    "DriverMismatch",
    "Preempted",
    "Network",
    "Disk",
    "PortTaken",
    "ProcessLimit",
    "Hang",
    "Straggler",
    "SilentCorruption",
    "Unhealthy",
    "Killed",
    "Unknown",
]

ExitStatus = Annotated[int, Field(ge=1, le=255)]
Attempts = Annotated[int, Field(ge=0, le=100000)]


class OutOfMemory(Model):
    """More memory for a rank that the kernel, its container or Ray killed for lack of memory."""

    # A text, because a binary float is not exactly 1.1 (ADR 5).
    memory_factor: Factor = "1.5"
    """Factor by which resources.memory of the rank grows after each kill, such as "1.5"; its unit is reserved anew."""
    max_memory: Memory
    """Upper bound for the grown memory of the rank, such as "64Gi"; must be above resources.memory."""


class RestartPolicy(Model):
    """Restarts of a role, where no rule of faultTolerance decides."""

    # None: the default depends on the type of the role and the number of its groups.
    level: Annotated[
        RestartLevel | None, Needs(Capability.IN_PROCESS, "restarts in process", values=("InProcess",))
    ] = None
    """The smallest part of the job that restarts with a failed rank; left out: RoleGroup for Elastic with one group,
    Role for Elastic with more, else Process. InProcess, for torch ranks given as a class: the surviving ranks keep
    their processes and form a new process group. Never: a failure of a rank fails the job."""
    max_restarts: Attempts = 10
    """Restarts of this role within faultTolerance.windowSeconds; then the next higher level restarts."""
    out_of_memory: Annotated[OutOfMemory | None, Needs(Capability.NODE_AGENTS, "recognizing that memory ran out")] = (
        None
    )
    """Growth of the memory of ranks that ran out of it, where nodes have more; left out: they restart with the memory
    they had."""
    with_: Annotated[tuple[RoleName, ...], Field(alias="with", max_length=32, json_schema_extra=SET)] = ()
    """Roles that cannot live on without this one: all their ranks restart whenever ranks of this role do, at any level,
    and so do the roles that those name; this role's budget pays for all. Empty: none."""


class Backoff(Model):
    """Exponential backoff before a restart, from the second failure of a role in a row on.

    A row ends with the window, or with a rank that had been ready for longer than `max_seconds`.
    """

    initial_seconds: Annotated[int, Field(ge=0, le=3600)] = 1
    """Seconds of the first wait."""
    multiplier: Annotated[int, Field(ge=1, le=10)] = 2
    """Factor from each wait to the next; 1: all waits are equal."""
    max_seconds: Annotated[int, Field(ge=0, le=86400)] = 300
    """Upper bound of a wait, in seconds. The failure of a rank that had been ready for longer restarts at once."""


class Spares(Model):
    """Processes or machines kept ready to take over."""

    processes_per_node: Annotated[int, Field(ge=0, le=64)] = 0
    """Spare processes with user code already imported, for each node and each role that runs there; 0: none."""
    nodes: Annotated[int, Field(ge=0, le=1024)] = 0
    """Spare machines of each node group, kept free of ranks; 0: none."""


class NodePolicy(Model):
    """Handling of nodes that stop answering."""

    model_config = ConfigDict(json_schema_extra=cel.schema(cel.FAILURE_DOMAIN))

    action: Literal["Replace", "Ignore"] = "Replace"
    """Replace: the ranks of a frozen node restart on another node. Ignore: heartbeats of nodes are not checked; ranks
    move only when their node is gone."""
    freeze_seconds: Annotated[int, Field(ge=1, le=3600)] = 3
    """Seconds without a heartbeat after which a node counts as frozen."""
    unreachable_seconds: Annotated[int, Field(ge=1, le=3600)] = 30
    """The same bound while most nodes are silent at once, since then PrimeMaster is more likely the unreachable one.
    Also the seconds for which PrimeMaster must be silent before the operator replaces the head on a Kubernetes node
    whose kubelet is silent, too."""
    exclude_seconds: Annotated[int, Field(ge=0, le=31536000)] = 86400
    """Seconds that a replaced node gets no ranks, at least leaseSeconds; on Kubernetes the operator replaces its pod,
    and new pods avoid the Kubernetes node for as long."""
    pending_timeout_seconds: Annotated[int, Field(ge=1, le=86400)] = 300
    """Seconds that ranks of a replaced node wait for another node; then PrimeMaster takes back an excluded node that
    answers, or fails the job where there is none. After half of this time, new pods that find no Kubernetes node may
    go to excluded ones."""
    max_failures: Annotated[int, Field(ge=1, le=1000)] = 1
    """The failure of a node within faultTolerance.windowSeconds that excludes it for excludeSeconds; its ranks leave at
    each, and after an earlier one may come back once it answers. A node that failed its check is excluded at once."""
    failure_domain_label: LabelKey | None = None
    """Label of machines that fail together, such as their rack or super-pod; needs domainFailures. Left out: none."""
    domain_failures: Annotated[int | None, Field(ge=2, le=1000)] = None
    """Failed nodes with one value of failureDomainLabel, within domainWindowSeconds, after which all nodes with that
    value are replaced together, if other nodes have room for their ranks. Left out: never."""
    domain_window_seconds: Annotated[int, Field(ge=1, le=604800)] = 600
    """Seconds within which domainFailures nodes must fail."""
    relauncher: Annotated[str | None, Field(min_length=1, max_length=63, pattern=scalars.NAME_PATTERN)] = None
    """Name of an entry point in `dljob.noderelaunchers`, called with replaced and lost nodes so that it can start
    others; left out: none. On Kubernetes none is needed: the operator replaces pods."""


class ElasticPolicy(Model):
    """Waits before roles with minReplicas or maxReplicas get another number of ranks."""

    # None: the default depends on whether machines are made for the job.
    shrink_after_seconds: Annotated[int | None, Field(ge=1, le=3600)] = None
    """Seconds that ranks of a lost node wait for another node before their role continues without them; also the
    seconds after the last node joined that a starting job without room for all ranks waits for more nodes before it
    starts with fewer. Left out: 30 where the machines are made for the job, else 3."""
    grow_after_seconds: Annotated[int, Field(ge=1, le=86400)] = 60
    """The fewest seconds that a role keeps its size before it grows, since each growth is a restart; an order to
    scale, for which there is room, does not wait. Doubles with each growth in a row that is lost again within 10
    minutes."""


class HangPolicy(Model):
    """Detection of hung ranks; the bounds grow with the measured duration of steps."""

    action: Literal["Restart", "Report", "Ignore"] = "Restart"
    """Restart: a hung rank restarts like a failed one, by the rules. Report: an event reports it, and nothing restarts.
    Ignore: ranks are not watched."""
    idle_seconds: Annotated[int, Field(ge=1, le=86400)] = 180
    """Seconds after which a rank counts as hung that does nothing while others wait for it; at least 30 median
    steps."""
    busy_seconds: Annotated[int, Field(ge=1, le=604800)] = 900
    """Seconds after which a rank counts as hung that works, or that no other rank waits for; at least 300 median
    steps."""


class Rule(Model):
    """An action for certain failures; the first rule that matches decides."""

    model_config = ConfigDict(json_schema_extra=cel.schema(cel.ESCALATION))

    name: Name
    """Name of the rule, shown in events."""
    roles: Annotated[tuple[RoleName, ...], Field(max_length=32, json_schema_extra=SET)] = ()
    """Roles that the rule applies to; empty: all."""
    on_reasons: Annotated[tuple[RuleReason, ...], Field(max_length=16, json_schema_extra=SET)] = ()
    """Failure reasons that the rule applies to; empty: any."""
    on_exit_codes: Annotated[tuple[ExitStatus, ...], Field(max_length=32, json_schema_extra=SET)] = ()
    """Exit codes that the rule applies to (128 + n for signal n); empty: any."""
    action: Annotated[
        RuleAction,
        REPLACES_NODE,
        Needs(Capability.IN_PROCESS, "restarts in process", values=("RestartInProcess",)),
    ]
    """The action for a failure that matches."""
    max_attempts: Annotated[int | None, Field(ge=1, le=100000)] = None
    """Uses of the action within the window before escalateTo takes its place; left out: as many as the budgets
    allow."""
    escalate_to: Annotated[RuleAction | None, REPLACES_NODE] = None
    """The action after maxAttempts, of a higher level than `action`; left out: the next higher level."""
    counts_towards_limit: bool = True
    """Whether restarts by this rule count against the budgets of role and job."""


class KnownCause(Model):
    """A log pattern that classifies a failure; the first match decides, before the patterns built into dljob."""

    name: Name
    """Name of the cause."""
    on_log: Annotated[str, Field(min_length=1, max_length=256)]
    """A text to find in the error, or in the last log lines of a process that left no error; case is ignored, * matches
    any text."""
    reason: RuleReason
    """Reason of a failure that matches; rules select it by onReasons."""


class FaultTolerance(Model):
    """Budgets and rules of restarts."""

    max_restarts: Attempts = 10
    """Restarts of the whole job within windowSeconds before it fails."""
    max_cluster_restarts: Attempts = 3
    """New RayClusters on Kubernetes, over the life of the job, before it fails; each is a new attempt from the last
    checkpoint."""
    window_seconds: Annotated[int, Field(ge=1, le=2592000)] = 3600
    """Length in seconds of the window in which budgets count failures."""
    # None: the default depends on gcsFaultTolerance (`standing.lease_seconds`).
    lease_seconds: Annotated[int | None, Field(ge=5, le=3600)] = None
    """Seconds after which a process without word from PrimeMaster ends itself; left out: 30, and 120 with
    gcsFaultTolerance, since PrimeMaster may be unreachable for as long as it takes to replace the head."""
    backoff: Backoff = Backoff()
    """Waits before restarts."""
    spares: Annotated[Spares, Needs(Capability.SPARES, "processes and machines that are kept ready")] = Spares()
    """Processes and machines kept ready to take over."""
    node: Annotated[NodePolicy, Needs(Capability.NODE_AGENTS, "detection of frozen nodes")] = NodePolicy()
    """Handling of nodes that stop answering."""
    elastic: Annotated[ElasticPolicy, Needs(Capability.ELASTIC, "roles that continue with fewer ranks")] = (
        ElasticPolicy()
    )
    """Shrinking and growing of roles with bounds."""
    hang: Annotated[HangPolicy, Needs(Capability.NODE_AGENTS, "detection of hung ranks")] = HangPolicy()
    """Detection of hung ranks."""
    witnesses: Annotated[tuple[Witness, ...], Field(max_length=16, json_schema_extra=MAP_BY_NAME)] = ()
    """Metrics of other programs on the machines that are evidence about ranks: of hangs, slowness or wrong results."""
    rules: Annotated[tuple[Rule, ...], Field(max_length=16, json_schema_extra=MAP_BY_NAME)] = ()
    """Actions by kind of failure; the first rule that matches decides."""
    causes: Annotated[tuple[KnownCause, ...], Field(max_length=16, json_schema_extra=MAP_BY_NAME)] = ()
    """Patterns in logs and errors that classify failures, in addition to those built into dljob."""

    @property
    def lease(self) -> int:
        """Return the lease in seconds of a job without gcsFaultTolerance."""
        return self.lease_seconds or LEASE_SECONDS
