"""The kinds of evidence of a failure, and the shape of a rule about it; the rules are in `telemetry.causes`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Source(StrEnum):
    """Where a piece of evidence comes from."""

    END = "end"
    """What the host said of the end of a process that said nothing itself."""
    ERROR = "error"
    """The exception that user code ended with, as "Type: message"."""
    LOG = "log"
    """The end of the log of a process that ended by itself, without last words."""
    BACKEND = "backend"
    """What Ray says of an actor that is gone."""
    KERNEL = "kernel"
    """Lines of the machine's kernel log about the process, or about a device."""
    CGROUP = "cgroup"
    """What the memory controller counted while the process lived."""
    POD = "pod"
    """What Kubernetes says of the pod."""
    NOTICE = "notice"
    """What somebody announced about the machine."""
    MONITOR = "monitor"
    """What watches the progress of ranks found."""
    STACKS = "stacks"
    """Where the stacks of a role's ranks were written to."""


class Of(StrEnum):
    """Which ends a rule may explain: a stranger's trouble on the same machine explains none."""

    ANY = "any"
    KILLED = "killed"
    """SIGKILL, or a process that vanished."""
    OUTSIDE = "outside"
    """The same, or SIGTERM."""
    DEVICE = "device"
    """The same, a crash, or an error of a device's runtime."""


@dataclass(frozen=True, slots=True)
class CauseRule:
    """One row. `reason` empty: as the host said. `secondary`: it only tells that somebody else is gone."""

    name: str
    source: Source
    patterns: tuple[str, ...]
    reason: str
    example: str
    documented: str
    of: Of = Of.ANY
    secondary: bool = False
    errors: tuple[str, ...] = ()
    """The exceptions that it is about; empty: any."""
