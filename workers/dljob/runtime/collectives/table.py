"""The collective backends and groups of a job, as each process reads them; registration of backends with Ray."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dljob.errors import CollectiveError
from dljob.plan.env import COLLECTIVES
from dljob.ray_private import known_collective_backend
from dljob.runtime.process.entrypoint import EntrypointError, resolve

if TYPE_CHECKING:
    from ray.util.collective.collective_group.base_collective_group import BaseGroup

ENTRY_POINTS = "dljob.collectives"
SPEC = "spec.collectives.backends"
_OURS = "dljob.runtime.collectives.torch_groups"
OURS = {name: f"{_OURS}.Isolated{name.capitalize()}" for name in ("GLOO", "NCCL", "HCCL")}
"""dljob's backends, registered with Ray as DLJ_<name>, so that none of Ray's own is replaced."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group of `spec.collectives.groups`."""

    name: str
    backend: str
    """The backend's name in capitals; never AUTO."""
    roles: tuple[str, ...]
    timeout_s: float
    recreate: bool
    """Whether members that survive the loss of another may form the group again (`onRestart`)."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A backend that dljob does not bring: its dotted path, and where it was declared."""

    path: str
    source: str


@dataclass(frozen=True, slots=True)
class Table:
    """All declared backends by their names in capitals, and all groups by name."""

    backends: Mapping[str, Declared]
    groups: Mapping[str, Group]

    def backend(self, name: str) -> tuple[str, type[BaseGroup]]:
        """Return a backend's name in Ray and its class, after registering it.

        Raises:
            CollectiveError: It does not exist or cannot be used; the message lists the others, or says why.
        """
        declared = self.backends.get(name)
        if declared is not None:
            return name, registered(name, declared)
        own_path = OURS.get(name.removeprefix("DLJ_"))
        if own_path is None:
            backend_names = ", ".join(sorted({*self.backends, *OURS}))
            raise CollectiveError(
                f"there is no collective backend {name}",
                hint=f"there are: {backend_names}; declare others in {SPEC}, "
                f"or install them as entry points of {ENTRY_POINTS}",
            )
        # Under a name of our own: Ray refuses a second class for a name, and its own must stay usable.
        full = f"DLJ_{name.removeprefix('DLJ_')}"
        return full, registered(full, Declared(own_path, "dljob"))

    def register(self) -> None:
        """Register the declared backends, each once.

        Raises:
            CollectiveError: One cannot be used. Entry points count only if a group names them.
        """
        named = {group.backend for group in self.groups.values()}
        for name, declared in self.backends.items():
            if declared.source == SPEC or name in named:
                self.backend(name)
        # A name in a group that is not declared is a backend of dljob's, or an error.
        for name in named - set(self.backends):
            self.backend(name)


def table(
    environ: Mapping[str, str] = os.environ,
    installed: Callable[[], Iterable[importlib.metadata.EntryPoint]] | None = None,
) -> Table:
    """Return the job's table from the environment of one of its processes; empty for a job without collectives."""
    text = environ.get(COLLECTIVES, "")
    if not text:
        return Table({}, {})
    spec_tables = json.loads(text)
    # Only for a job with collectives: reading the entry points looks at every installed distribution.
    points = installed() if installed else importlib.metadata.entry_points(group=ENTRY_POINTS)
    backends = {
        point.name.upper(): Declared(point.value.replace(":", "."), f"entry point {point.name}") for point in points
    }
    # The spec after the entry points: a job's own backends win over installed ones.
    backends |= {name: Declared(path, SPEC) for name, path in spec_tables["backends"].items()}
    groups = {
        name: Group(
            name,
            group_fields["backend"],
            tuple(group_fields["roles"]),
            float(group_fields["timeout_s"]),
            group_fields["recreate"],
        )
        for name, group_fields in spec_tables["groups"].items()
    }
    return Table(backends, groups)


def registered(name: str, declared: Declared) -> type[BaseGroup]:
    """Register a backend with Ray in this process, and return its class."""
    # Imported here: it imports Ray, which forked ranks without collectives do not need.
    from ray.util.collective import backend_registry

    cls = usable(name, declared)
    # Ray refuses a second registration of a name, even of the same class.
    known = known_collective_backend(name)
    if known is None:
        backend_registry.register_collective_backend(name, cls)
    elif known is not cls:
        raise CollectiveError(
            f"collective backend {name} is {declared.path} ({declared.source}), and Ray in this process has "
            f"{known.__module__}.{known.__qualname__} under that name",
            hint="give one of them another name",
        )
    return cls


def usable(name: str, declared: Declared) -> type[BaseGroup]:
    """Return the class of a declared backend.

    Raises:
        CollectiveError: It cannot be imported, is no subclass of BaseGroup, or lacks methods; the message says which.
    """
    from ray.util.collective.collective_group.base_collective_group import BaseGroup

    problem = f"collective backend {name} ({declared.path}, {declared.source}) cannot be used"
    try:
        cls = resolve(declared.path)
    except (ImportError, EntrypointError) as error:
        raise CollectiveError(
            f"{problem}: {error}", hint="it must be importable in the image and the code of the job"
        ) from error
    if not isinstance(cls, type) or not issubclass(cls, BaseGroup):
        raise CollectiveError(f"{problem}: it is no subclass of ray.util.collective's BaseGroup")
    missing = sorted(cls.__abstractmethods__)
    if missing:
        raise CollectiveError(
            f"{problem}: it lacks {', '.join(missing)}, which Ray's BaseGroup requires",
            hint="write them (the example in Ray's documentation lacks them too); one that it cannot offer may raise "
            "NotImplementedError",
        )
    return cls


def register_backends() -> None:
    """Register the job's backends with Ray in this process. Idempotent.

    For actors that user code creates: they inherit the environment that lists the backends. In ranks it is done before
    user code runs.

    Raises:
        CollectiveError: One cannot be used; the message says why.
    """
    table().register()


def register_for_rank(role: str) -> None:
    """Register the backends in a rank. Raises EntrypointError, which ends the job: a restart would fail again."""
    try:
        register_backends()
    except CollectiveError as error:
        # The kind decides the reason that users see: code that is missing, or a class of another shape.
        kind = "ImportError" if isinstance(error.__cause__, ImportError) else "TypeError"
        raise EntrypointError(kind, f"role {role}: {error}") from error
