"""The backend protocol: what PrimeMaster needs of a distributed system, and how a job's backend is chosen.

A backend keeps all state in the cluster: two of them, in two masters, see the same actors and reservations.
`tests/kits/backend_contract.py` is the suite that every backend must pass.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, cast

from dljob.errors import DLJobError, UnreachableError, UsageError
from dljob.master.state.views import AskedGroup, NodeView, Outcome
from dljob.plan.model import Resources, Unit
from dljob.runtime.process.extensions import check_version
from dljob.spec.capabilities import Capability

ENTRY_POINTS = "dljob.backends"
ENVIRONMENT = "DISTRIBUTED_BACKEND"
DEFAULT = "ray"
ALIASES = {"yuanrong": "yr"}
EXTRAS = {"yr": "yr"}
"""Backend -> the extra of dljob that installs its packages, where it is not `runtime`."""
UNSUPPORTED_HINT = "run it on Ray (no spec.backend, no DISTRIBUTED_BACKEND); docs/howto/yuanrong.md has what yr carries"

ON_HEAD: Resources = (("node:__internal_head__", 1),)
"""A ten-thousandth of the resource that only Ray's head has.

It places an actor on whichever node is the head when Ray starts it, also after the head was replaced; a node id would
pin it to a dead node.
"""
AGAIN_S = 0.25
"""Seconds before a lookup that got no answer is repeated."""


class ActorLostError(DLJobError):
    """An actor's process is gone (`certain`) or cannot be reached; `node_lost`: its whole node is gone."""

    def __init__(self, message: str, *, node_lost: bool = False, certain: bool = True) -> None:
        super().__init__(message)
        self.node_lost = node_lost
        self.certain = certain


class ActorCallError(DLJobError):
    """A method of an actor raised.

    `remote_traceback` is its traceback as text; `outcome` what an OutcomeError says of user code, else None.
    """

    def __init__(self, message: str, *, error_type: str, remote_traceback: str, outcome: Outcome | None = None) -> None:
        super().__init__(message)
        self.error_type = error_type
        self.remote_traceback = remote_traceback
        self.outcome = outcome


class ReservationRefusedError(DLJobError):
    """A reservation was refused; the message says why, in words for users."""


@dataclass(frozen=True, slots=True)
class ActorSpec:
    """An actor to create: detached, and never restarted by the backend unless `immortal`."""

    name: str
    cls: str
    """Dotted path, `pkg.mod.Class`; its class attribute `concurrency_groups` (name -> threads) is honoured."""
    args: tuple[Any, ...] = ()
    resources: Resources = ()
    reservation: str | None = None
    """The name of the reservation that it lives in; `bundle` counts from 0."""
    bundle: int = 0
    node: str | None = None
    """The node that an actor outside of a reservation is pinned to."""
    prefer: str | None = None
    """The node that it is placed on if that lives; an immortal actor restarts elsewhere when the node is gone."""
    avoid: str | None = None
    """The head node, on which it is never placed, nor on a later head; it waits until there is another node. With
    `prefer` it bounds the choice of another node."""
    env: tuple[tuple[str, str], ...] = ()
    """The environment of the process from its first instruction; `${NAME}` expands to the node's own variable."""
    python: str = ""
    """The command that starts the process's Python, as a shell reads it; empty: the backend's own Python."""
    max_concurrency: int | None = None
    immortal: bool = False


@dataclass(frozen=True, slots=True)
class ActorRef:
    """The address of an actor; `native` is the backend's own handle and opaque to everybody else."""

    name: str
    native: Any = field(compare=False, repr=False)


class KeyValue(Protocol):
    """The cluster's key-value store. `put_if_absent` is atomic over all clients."""

    async def get(self, key: str) -> bytes | None:
        """Return the value of a key; None if it has none."""
        ...

    async def put(self, key: str, value: bytes) -> None:
        """Write a value, replacing an older one."""
        ...

    async def put_if_absent(self, key: str, value: bytes) -> bool:
        """Write a value if there is none; return whether it was written."""
        ...

    async def delete(self, prefix: str) -> int:
        """Delete all keys with this prefix; return their number."""
        ...

    async def keys(self, prefix: str) -> tuple[str, ...]:
        """Return all keys with this prefix, sorted."""
        ...


class Backend(Protocol):
    """A distributed system that can hold nodes, reservations and actors."""

    @property
    def name(self) -> str:
        """The name by which users select it."""
        ...

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Its capabilities; a job that needs more is refused before it starts."""
        ...

    @property
    def kv(self) -> KeyValue:
        """Its key-value store."""
        ...

    def own_node(self) -> str:
        """Return the node of this process; empty if it is on none."""
        ...

    async def nodes(self) -> tuple[NodeView, ...]:
        """Return the live nodes, sorted by id; `free` is what no reservation and no actor holds."""
        ...

    async def reserve(self, unit: Unit, node: str, name: str, deadline_s: float) -> None:
        """Hold a unit's bundles on one node until `release`. Repeating a name returns the same reservation.

        Raises:
            ReservationRefusedError: There was no room on the node within `deadline_s`.
        """
        ...

    async def release(self, name: str) -> None:
        """Release a reservation; one that does not exist is fine."""
        ...

    async def reservations(self, prefix: str) -> tuple[str, ...]:
        """Return the names of reservations with this prefix, held or pending."""
        ...

    async def spawn(self, spec: ActorSpec) -> ActorRef:
        """Create an actor and return without waiting for it. Raises UsageError when the name is taken."""
        ...

    async def lookup(self, name: str) -> ActorRef | None:
        """Return the actor of that name; None if there is none (any more).

        Raises:
            ActorLostError: The backend cannot tell at present; `certain` is False.
        """
        ...

    def call(self, ref: ActorRef, method: str, *args: Any) -> Awaitable[Any]:
        """Call a method. Raises ActorLostError when the process goes, ActorCallError when the method raised."""
        ...

    async def kill(self, ref: ActorRef) -> None:
        """End an actor's process at once; one that is gone is fine."""
        ...

    async def actors(self, prefix: str) -> tuple[str, ...]:
        """Return the names of actors with this prefix that are not dead."""
        ...

    async def asked_groups(self, owner: str) -> tuple[AskedGroup, ...]:
        """Return the pending placement groups, by id, that drivers of ranks with this owner prefix requested."""
        ...

    async def clear_drivers(self, owner: str) -> None:
        """End the actors, and remove the groups, that drivers of ranks with this owner prefix created."""
        ...


async def find_actor(backend: Backend, name: str) -> ActorRef | None:
    """Return the actor of that name, None if there is none; ask again while the backend cannot tell."""
    while True:
        try:
            return await backend.lookup(name)
        except ActorLostError as error:
            # Not there for certain, as for a lookup that finds nothing; every other error leaves it open.
            if error.certain:
                return None
        await asyncio.sleep(AGAIN_S)


Factory = Callable[[Mapping[str, Any]], Backend]
"""The type of an entry point of `dljob.backends`: options -> backend, in a process that is connected to it."""


def chosen(flag: str | None, spec: str | None, environ: Mapping[str, str] | None = None) -> str:
    """Return the backend's name: the flag, else the spec, else `DISTRIBUTED_BACKEND`, else ray, in any case."""
    value = flag or spec or (os.environ if environ is None else environ).get(ENVIRONMENT, "").strip() or DEFAULT
    name = value.strip().lower()
    return ALIASES.get(name, name)


def installed() -> dict[str, EntryPoint]:
    """Return the installed backends by name."""
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def entry_point_of(name: str) -> EntryPoint:
    """Return a backend's entry point without loading it. An unknown name is refused, never replaced by a default."""
    points = installed()
    point = points.get(name)
    if point is None:
        raise UsageError(
            f"the backend {name!r} is not installed; installed: {', '.join(sorted(points)) or 'none'}",
            hint=f"set spec.backend.name, or {ENVIRONMENT}, to one of these{_or_install(name)}",
        )
    check_version(point.dist, f"the backend {name!r}")
    return point


def _or_install(name: str) -> str:
    return f"; or pip install 'dljob[{EXTRAS[name]}]'" if name in EXTRAS else ""


def factory(name: str) -> Factory:
    """Load the factory of a backend. Raises UsageError or UnreachableError if that is impossible."""
    point = entry_point_of(name)
    try:
        return cast("Factory", point.load())
    except ImportError as error:
        extra = EXTRAS.get(name, "runtime")
        raise UnreachableError(
            f"the backend {name!r} cannot be loaded: {error}", hint=f"pip install 'dljob[{extra}]'"
        ) from error
