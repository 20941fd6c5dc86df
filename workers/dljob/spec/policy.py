"""The models of what happens after a failure: budgets, waits, spares and rules."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from dljob.spec import cel, scalars
from dljob.spec.scalars import MAP_BY_NAME, SET, Factor, Memory, Model, Name, RoleName
from dljob.spec.standing import LEASE_SECONDS

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
RuleReason = Literal[
    "UserError",
    "ImportError",
    "NodeLost",
    "NodeFrozen",
    "OOMKilled",
    "DeviceError",
    "Preempted",
    "Network",
    "Hang",
    "Straggler",
    "Unknown",
]

ExitStatus = Annotated[int, Field(ge=1, le=255)]
Attempts = Annotated[int, Field(ge=0, le=100000)]


class OutOfMemory(Model):
    """More memory for a rank that the kernel, its container or Ray ended for want of it."""

    memory_factor: Factor = "1.5"
    """It comes back with so many times the resources.memory that it had, "1.5"; its unit is reserved anew for that."""
    max_memory: Memory
    """With no more than that, "64Gi"."""


class RestartPolicy(Model):
    """How a role is restarted when no rule of faultTolerance says otherwise."""

    level: RestartLevel | None = None
    """What restarts with a failed rank; left out: RoleGroup for Elastic with one group, Role for Elastic with more,
    else Process. InProcess, for torch ranks given as a class: those that live keep their processes and meet again.
    Never: a failure fails the job."""
    max_restarts: Attempts = 10
    """Restarts of this role within the window before the next higher level is tried."""
    out_of_memory: OutOfMemory | None = None
    """Whether ranks that run out of memory come back with more, where nodes have it; left out: with what they had."""


class Backoff(Model):
    """Waiting before a restart, from the second failure in a window on."""

    initial_seconds: Annotated[int, Field(ge=0, le=3600)] = 1
    """The first wait, in seconds."""
    multiplier: Annotated[int, Field(ge=1, le=10)] = 2
    """Each wait is this many times the last."""
    max_seconds: Annotated[int, Field(ge=0, le=86400)] = 300
    """No wait is longer than so many seconds."""


class Spares(Model):
    """Processes or machines kept ready to take over."""

    processes_per_node: Annotated[int, Field(ge=0, le=64)] = 0
    """Processes kept ready, with user code imported, per node and role that runs there."""
    nodes: Annotated[int, Field(ge=0, le=1024)] = 0
    """Machines per node group kept free of ranks."""


class NodePolicy(Model):
    """What becomes of a node that stops answering."""

    action: Literal["Replace", "Ignore"] = "Replace"
    """Replace: what lives on a frozen node starts elsewhere. Ignore: nobody looks; only a node that is gone is left."""
    freeze_seconds: Annotated[int, Field(ge=1, le=3600)] = 3
    """A node that answers nothing for so many seconds is frozen."""
    unreachable_seconds: Annotated[int, Field(ge=1, le=3600)] = 30
    """So long instead, where most nodes are silent at once: then it is rather PrimeMaster that nobody reaches. And so
    long pods stay on a Kubernetes node that is not ready or unreachable, unless their template tolerates that."""
    exclude_seconds: Annotated[int, Field(ge=0, le=31536000)] = 86400
    """A node that was replaced gets no ranks for so many seconds, and never before leaseSeconds have passed; on
    Kubernetes its pod is replaced, and new pods keep away from the Kubernetes node as long."""
    pending_timeout_seconds: Annotated[int, Field(ge=1, le=86400)] = 300
    """So long ranks of a replaced node wait for another one; then an excluded node that answers is taken back, and
    where there is none the job fails. New pods that find no Kubernetes node go to excluded ones after half of it."""
    relauncher: Annotated[str | None, Field(min_length=1, max_length=63, pattern=scalars.NAME_PATTERN)] = None
    """Name of an entry point in `dljob.noderelaunchers` that is told of nodes that were left or are gone, to have them
    replaced; left out: nobody is. On Kubernetes the operator replaces pods, and none is needed."""


class ElasticPolicy(Model):
    """When roles with minReplicas or maxReplicas get another number of ranks."""

    shrink_after_seconds: Annotated[int | None, Field(ge=1, le=3600)] = None
    """So long ranks of a lost node wait for another one before their role goes on without them, and so long after a
    node joined a job without room for all waits for the next one before it starts with fewer ranks; left out: 30 where
    the job has its own machines made, else 3."""
    grow_after_seconds: Annotated[int, Field(ge=1, le=86400)] = 60
    """So long at least a role stays as it is before it grows: each growth is a restart. Doubles with each growth in a
    row that is lost again within 10 minutes."""


class HangPolicy(Model):
    """What becomes of ranks that stand still; the bounds grow with the steps that were measured."""

    action: Literal["Restart", "Report", "Ignore"] = "Restart"
    """Restart: as a failed rank, by the rules. Report: it is only told. Ignore: nobody looks."""
    idle_seconds: Annotated[int, Field(ge=1, le=86400)] = 180
    """A rank that does nothing while others wait for it hangs after so many seconds, and 30 median steps."""
    busy_seconds: Annotated[int, Field(ge=1, le=604800)] = 900
    """One that works, or that nobody waits for, after so many seconds, and 300 median steps."""


class Rule(Model):
    """What to do about a failure; the first rule that matches decides."""

    model_config = ConfigDict(json_schema_extra=cel.schema(cel.ESCALATION))

    name: Name
    """Name of the rule, shown in events."""
    roles: Annotated[tuple[RoleName, ...], Field(max_length=32, json_schema_extra=SET)] = ()
    """Roles it is about; empty: all."""
    on_reasons: Annotated[tuple[RuleReason, ...], Field(max_length=16, json_schema_extra=SET)] = ()
    """Reasons it is about; empty: any."""
    on_exit_codes: Annotated[tuple[ExitStatus, ...], Field(max_length=32, json_schema_extra=SET)] = ()
    """Exit codes it is about (128 + n for signal n); empty: any."""
    action: RuleAction
    """What is done."""
    max_attempts: Annotated[int | None, Field(ge=1, le=100000)] = None
    """How often within the window, before escalateTo; left out: as often as the budgets allow."""
    escalate_to: RuleAction | None = None
    """What is done after maxAttempts, above the action; left out: the next higher level."""
    counts_towards_limit: bool = True
    """Whether its restarts use up the budgets of role and job."""


class KnownCause(Model):
    """What a line says of a failure; asked before the causes that dljob knows itself, the first that fits decides."""

    name: Name
    """Name of the cause."""
    on_log: Annotated[str, Field(min_length=1, max_length=256)]
    """A text in the error, or in the last lines of the log of a process without one; capitals do not matter, * stands
    for anything."""
    reason: RuleReason
    """What it is called; rules ask for it by onReasons."""


class FaultTolerance(Model):
    """Budgets and rules of restarts."""

    max_restarts: Attempts = 10
    """Restarts of the whole job within the window before it fails."""
    max_cluster_restarts: Attempts = 3
    """New RayClusters on Kubernetes, each a new attempt from what the last one saved, before the job fails."""
    window_seconds: Annotated[int, Field(ge=1, le=2592000)] = 3600
    """Budgets count failures of the last so many seconds."""
    lease_seconds: Annotated[int | None, Field(ge=5, le=3600)] = None
    """A process that hears nothing from PrimeMaster for so many seconds ends itself; left out: 30, and 120 with
    gcsFaultTolerance, where PrimeMaster may be away for as long as it takes to replace the head."""
    backoff: Backoff = Backoff()
    """Waits between restarts."""
    spares: Spares = Spares()
    """What is kept ready."""
    node: NodePolicy = NodePolicy()
    """Nodes that stop answering."""
    elastic: ElasticPolicy = ElasticPolicy()
    """Roles that go on with fewer ranks, and grow back."""
    hang: HangPolicy = HangPolicy()
    """Ranks that stand still."""
    rules: Annotated[tuple[Rule, ...], Field(max_length=16, json_schema_extra=MAP_BY_NAME)] = ()
    """What to do about which failure; the first rule that matches decides."""
    causes: Annotated[tuple[KnownCause, ...], Field(max_length=16, json_schema_extra=MAP_BY_NAME)] = ()
    """What lines in logs and errors mean, in addition to what dljob knows."""

    @property
    def lease(self) -> int:
        """The lease in seconds where the head's memory is not kept."""
        return self.lease_seconds or LEASE_SECONDS
