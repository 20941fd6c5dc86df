"""openYuanrong as a backend by its SDK: instances are actors, resource groups reservations, the datasystem has keys.

There are two ways. With `localMode: true` it uses the SDK's local mode with `local.FunctionSystem`, all in this
process. Otherwise it joins a cluster at `YR_SERVER_ADDRESS`, with the key-value store at `DATASYSTEM_HOST`; that part
is written to the SDK's interface (0.9.10) and has never run on a cluster, so whole jobs are refused there. Facts about
the SDK that this module relies on:

- a group cannot be pinned to a node: on a cluster of several nodes a reservation is refused;
- `list_named_instances` cuts names at a `-`: ours have none;
- no call lists resource groups: their names are in the key-value store;
- methods of a handle hold the handle weakly: an ActorRef keeps its own.
"""

from __future__ import annotations

import asyncio
import importlib
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from dljob.errors import UsageError
from dljob.master.state.views import AskedGroup, NodeView
from dljob.plan.model import Unit
from dljob.runtime.backend.interface import (
    ActorCallError,
    ActorLostError,
    ActorRef,
    ActorSpec,
    KeyValue,
    ReservationRefusedError,
)
from dljob.runtime.backend.yr_local_mode import CLUSTER, LOCAL, NAME
from dljob.runtime.process.making import Making
from dljob.runtime.yr.cell import Cell, CellFailure
from dljob.runtime.yr.resources import bundle_of, resources_of
from dljob.spec.capabilities import Capability

NAMESPACE = "dljob"
STAND_INS = {"dljob.runtime.worker.fork_host.ForkHost": "dljob.runtime.yr.host.YrHost"}
"""Actors written for Ray -> the classes that replace them here."""
GROUPS = "dljob/groups/"
"""Prefix of a reservation's key; the key exists from the request until the release."""
MOST_CALLS = 1000
"""Highest concurrency that the SDK accepts."""
LOOK_UP_S = 5
"""Timeout of a lookup in seconds: the SDK waits that long for an unknown name."""

_ODD = re.compile(r"[^a-zA-Z0-9]")
_ESCAPE = re.compile(r"(?:_[0-9A-F]{2})+")


def instance_name(actor: str) -> str:
    """Encode an actor's name in letters and digits: every other byte as `_` and two hex digits."""
    return _ODD.sub(lambda odd: "".join(f"_{byte:02X}" for byte in odd[0].encode()), actor)


def actor_name(instance: str) -> str:
    """Decode a name of `instance_name`."""
    return _ESCAPE.sub(lambda match: bytes.fromhex(match[0].replace("_", "")).decode(), instance)


class YrBackend:
    """openYuanrong, in a process that is connected to a cluster or is the local mode itself."""

    name = NAME

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        given_options = dict(options or {})
        unknown = sorted(set(given_options) - {"localMode"})
        if unknown:
            raise UsageError(f"backend yr has no option {unknown[0]!r}", hint="it has: localMode (true, false)")
        from dljob.runtime.yr import session

        self._session = session.local() if given_options.get("localMode") else session.cluster()
        self._yr: Any = self._session.yr
        self.capabilities = LOCAL if self._session.local else CLUSTER
        self.kv: KeyValue = self._session.kv
        self._making = Making(ThreadPoolExecutor(4, thread_name_prefix="dljob-yr"))

    # -- nodes

    def own_node(self) -> str:
        """Return the node of this process; a driver outside the cluster is on none."""
        return self._session.own_node()

    async def nodes(self) -> tuple[NodeView, ...]:
        """Return the nodes whose status is normal."""
        rows = await asyncio.to_thread(self._session.resources)
        return tuple(sorted((_view(row) for row in rows if row["status"] == 0), key=lambda view: view.id))

    # -- reservations

    async def reserve(self, unit: Unit, node: str, name: str, deadline_s: float) -> None:
        """Hold a unit by a resource group. Refused with several nodes: a group cannot be pinned to one of them."""
        # Asked anew: a node may have joined since the plan was made, and then the group could land anywhere.
        node_ids = [view.id for view in await self.nodes()]
        if node not in node_ids:
            raise ReservationRefusedError(f"unit {unit.name} cannot be reserved on node {node[:8]}: the node is gone")
        if len(node_ids) > 1:
            raise ReservationRefusedError(
                f"unit {unit.name}: the backend yr lacks {Capability.SEVERAL_NODES}: it cannot pin a resource group to "
                f"one of {len(node_ids)} nodes"
            )
        # The key first: a group without one could not be found again, as no call of the SDK lists groups.
        if await self.kv.put_if_absent(GROUPS + name, b""):
            try:
                await asyncio.to_thread(self._reserve, unit, name, deadline_s)
            except RuntimeError as error:
                await self.release(name)
                raise ReservationRefusedError(
                    f"unit {unit.name} cannot be reserved on node {node[:8]}: {error}"
                ) from None

    def _reserve(self, unit: Unit, name: str, deadline_s: float) -> None:
        bundles = [bundle_of(bundle.resources) for bundle in unit.bundles]
        group = self._yr.create_resource_group(bundles, instance_name(name), "STRICT_PACK")
        # The SDK takes whole seconds.
        group.wait(max(1, round(deadline_s)))

    async def release(self, name: str) -> None:
        """Remove the group, which ends the actors in it."""
        with suppress(RuntimeError):  # the group is gone, or was never made
            await asyncio.to_thread(self._yr.remove_resource_group, instance_name(name))
        for key in await self.kv.keys(GROUPS + name):
            # The store deletes by prefix: names that begin with this one must stay.
            if key == GROUPS + name:
                await self.kv.delete(key)

    async def reservations(self, prefix: str) -> tuple[str, ...]:
        """Return the names of groups that were requested and not released."""
        return tuple(key.removeprefix(GROUPS) for key in await self.kv.keys(GROUPS + prefix))

    # -- actors

    async def spawn(self, spec: ActorSpec) -> ActorRef:
        """Create an instance under a name. Refuses what this mode would drop silently."""
        self._check(spec)
        if (spec.node or spec.avoid) and len(await self.nodes()) > 1:
            raise UsageError(f"{spec.name} asks for a node: the backend yr lacks {Capability.SEVERAL_NODES}")
        return ActorRef(spec.name, await self._making.make(spec.name, self._make, spec))

    def _check(self, spec: ActorSpec) -> None:
        if spec.python:
            raise UsageError(f"{spec.name} has a python of its own, with which the backend yr starts no class")
        has_own_environment = getattr(_class(STAND_INS.get(spec.cls, spec.cls)), "carries_environment", False)
        if spec.env and not has_own_environment and Capability.PROCESSES not in self.capabilities:
            raise UsageError(
                f"{spec.name} has an environment of its own: the backend yr in local mode lacks {Capability.PROCESSES}"
            )

    def _make(self, spec: ActorSpec) -> Any:
        amounts = bundle_of(spec.resources)
        options = self._yr.InvokeOptions(
            name=instance_name(spec.name),
            namespace=NAMESPACE,
            cpu=round(amounts.pop("CPU", 0)),
            memory=round(amounts.pop("Memory", 0)),
            custom_resources=amounts,
            concurrency=min(spec.max_concurrency or MOST_CALLS, MOST_CALLS),
            recover_retry_times=0,
        )
        if Capability.PROCESSES in self.capabilities:
            options.env_vars = dict(spec.env)
        if spec.reservation is not None:
            options.resource_group_options.resource_group_name = instance_name(spec.reservation)
            options.resource_group_options.bundle_index = spec.bundle
        try:
            return (
                self._yr.instance(Cell).options(options).invoke(STAND_INS.get(spec.cls, spec.cls), spec.args, spec.name)
            )
        except RuntimeError as error:
            # Told apart from a failure: another process was faster.
            if _code(error) == "ERR_INSTANCE_DUPLICATED":
                raise UsageError(f"an actor named {spec.name} exists already") from error
            raise ActorLostError(f"{spec.name} could not be created: {error}") from error

    async def lookup(self, name: str) -> ActorRef | None:
        """Return the actor of that name in our namespace; None without one."""
        if name not in await self.actors(name):
            return None  # the SDK would wait for its whole timeout for an unknown name
        with suppress(RuntimeError, TimeoutError):
            instance = await asyncio.to_thread(self._yr.get_instance, instance_name(name), NAMESPACE, LOOK_UP_S)
            return ActorRef(name, instance)
        return None

    async def call(self, ref: ActorRef, method: str, *args: Any) -> Any:
        """Call a method and await its answer."""
        try:
            reply = await ref.native.answer.invoke(method, args).as_future()
        except RuntimeError as error:
            raise _loss(ref, error) from None
        if isinstance(reply, CellFailure):
            raise ActorCallError(
                f"{ref.name}.{method} raised {reply.error_type}: {reply.message}",
                error_type=reply.error_type,
                remote_traceback=reply.traceback,
                outcome=reply.outcome,
            )
        return reply

    async def kill(self, ref: ActorRef) -> None:
        """End the instance; no error if it is gone."""
        with suppress(RuntimeError):
            await asyncio.to_thread(self._yr.kill_instance, ref.native.instance_id)

    async def actors(self, prefix: str) -> tuple[str, ...]:
        """Return the names in our namespace with a prefix."""
        await self._making.settled(self._making.names(prefix))
        rows = await asyncio.to_thread(self._yr.list_named_instances, all_namespaces=True)
        names = (actor_name(row["name"]) for row in rows if row["namespace"] == NAMESPACE)
        return tuple(sorted(name for name in names if name.startswith(prefix)))

    async def asked_groups(self, owner: str) -> tuple[AskedGroup, ...]:
        """Return nothing: ranks that are Ray drivers are refused at admission."""
        del owner
        return ()

    async def clear_drivers(self, owner: str) -> None:
        """Do nothing: there are no Ray drivers, for the same reason."""
        del owner


def _class(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _view(row: Mapping[str, Any]) -> NodeView:
    labels = {name: values if isinstance(values, str) else ",".join(values) for name, values in row["labels"].items()}
    total, free = resources_of(row["capacity"]), resources_of(row["allocatable"])
    return NodeView(row["id"], total, free, tuple(sorted(labels.items())))


def _code(error: BaseException) -> str:
    return str(getattr(getattr(error, "code", None), "name", ""))


def _loss(ref: ActorRef, error: RuntimeError) -> ActorLostError:
    # Only these codes say that the instance is gone; after any other it may still live.
    certain = _code(error) in ("ERR_INSTANCE_EXITED", "ERR_INSTANCE_NOT_FOUND", "ERR_FINALIZED")
    return ActorLostError(f"{ref.name}: {error}", certain=certain)
