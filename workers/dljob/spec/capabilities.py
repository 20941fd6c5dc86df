"""Capabilities of backends, and the mark of the fields of the spec that need them.

Ray has all capabilities. Another backend declares its own, and a job that needs more is refused before any part of it
starts, with all such fields at once. A field at its default needs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, cast

from dljob.errors import Problem, SpecError

if TYPE_CHECKING:  # the models take long to load, and a backend names its capabilities without them
    from pydantic.fields import FieldInfo

    from dljob.spec.model import DLJobManifest
    from dljob.spec.text.tree import Loc


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


def lacking(manifest: DLJobManifest, backend: str, has: Collection[Capability]) -> tuple[Problem, ...]:
    """Return a problem for each field that needs a capability the backend lacks, in the order of the model."""
    from dljob.spec.text.words import path_of  # noqa: PLC0415 - it loads the models, which a backend does without

    # The backend may come from DISTRIBUTED_BACKEND or a default, and is then absent from the spec.
    spec = manifest.spec.model_copy(update={"backend": backend})
    return tuple(
        Problem(path_of(loc), f"the backend {backend} lacks {need.capability}: {need.feature}", hint=need.hint)
        for loc, need in _needs_of(spec, ("spec",))
        if need.capability not in has
    )


def admit(manifest: DLJobManifest, backend: str, has: Collection[Capability], *, hint: str = "") -> None:
    """Refuse a job that needs capabilities its backend lacks.

    Raises:
        SpecError: with every such field.
    """
    problems = lacking(manifest, backend, has)
    if problems:
        raise SpecError(problems, hint=hint)


def _needs_of(value: object, loc: Loc) -> Iterator[tuple[Loc, Needs]]:
    """Yield what a value of the spec and the models in it need, with the place of each."""
    fields: dict[str, FieldInfo] = getattr(type(value), "model_fields", {})
    for name, field in fields.items():
        field_value = getattr(value, name)
        # Without defaults: a field at its default needs nothing.
        if field_value == field.get_default(call_default_factory=True):
            continue
        field_loc = (*loc, field.alias or name)
        for need in field.metadata:
            if isinstance(need, Needs) and need.is_needed_by(field_value):
                yield field_loc, need
        yield from _needs_of(field_value, field_loc)
    if isinstance(value, tuple):
        for index, item in enumerate(cast("tuple[object, ...]", value)):
            yield from _needs_of(item, (*loc, index))
