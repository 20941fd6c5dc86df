"""Capabilities of backends, and the fields of the spec that need them.

Ray has all capabilities. Another backend declares its own, and a job that needs more is refused before any part of it
starts, with all such fields at once. A field at its default needs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, cast

from dljob.errors import Problem, SpecError

if TYPE_CHECKING:  # the models take long to load, and a backend names its capabilities without them
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
class Need:
    """A field whose value needs a capability. In `path`, `*` stands for any item."""

    path: tuple[str, ...]
    capability: Capability
    what: str
    """The missing feature, for the message."""
    hint: str = ""
    when: Callable[[Any], bool] = bool


def _is(value: object) -> Callable[[Any], bool]:
    return lambda given: given == value


def _many(groups: Sequence[Mapping[str, int]]) -> bool:
    # The dump leaves defaults out, and a group has one machine by default.
    return sum(group.get("replicas", 1) for group in groups) > 1


# A path may stand here more than once: values of one field can need different capabilities.
NEEDS: tuple[Need, ...] = (
    Need(("backend",), Capability.JOBS, "a whole job, with its PrimeMaster and its hosts"),
    Need(("roles", "*", "type"), Capability.ELASTIC, "ranks that form one torch world", when=_is("Elastic")),
    Need(("roles", "*", "tf"), Capability.ELASTIC, "processes that form one TensorFlow cluster"),
    Need(("roles", "*", "entrypoint", "class"), Capability.CLASSES, "ranks that are actors", "use module, or command"),
    Need(("roles", "*", "accelerator"), Capability.DEVICES, "ranks with devices of their own"),
    Need(("roles", "*", "resources", "custom"), Capability.DEVICES, "resources other than CPU and memory"),
    Need(("roles", "*", "annotations"), Capability.PLACEMENT, "placement by annotations"),
    Need(("roles", "*", "reserve"), Capability.DRIVERS, "a framework's own driver on Ray", when=_is("Quota")),
    Need(("roles", "*", "restartPolicy", "level"), Capability.IN_PROCESS, "restarts in process", when=_is("InProcess")),
    Need(("roles", "*", "restartPolicy", "outOfMemory"), Capability.NODE_AGENTS, "recognizing that memory ran out"),
    Need(
        ("roles", "*", "weights"),
        Capability.WEIGHTS,
        "versions of weights that dljob loads into ranks",
        "receive them in the rank, with a WeightChannel",
    ),
    Need(("collocations",), Capability.PLACEMENT, "roles that share devices or hosts, or never do"),
    Need(("nodeGroups",), Capability.SEVERAL_NODES, "more than one machine", "leave nodeGroups out", when=_many),
    Need(("nodeGroups", "*", "accelerator"), Capability.DEVICES, "machines with devices"),
    Need(("checkpoint",), Capability.CHECKPOINTS, "savers of checkpoints on each node"),
    Need(("collectives",), Capability.COLLECTIVES, "collectives across roles"),
    Need(("faultTolerance", "spares"), Capability.SPARES, "processes and machines that are kept ready"),
    Need(("faultTolerance", "node"), Capability.NODE_AGENTS, "detection of frozen nodes"),
    Need(("faultTolerance", "hang"), Capability.NODE_AGENTS, "detection of hung ranks"),
    Need(("faultTolerance", "elastic"), Capability.ELASTIC, "roles that continue with fewer ranks"),
    Need(
        ("faultTolerance", "rules", "*", "action"),
        Capability.NODE_AGENTS,
        "replacement of a bad node",
        when=_is("ReplaceNode"),
    ),
    Need(
        ("faultTolerance", "rules", "*", "escalateTo"),
        Capability.NODE_AGENTS,
        "replacement of a bad node",
        when=_is("ReplaceNode"),
    ),
    Need(
        ("faultTolerance", "rules", "*", "action"),
        Capability.IN_PROCESS,
        "restarts in process",
        when=_is("RestartInProcess"),
    ),
    Need(("master", "maxRestarts"), Capability.MASTER_RESTARTS, "restarts of PrimeMaster"),
    Need(("master", "standby"), Capability.MASTER_RESTARTS, "a standby of PrimeMaster", when=_is("Always")),
)


def lacking(manifest: DLJobManifest, backend: str, has: Collection[Capability]) -> tuple[Problem, ...]:
    """Return a problem for each field that needs a capability the backend lacks, in the order of `NEEDS`."""
    from dljob.spec.text.words import path_of  # noqa: PLC0415 - it loads the models, which a backend does without

    # Without defaults: a field at its default needs nothing.
    spec = manifest.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    # The backend may come from DISTRIBUTED_BACKEND or a default, and is then absent from the spec.
    spec["backend"] = {"name": backend}
    found = [
        Problem(path_of(("spec", *loc)), _describe(backend, need), hint=need.hint)
        for need in NEEDS
        # A missing capability may concern many places: a role each, or a rule each.
        if need.capability not in has
        for loc, value in _at(spec, need.path)
        if need.when(value)
    ]
    return tuple(found)


def admit(manifest: DLJobManifest, backend: str, has: Collection[Capability], *, hint: str = "") -> None:
    """Refuse a job that needs capabilities its backend lacks.

    Raises:
        SpecError: with every such field.
    """
    problems = lacking(manifest, backend, has)
    if problems:
        raise SpecError(problems, hint=hint)


def _describe(backend: str, need: Need) -> str:
    return f"the backend {backend} lacks {need.capability}: {need.what}"


def _at(value: object, path: Sequence[str]) -> Iterator[tuple[Loc, object]]:
    """Yield (location, value) of each field that a path with `*` matches."""
    if not path:
        yield (), value
        return
    step, rest = path[0], path[1:]
    if step == "*":
        parts: list[tuple[str | int, object]] = list(enumerate(cast("Sequence[object]", value)))
    else:
        known = cast("Mapping[str, object]", value)
        # A step that is absent matches nothing.
        parts = [(step, known[step])] if step in known else []
    for key, part in parts:
        for loc, found in _at(part, rest):
            yield (key, *loc), found
