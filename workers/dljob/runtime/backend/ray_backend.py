"""Ray as a backend: pinned placement groups, detached named actors, the GCS's key-value store.

Nothing here blocks the caller's event loop: object references are awaited, and Ray's synchronous calls (tables, names,
key-value store) run in a few threads. It relies on these facts about Ray 2.60:

- A pinned placement group that cannot be created stays PENDING for ever: we read the table, with our own deadline.
- A node whose raylet has died counts as alive for seconds: a raylet that refuses connections counts as dead here.
- A call to a worker whose raylet has died breaks as "unavailable", not as "died".
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any, TypeVar, cast

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorPlacementGroupRemoved,
    ActorUnschedulableError,
    GetTimeoutError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    RuntimeEnvSetupError,
)
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from dljob.errors import UsageError
from dljob.master.state.views import AskedGroup, NodeView
from dljob.plan.model import GRAIN, Resources, Unit
from dljob.runtime.backend import ray_drivers
from dljob.runtime.backend.interface import ActorCallError, ActorLostError, ActorRef, ActorSpec, ReservationRefusedError
from dljob.runtime.backend.ray_keys import NAMESPACE, RayKeyValue
from dljob.runtime.backend.ray_processes import embedded_folder
from dljob.runtime.backend.ray_tables import RayTables
from dljob.runtime.process.daemon_threads import DaemonExecutor
from dljob.runtime.process.making import Making
from dljob.runtime.process.messages import OutcomeError
from dljob.spec.capabilities import ALL
from dljob.telemetry import memory_kills
from dljob.telemetry.evidence import UNEXPLAINED_END

NODE_ID = "ray.io/node-id"
NODE_GROUP = "ray.io/node-group"
HEAD_GROUP = "headgroup"
"""The value of Ray's label on a head that KubeRay created. Source: KubeRay 1.6.2, utils.RayNodeHeadGroupLabelValue."""
TOLD_BY_RAYLET = ("its worker process has died", "killed by `ray.kill`")
"""Words in Ray's error if the actor's raylet lives and reported its death, or if the actor was killed on purpose."""
GONE_ERRORS = (OutOfMemoryError, ActorPlacementGroupRemoved, ActorUnschedulableError, RuntimeEnvSetupError)
"""Errors, in addition to RayActorError, of an actor that Ray's memory monitor killed or that will never exist."""
PROBE_S = 0.2
"""Seconds for a raylet to accept a connection; one that takes longer is busy or frozen, not dead."""
LOOK_S = 0.25
"""Seconds between reads of a pending placement group's state."""
NO_ROOM_S = 3.0
"""Seconds to wait for a pinned group. It is created within milliseconds, or only once others leave; a longer wait would
delay all requests behind it."""

T = TypeVar("T")


def amounts(resources: Resources) -> dict[str, float]:
    """Convert resources to Ray's form: name -> float."""
    return {name: amount / GRAIN for name, amount in resources}


def actor_options(resources: Resources) -> dict[str, Any]:
    """Convert resources to the options of an actor; CPU, GPU and memory have options of their own."""
    asked_amounts = amounts(resources)
    # 0 and not Ray's default, by which an actor takes a CPU while it is placed.
    options: dict[str, Any] = {"num_cpus": asked_amounts.pop("CPU", 0)}
    if "GPU" in asked_amounts:
        options["num_gpus"] = asked_amounts.pop("GPU")
    if "memory" in asked_amounts:
        options["memory"] = asked_amounts.pop("memory")
    if asked_amounts:
        options["resources"] = asked_amounts
    return options


class RayBackend:
    """The backend of a process that is connected to Ray."""

    name = "ray"
    capabilities = ALL

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        if unknown := sorted(set(options or {}) - {"journal"}):
            raise UsageError(f"backend ray has no option {unknown[0]!r}", hint="it has: journal (file, kv)")
        self._pool = DaemonExecutor(4, "dljob-ray")
        # Of their own: a takeover looks up all hosts at once, and the journal may not wait for 10,000 such calls.
        self._actor_pool = DaemonExecutor(4, "dljob-ray-actors")
        self._tables = RayTables()
        self._groups: dict[str, PlacementGroup] = {}
        self._listed, self._listing = False, asyncio.Lock()
        self._unsure: set[str] = set()
        """Groups whose creation failed: a GCS that did not answer may have made them."""
        self._classes: dict[str, Any] = {}
        self._exporting, self._exported = threading.Lock(), set[str]()
        self._suspects: set[str] | None = None
        self._making, self._reserving = Making(self._actor_pool), Making(self._actor_pool)
        self.kv = RayKeyValue(self._thread)

    async def _thread(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return await _in_thread(self._pool, function, *args, **kwargs)

    # -- nodes

    def own_node(self) -> str:
        """Return the node of this process."""
        return ray.get_runtime_context().get_node_id()

    async def nodes(self) -> tuple[NodeView, ...]:
        """Return the live nodes. One whose raylet refuses connections is dead, whatever the GCS still says."""
        return await self._thread(self._nodes)

    def _nodes(self) -> tuple[NodeView, ...]:
        rows = self._tables.live_nodes()
        ids = {row["NodeID"] for row in rows}
        # Only suspects are probed, to spare connections: at first all, since the predecessor of this master may have
        # died with its node.
        suspects = ids if self._suspects is None else self._suspects & ids
        dead = {row["NodeID"] for row in rows if row["NodeID"] in suspects and not _raylet_listens(row)}
        self._suspects = dead
        return self._tables.views([row for row in rows if row["NodeID"] not in dead])

    # -- reservations

    async def reserve(self, unit: Unit, node: str, name: str, deadline_s: float) -> None:
        """Hold a unit by a detached placement group pinned to the node."""
        # A group of this name may exist: a master that died asked for it.
        group = await self._existing(name)
        if group is None:
            group = await self._reserving.make(name, self._create_group, unit, node, name)
        problem = await self._wait_group(group, deadline_s)
        if problem:
            # A pending group would otherwise be created later, when the job does not want it any more.
            await self.release(name)
            raise ReservationRefusedError(
                f"unit {unit.name} could not be reserved on {self._tables.name_of(node)}: {problem}"
            )

    async def _existing(self, name: str) -> PlacementGroup | None:
        """Return the group of a name, also one of an earlier master; None if there is none.

        Ray's table is read once for all names: it has a row for each of them, so a read for each would be quadratic.
        """
        async with self._listing:
            if name not in self._groups and (not self._listed or name in self._unsure):
                await self._list_groups()
        return self._groups.get(name)

    async def _list_groups(self) -> list[str]:
        """Keep the handles of all groups that are not removed; return their names."""
        unsure = frozenset(self._unsure)
        rows = await self._thread(self._tables.groups)
        for row in rows:
            self._groups.setdefault(row["name"], self._tables.group_of(row))
        self._listed = True
        self._unsure -= unsure
        return sorted(row["name"] for row in rows)

    def _create_group(self, unit: Unit, node: str, name: str) -> PlacementGroup:
        try:
            group = placement_group(
                [amounts(bundle.resources) for bundle in unit.bundles],
                # One unit is on one node, and the node is chosen by PrimeMaster: both are fixed here.
                strategy="STRICT_PACK",
                name=name,
                lifetime="detached",
                bundle_label_selector=[{NODE_ID: node}] * len(unit.bundles),
            )
        except Exception:
            self._unsure.add(name)
            raise
        self._groups[name] = group
        return group

    async def _wait_group(self, group: PlacementGroup, deadline_s: float) -> str:
        """Wait until a group is created, at most NO_ROOM_S; give up early where it cannot be. Return "" or why not."""
        loop = asyncio.get_running_loop()
        end = loop.time() + min(deadline_s, NO_ROOM_S)
        # An unread error of the future would be logged by asyncio.
        ready = asyncio.wrap_future(group.ready().future())
        ready.add_done_callback(lambda done: done.cancelled() or done.exception())
        while True:
            with contextlib.suppress(TimeoutError, RayError):
                await asyncio.wait_for(asyncio.shield(ready), max(0.0, min(LOOK_S, end - loop.time())))
            # By the table, not by `ready`: that never tells why a group is pending.
            row = await self._thread(self._tables.group_by_id, group)
            if row["state"] == "CREATED":
                return ""
            problem = _why_not(row)
            # RESCHEDULING: the group lost its node, and is pinned to it.
            if loop.time() >= end or row["state"] in {"REMOVED", "RESCHEDULING"} or "INFEASIBLE" in problem:
                ready.cancel()
                return problem

    async def release(self, name: str) -> None:
        """Remove the placement group; Ray ends everything in it."""
        # A creation cannot be cancelled: removing before it ends would miss the group.
        await self._reserving.settled([name])
        group = await self._existing(name)
        if group is None:
            return
        await self._thread(remove_placement_group, group)
        # Only now: a GCS that is silent for a minute makes Ray raise, and the caller asks again.
        self._groups.pop(name, None)

    async def reservations(self, prefix: str) -> tuple[str, ...]:
        """Return the names of the groups that are not removed."""
        await self._reserving.settled(self._reserving.names(prefix))
        return tuple(name for name in await self._list_groups() if name.startswith(prefix))

    # -- actors

    async def spawn(self, spec: ActorSpec) -> ActorRef:
        """Create a detached named actor; Ray restarts it only if it is immortal."""
        options: dict[str, Any] = {
            "name": spec.name,
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "max_restarts": -1 if spec.immortal else 0,
            # Ray must not run a call twice by itself: callers decide that, by the method's idempotence.
            "max_task_retries": 0,
            **actor_options(spec.resources),
        }
        python = {"py_executable": spec.python} if spec.python else {}
        if spec.env or python:
            options["runtime_env"] = {"env_vars": dict(spec.env), **python}
        if spec.max_concurrency:
            options["max_concurrency"] = spec.max_concurrency
        if spec.reservation is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                await self._group(spec.reservation), placement_group_bundle_index=spec.bundle
            )
        elif spec.node is not None:
            options["label_selector"] = {NODE_ID: spec.node}
        else:
            anywhere = {NODE_ID: "!none"}
            if spec.avoid is not None:
                anywhere = options["label_selector"] = {NODE_ID: f"!{spec.avoid}", NODE_GROUP: f"!{HEAD_GROUP}"}
            if spec.prefer is not None:
                # Not by soft node affinity, which the GCS ignores for actors without resources: they land anywhere.
                options["label_selector"] = {NODE_ID: spec.prefer}
                options["fallback_strategy"] = [{"label_selector": anywhere}]
        return ActorRef(spec.name, await self._making.make(spec.name, self._make, spec, options))

    async def _group(self, name: str) -> PlacementGroup:
        group = await self._existing(name)
        if group is None:
            raise ActorLostError(f"the reservation {name} is gone")
        return group

    def _make(self, spec: ActorSpec, options: dict[str, Any]) -> Any:
        # Ray disassembles a class before it exports it, 0.1 s of CPU in each thread that creates a first actor of it.
        if spec.cls not in self._exported:
            with self._exporting:
                if spec.cls not in self._exported:
                    actor_class = self._remote(spec, options)
                    self._exported.add(spec.cls)
                    return actor_class
        return self._remote(spec, options)

    def _remote(self, spec: ActorSpec, options: dict[str, Any]) -> Any:
        cls = self._actor_class(spec.cls)
        try:
            return cls.options(**options).remote(*spec.args)
        except ValueError as error:
            # Ray has no class of its own for this error: only its words tell it apart.
            if "already taken" not in str(error) and "already exists" not in str(error):
                raise
            raise UsageError(f"an actor named {spec.name} exists already") from error

    def _actor_class(self, path: str) -> Any:
        if path not in self._classes:
            module, _, name = path.rpartition(".")
            cls = getattr(importlib.import_module(module), name)
            # Only an actor with concurrency groups has its `__init__` in the main thread, see `worker.host`.
            groups = getattr(cls, "concurrency_groups", None)
            options: dict[str, Any] = {"concurrency_groups": dict(groups)} if groups else {"num_cpus": 0}
            self._classes[path] = cast("Any", ray.remote)(**options)(cls)
        return self._classes[path]

    async def lookup(self, name: str) -> ActorRef | None:
        """Return the actor of that name in dljob's namespace."""
        await self._making.settled([name])
        try:
            return ActorRef(name, await _in_thread(self._actor_pool, ray.get_actor, name, NAMESPACE))
        except (ValueError, RayActorError):
            return None
        except GetTimeoutError as error:  # the GCS was silent for a minute: it may be back, and the actor with it
            raise ActorLostError(_first_lines(error), certain=False) from None

    async def call(self, ref: ActorRef, method: str, *args: Any) -> Any:
        """Call a method and await its answer."""
        try:
            return await getattr(ref.native, method).remote(*args)
        # The order matters: a RayTaskError is a RayError too, and the method raised; a RayActorError needs a look at
        # the node.
        except RayTaskError as error:
            cause = error.cause or error
            raise ActorCallError(
                f"{ref.name}.{method} raised {type(cause).__name__}: {cause}",
                error_type=type(cause).__name__,
                remote_traceback=str(error),
                outcome=cause.outcome if isinstance(cause, OutcomeError) else None,
            ) from None
        except RayActorError as error:
            raise await self._actor_lost_error(ref, error) from None
        except RayError as error:
            raise ActorLostError(_first_lines(error), certain=isinstance(error, GONE_ERRORS)) from None

    async def _actor_lost_error(self, ref: ActorRef, error: RayActorError) -> ActorLostError:
        """Return an ActorLostError that says whether the actor's node is gone, too."""
        # A raylet that reports a death is alive, which spares a look at the node.
        if isinstance(error, ActorDiedError) and any(phrase in str(error) for phrase in TOLD_BY_RAYLET):
            return ActorLostError(_first_lines(error))
        node = await self._thread(self._tables.node_of, ref.native)
        is_node_gone = bool(node) and not await self._thread(self._is_node_alive, node)
        return ActorLostError(
            _first_lines(error), node_lost=is_node_gone, certain=is_node_gone or isinstance(error, ActorDiedError)
        )

    def _is_node_alive(self, node: str) -> bool:
        row = next((row for row in self._tables.live_nodes() if row["NodeID"] == node), None)
        if row is None:
            return False
        if _raylet_listens(row):
            return True
        # The GCS does not know yet that the node is dead: the next look at the nodes probes it, too.
        self._suspects = {*(self._suspects or ()), node}
        return False

    async def kill(self, ref: ActorRef) -> None:
        """End the process. It is not restarted, even if the actor is immortal."""
        with contextlib.suppress(RayError, ValueError):
            await _in_thread(self._actor_pool, ray.kill, ref.native, no_restart=True)

    async def actors(self, prefix: str) -> tuple[str, ...]:
        """Return the names with this prefix in dljob's namespace; Ray frees the name of a dead actor."""
        await self._making.settled(self._making.names(prefix))
        rows: list[Any] = await self._thread(ray.util.list_named_actors, all_namespaces=True)
        names = (row["name"] for row in rows if row["namespace"] == NAMESPACE)
        return tuple(sorted(name for name in names if name.startswith(prefix)))

    async def asked_groups(self, owner: str) -> tuple[AskedGroup, ...]:
        """Return the pending placement groups, and pending actors outside of one, of ranks that are Ray drivers.

        On an embedded Ray, which is this program's alone, also tasks and actors of any rank that find no room.
        """
        groups = await self._thread(ray_drivers.pending_groups, owner)
        return groups + (await self._thread(ray_drivers.pending_tasks, groups) if embedded_folder() else ())

    async def clear_drivers(self, owner: str) -> None:
        """End the actors, and remove the groups, of ranks that are Ray drivers."""
        await self._thread(ray_drivers.clear, owner)


async def _in_thread(pool: Executor, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(pool, lambda: function(*args, **kwargs))


def _raylet_listens(row: Mapping[str, Any]) -> bool:
    """Whether a raylet accepts connections. Without any answer it counts as alive: its node is frozen, not dead."""
    try:
        with socket.create_connection((row["NodeManagerAddress"], row["NodeManagerPort"]), timeout=PROBE_S):
            return True
    except ConnectionRefusedError:
        return False
    except OSError:
        return True


def _why_not(row: Mapping[str, Any]) -> str:
    state = row["stats"]["scheduling_state"]
    state_texts = {
        "NO_RESOURCES": "the node has no room for it now (NO_RESOURCES)",
        "INFEASIBLE": "the node is gone or can never hold it (INFEASIBLE)",
    }
    return state_texts.get(state, f"its placement group is {row['state']}, {state}")


def _first_lines(error: BaseException) -> str:
    if memory_kills.is_memory_kill(str(error)):
        return memory_kills.summarize(str(error))
    # Of SIGKILL, a crash and an exit alike Ray says this, in 300 characters.
    if ray_drivers.CLOSED in str(error):
        return UNEXPLAINED_END
    # Ray's errors of a dead actor begin with its class, id and address, a line each, and end with guesses.
    facts = str(error).partition(ray_drivers.GUESSES)[0].splitlines()
    lines = [line.strip() for line in facts if line.strip() and not line.startswith("\t")]
    if len(lines) > 1 and lines[0] == ActorDiedError.BASE_ERROR_MSG:
        del lines[0]
    return " ".join(lines)[:1000] or type(error).__name__
