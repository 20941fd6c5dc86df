"""The kinds of evidence of a failure, and the shape of a rule about it; the rules are in `telemetry.causes`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

UNEXPLAINED_END = "its process has ended, and Ray does not know how"
"""What is left of Ray's text about a process whose end nobody announced."""


class Source(StrEnum):
    """Origin of a piece of evidence."""

    END = "end"
    """The host's report of how a process ended that reported nothing itself."""
    ERROR = "error"
    """The exception that ended user code, as "Type: message"."""
    LOG = "log"
    """The last log lines of a process that exited by itself without an exception. Only users' rules read them."""
    CAUSE = "cause"
    """The exception from which the one that ended user code was raised, as "Type: message at f.py:9 in g"."""
    HANDLED = "handled"
    """The exception that was being handled when another one was raised, which need not follow from it."""
    EARLIER = "earlier"
    """An exception that ended no process, but a thread, or that Python ignored, before the end."""
    CONNECTION = "connection"
    """The other end of the connection that an exception is about."""
    OUTPUT = "output"
    """Last lines of a command that failed."""
    CHILD = "child"
    """A process that the failed one had started and that SIGKILL has ended."""
    CHILD_ERROR = "child's error"
    """The last error in the log, where an exception only says that a child is gone."""
    BACKEND = "backend"
    """Ray's message about a dead actor."""
    KERNEL = "kernel"
    """Lines of the machine's kernel log about the process, or about a device."""
    CGROUP = "cgroup"
    """Counters of the memory controller during the life of the process."""
    POD = "pod"
    """Kubernetes' status of the pod."""
    NOTICE = "notice"
    """An announcement about the machine, such as a preemption notice."""
    MONITOR = "monitor"
    """A finding of the hang detection."""
    WITNESS = "witness"
    """A metric of another program on the machine."""
    NODE = "node"
    """How the process of the backend ended that makes a machine a node, as its parent tells."""
    STACKS = "stacks"
    """Path of the file with the stacks of a role's ranks."""


class EvidenceScope(StrEnum):
    """Ends of a process that a rule may explain, so that a neighbour's trouble on the same machine explains none."""

    ANY = "any"
    KILLED = "killed"
    """SIGKILL, or a process that vanished without an exit status."""
    OUTSIDE = "outside"
    """The ends of KILLED, or SIGTERM."""
    DEVICE = "device"
    """The ends of OUTSIDE, a crash, or an error of a device's runtime."""


@dataclass(frozen=True, slots=True)
class CauseRule:
    """One row of the table of causes.

    An empty `reason` keeps the reason that the host reported. `secondary` marks evidence that only shows the loss of
    another process.
    """

    name: str
    source: Source
    patterns: tuple[str, ...]
    reason: str
    example: str
    documented: str
    of: EvidenceScope = EvidenceScope.ANY
    secondary: bool = False
    errors: tuple[str, ...] = ()
    """Types of exceptions that the rule applies to; empty: any."""
