"""What PrimeMaster needs of a distributed backend, as one small asynchronous protocol, and how a backend is chosen.

A backend holds no state that is not in the cluster: two of them, in two masters, see the same actors and reservations.
`tests/kits/backend_contract.py` is the suite that any backend must pass.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, cast

from dljob.errors import DLJobError, UnreachableError, UsageError
from dljob.master.state.views import AskedGroup, NodeView
from dljob.plan.model import Resources, Unit
from dljob.spec.capabilities import Capability

ENTRY_POINTS = "dljob.backends"
ENVIRONMENT = "DISTRIBUTED_BACKEND"
DEFAULT = "ray"
ALIASES = {"yuanrong": "yr"}
EXTRAS = {"yr": "yr"}
"""What of dljob's extras brings a backend's packages, where that is not `runtime`."""

AGAIN_S = 0.25
"""How soon a question is asked again that nobody could answer."""


class ActorLostError(DLJobError):
    """An actor's process is gone, or cannot be reached: `certain` tells which; `node_lost` when its whole node is."""

    def __init__(self, message: str, *, node_lost: bool = False, certain: bool = True) -> None:
        super().__init__(message)
        self.node_lost = node_lost
        self.certain = certain


class ActorCallError(DLJobError):
    """A method of an actor raised; `remote_traceback` is its traceback as text."""

    def __init__(self, message: str, *, error_type: str, remote_traceback: str) -> None:
        super().__init__(message)
        self.error_type = error_type
        self.remote_traceback = remote_traceback


class ReservationRefusedError(DLJobError):
    """A reservation that could not be had; the message says why, in words for users."""


@dataclass(frozen=True, slots=True)
class ActorSpec:
    """An actor to make: detached, never restarted by the backend unless `immortal`."""

    name: str
    cls: str
    """Dotted path, `pkg.mod.Class`; its class attribute `concurrency_groups` (name -> threads) is honoured."""
    args: tuple[Any, ...] = ()
    resources: Resources = ()
    reservation: str | None = None
    """The reservation it lives in; `bundle` counts from 0."""
    bundle: int = 0
    node: str | None = None
    """Pins an actor that is in no reservation."""
    prefer: str | None = None
    """A node to be put on if it lives; an immortal actor comes back elsewhere when that node is gone."""
    avoid: str | None = None
    """The head: never to be put there, nor on a head that comes after it; it waits until there is another node."""
    env: tuple[tuple[str, str], ...] = ()
    """Environment of the process from its first instruction; `${NAME}` is what the node has under that name."""
    max_concurrency: int | None = None
    immortal: bool = False


@dataclass(frozen=True, slots=True)
class ActorRef:
    """An actor's address; `native` is the backend's own handle and means nothing to anybody else."""

    name: str
    native: Any = field(compare=False, repr=False)


class KeyValue(Protocol):
    """The cluster's key-value store. `put_if_absent` is atomic over all clients."""

    async def get(self, key: str) -> bytes | None:
        """The value, None without one."""
        ...

    async def put(self, key: str, value: bytes) -> None:
        """Write a value, over an older one."""
        ...

    async def put_if_absent(self, key: str, value: bytes) -> bool:
        """Write a value if there is none; True when it was written."""
        ...

    async def delete(self, prefix: str) -> int:
        """Delete all keys that start so; how many there were."""
        ...

    async def keys(self, prefix: str) -> tuple[str, ...]:
        """All keys that start so, sorted."""
        ...


class Backend(Protocol):
    """A distributed system that can hold nodes, reservations and actors."""

    @property
    def name(self) -> str:
        """How users select it."""
        ...

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What it can do; a job that asks for more is refused before it begins."""
        ...

    @property
    def kv(self) -> KeyValue:
        """Its key-value store."""
        ...

    def here(self) -> str:
        """The node that this process is on; empty: on none."""
        ...

    async def nodes(self) -> tuple[NodeView, ...]:
        """The live nodes, sorted by id; `free` counts what no reservation and no actor holds."""
        ...

    async def reserve(self, unit: Unit, node: str, name: str, deadline_s: float) -> None:
        """Hold a unit's bundles on one node until `release`; the same name again is the same one. Or RefusedError."""
        ...

    async def release(self, name: str) -> None:
        """Give a reservation back; one that is not there is fine."""
        ...

    async def reservations(self, prefix: str) -> tuple[str, ...]:
        """Names of the reservations that start so, held or asked for."""
        ...

    async def spawn(self, spec: ActorSpec) -> ActorRef:
        """Make an actor and return without waiting for it. Raises UsageError when the name is taken."""
        ...

    async def lookup(self, name: str) -> ActorRef | None:
        """The actor of that name, None when there is none (any more). Raises ActorLostError when nobody can say now."""
        ...

    def call(self, ref: ActorRef, method: str, *args: Any) -> Awaitable[Any]:
        """Call a method; raises ActorLostError when the process goes, ActorCallError when the method raised."""
        ...

    async def kill(self, ref: ActorRef) -> None:
        """End an actor's process at once; one that is gone is fine."""
        ...

    async def actors(self, prefix: str) -> tuple[str, ...]:
        """Names of the actors that start so and are not dead."""
        ...

    async def asked_groups(self, owner: str) -> tuple[AskedGroup, ...]:
        """The groups of bundles that such processes asked for and have not got, by id."""
        ...

    async def clear_drivers(self, owner: str) -> None:
        """End what processes made that joined the system by themselves, as a rank whose name begins so."""
        ...


async def found(backend: Backend, name: str) -> ActorRef | None:
    """The actor of that name, None when there is none; asked for as long as nobody can say."""
    while True:
        try:
            return await backend.lookup(name)
        except ActorLostError as error:
            if error.certain:
                return None
        await asyncio.sleep(AGAIN_S)


Factory = Callable[[Mapping[str, Any]], Backend]
"""What an entry point of `dljob.backends` names: options -> backend, in a process that is connected."""


def chosen(flag: str | None, spec: str | None, environ: Mapping[str, str] | None = None) -> str:
    """The backend's name: the flag, else the spec, else `DISTRIBUTED_BACKEND`, else ray; case does not matter."""
    value = flag or spec or (os.environ if environ is None else environ).get(ENVIRONMENT, "").strip() or DEFAULT
    name = value.strip().lower()
    return ALIASES.get(name, name)


def installed() -> dict[str, EntryPoint]:
    """The backends that are installed, by name."""
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def known(name: str) -> EntryPoint:
    """Where a backend is; an unknown name is refused, never replaced by another. Loads nothing."""
    points = installed()
    point = points.get(name)
    if point is None:
        raise UsageError(
            f"the backend {name!r} is not installed; installed: {', '.join(sorted(points)) or 'none'}",
            hint=f"set spec.backend.name, or {ENVIRONMENT}, to one of these",
        )
    return point


def factory(name: str) -> Factory:
    """The factory of a backend, loaded. Raises UsageError or UnreachableError when it cannot be had."""
    point = known(name)
    try:
        return cast("Factory", point.load())
    except ImportError as error:
        extra = EXTRAS.get(name, "runtime")
        raise UnreachableError(
            f"the backend {name!r} cannot be loaded: {error}", hint=f"pip install 'dljob[{extra}]'"
        ) from error
