"""Capabilities of backends, and the mark of the fields of the spec that need them.

Ray has all capabilities. Another backend declares its own, and a job that needs more is refused before any part of it
starts, with all such fields at once. A field at its default needs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Capability(StrEnum):
    """A capability of a backend; the value is its name in messages."""

    JOBS = "jobs"
    """Run a whole job: PrimeMaster, and hosts of ranks."""
    PROCESSES = "processes"
    """Each actor is a process of its own, with its environment and its pid."""
    SEVERAL_NODES = "several-nodes"
    """Reservations are pinned to the node that PrimeMaster chose among several."""
    CLASSES = "classes"
    ELASTIC = "elastic"
    DEVICES = "devices"
    PLACEMENT = "placement"
    DRIVERS = "drivers"
    IN_PROCESS = "in-process"
    CHECKPOINTS = "checkpoints"
    COLLECTIVES = "collectives"
    NODE_AGENTS = "node-agents"
    """A process on each node sees frozen nodes, ranks that hang, and why processes end."""
    SPARES = "spares"
    MASTER_RESTARTS = "master-restarts"
    WEIGHTS = "weights"
    """Hosts read weight channels from the object store, and load their versions into ranks."""


ALL = frozenset(Capability)
"""Capabilities of Ray."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Marks a field of the spec whose value, unless it is the default, needs a capability."""

    capability: Capability
    feature: str
    """The missing feature, for the message."""
    hint: str = ""
    values: tuple[str, ...] = ()
    """The values that need it; empty: each but the default."""
    when: Callable[[Any], bool] = bool
    """Whether a value needs it, where that depends on more."""

    def is_needed_by(self, value: object) -> bool:
        """Return whether a value that is not the default needs the capability."""
        return value in self.values if self.values else self.when(value)
