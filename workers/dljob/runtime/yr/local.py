"""A runtime for the SDK's local mode with what that lacks: nodes, resource groups, names, and the end of instances.

The SDK's local mode (openyuanrong-sdk 0.9.10) makes instances, which are threads of this process, and carries their
calls. It refuses everything that a function system would know, lets calls of an ended instance wait for ever, and gives
a future where a value is awaited. `FunctionSystem` is its runtime with these added, in the shapes of a cluster's, so
that the SDK's own functions (`create_resource_group`, `get_instance`, `list_named_instances`, `kill_instance`) work on
it. `tests/unit/runtime/yr` compares each signature with the SDK's.

It adds no processes: an instance has no environment, no devices and no pid of its own, and SIGKILL ends all of them.
"""

from __future__ import annotations

import importlib
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from yr.err_type import ErrorCode
from yr.exception import YRInvokeError, YRRuntimeError
from yr.local_mode.local_mode_runtime import LocalModeRuntime
from yr.runtime_holder import global_runtime

Amounts = dict[str, float]
"""Resources in a cluster's terms: CPU in thousandths, Memory in MB, others by `KIND/MODEL/count`."""
Callback = Callable[[Any], None]


@dataclass(slots=True)
class LocalNode:
    """A node as `yr.resources()` describes it; `held_amounts` is what resource groups hold."""

    id: str
    capacity: Amounts
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    held_amounts: Amounts = field(default_factory=dict)

    def free(self) -> Amounts:
        """Return the amounts that no group holds."""
        return {name: amount - self.held_amounts.get(name, 0.0) for name, amount in self.capacity.items()}

    def hold(self, amounts: Mapping[str, float], sign: int = 1) -> None:
        """Add amounts to the held ones; with sign -1, subtract them."""
        for name, amount in amounts.items():
            self.held_amounts[name] = self.held_amounts.get(name, 0.0) + sign * amount


@dataclass(slots=True)
class _PlacementGroup:
    request: str
    bundles: list[Amounts]
    node: LocalNode | None = None
    problem: str = ""


@dataclass(slots=True)
class _Instance:
    id: str
    meta: Any
    group: str = ""
    waiting: dict[str, list[Callback]] = field(default_factory=dict)
    """Object id of a pending call -> callbacks that wait for its value."""


class FunctionSystem(LocalModeRuntime):
    """The SDK's runtime on this machine, after `install`."""

    def __init__(self, nodes: Sequence[LocalNode]) -> None:
        super().__init__()
        self._nodes = {node.id: node for node in nodes}
        self._here = nodes[0].id
        self._groups: dict[str, _PlacementGroup] = {}
        self._instances: dict[str, _Instance] = {}
        self._names: dict[str, str] = {}
        """`namespace-name` -> instance id; empty while the instance is being made."""
        self._objects: dict[str, _Instance] = {}
        self._mutex = threading.RLock()

    # -- nodes

    def resources(self) -> list[dict[str, Any]]:
        """Return the nodes. `yr.resources()` itself refuses in local mode, whatever its runtime can do."""
        with self._mutex:
            return [
                {
                    "id": node.id,
                    "status": 0,
                    "capacity": dict(node.capacity),
                    "allocatable": node.free(),
                    "labels": dict(node.labels),
                }
                for node in self._nodes.values()
            ]

    def get_node_id(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride] - there it is an error
        """Return the node of this process."""
        return self._here

    def get_node_ip_address(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride] - there it is an error
        """Return loopback: nothing here is reached from other machines."""
        return "127.0.0.1"

    def get_namespace(self) -> str:
        """Return the namespace of instances that name none."""
        return ""

    # -- resource groups

    def create_resource_group(self, bundles: list[dict[str, float]], name: str, strategy: str) -> str:
        """Hold the bundles on one node if there is room; return the request's id, for `wait_resource_group`."""
        with self._mutex:
            if name in self._groups:
                raise _error(ErrorCode.ERR_INSTANCE_DUPLICATED, f"the resource group {name} exists already")
            group = self._groups[name] = _PlacementGroup(uuid.uuid4().hex, [dict(bundle) for bundle in bundles])
            total: Amounts = {}
            for bundle in bundles:
                for kind, amount in bundle.items():
                    total[kind] = total.get(kind, 0.0) + amount
            # The whole group on one node, as STRICT_PACK asks.
            group.node = next((node for node in self._nodes.values() if _within(total, node.free())), None)
            if group.node is not None:
                group.node.hold(total)
            elif any(_within(total, node.capacity) for node in self._nodes.values()):
                group.problem = f"the node has no room for it now ({strategy})"
            else:
                group.problem = f"the node can never hold it ({strategy})"
            return group.request

    def wait_resource_group(self, name: str, request_id: str, timeout_seconds: int) -> None:  # noqa: ARG002
        """Raise unless the group is held; local mode knows that at once."""
        with self._mutex:
            group = self._groups.get(name)
        if group is None or group.request != request_id:
            raise _error(ErrorCode.ERR_PARAM_INVALID, f"there is no resource group {name} of that request")
        if group.node is None:
            raise _error(ErrorCode.ERR_RESOURCE_NOT_ENOUGH, group.problem)

    def remove_resource_group(self, name: str) -> None:
        """Release the group, and end the instances in it."""
        with self._mutex:
            group = self._groups.pop(name, None)
            inside = [
                instance_record.id for instance_record in self._instances.values() if instance_record.group == name
            ]
        if group is None:
            raise _error(ErrorCode.ERR_PARAM_INVALID, f"there is no resource group {name}")
        # Without the lock: ending an instance runs user code.
        for instance in inside:
            self.terminate_instance(instance)
        if group.node is not None:
            with self._mutex:
                for bundle in group.bundles:
                    group.node.hold(bundle, -1)

    # -- instances

    def create_instance(self, func_meta: Any, args: list[Any], opt: Any, group_info: Any = None) -> str:
        """Create an instance, complete when this returns. A name can be used once at a time."""
        if opt.env_vars:
            raise _error(ErrorCode.ERR_PARAM_INVALID, "an instance of local mode has no environment of its own")
        key = _key(func_meta.ns, func_meta.name)
        group, index = opt.resource_group_options.resource_group_name, opt.resource_group_options.bundle_index
        with self._mutex:
            if key and key in self._names:
                raise _error(ErrorCode.ERR_INSTANCE_DUPLICATED, f"an instance named {func_meta.name} exists already")
            if group and (group not in self._groups or index >= len(self._groups[group].bundles)):
                raise _error(ErrorCode.ERR_PARAM_INVALID, f"there is no bundle {index} of a resource group {group}")
            # Reserve the name before the lock is released: making an instance takes long, and names are unique.
            if key:
                self._names[key] = ""
        try:
            instance_id = super().create_instance(func_meta, args, opt, group_info)
        except BaseException:
            with self._mutex:
                # The name is free again: the next try must not find an instance that never was.
                self._names.pop(key, None)
            raise
        with self._mutex:
            self._instances[instance_id] = _Instance(instance_id, func_meta, group)
            if key:
                self._names[key] = instance_id
        return instance_id

    def invoke_instance(
        self, func_meta: Any, instance_id: str, args: list[Any], opt: Any, return_nums: int
    ) -> list[str]:
        """Call an instance by its id, or by the `namespace-name` of a handle from a lookup."""
        with self._mutex:
            # A handle from a lookup has the name only.
            instance_record = self._instances.get(self._names.get(instance_id, instance_id))
        if instance_record is None:
            raise _error(ErrorCode.ERR_INSTANCE_NOT_FOUND, f"there is no instance {instance_id}")
        objects: list[str] = super().invoke_instance(func_meta, instance_record.id, args, opt, return_nums)
        with self._mutex:
            for object_id in objects:
                instance_record.waiting[object_id] = []
                self._objects[object_id] = instance_record
        return objects

    def set_get_callback(self, object_id: str, callback: Callback) -> None:
        """Call back with a value, or the error in its place, as a cluster's runtime does; local mode passes a future.

        For an instance that has ended meanwhile, its end is the error.
        """
        with self._mutex:
            instance_record = self._objects.get(object_id)
            if instance_record is not None and object_id in instance_record.waiting:
                instance_record.waiting[object_id].append(callback)
        if instance_record is not None and instance_record.id not in self._instances:
            callback(_ended(instance_record.id))
            return
        super().set_get_callback(object_id, lambda done: self._tell(object_id, callback, done))

    def _tell(self, object_id: str, callback: Callback, done: Any) -> None:
        with self._mutex:
            if (instance_record := self._objects.pop(object_id, None)) is not None:
                instance_record.waiting.pop(object_id, None)
        if isinstance(done, Future):
            error = done.exception()
            done = done.result() if error is None else error
        # As on a cluster, where an error of user code arrives in the SDK's own class.
        if isinstance(done, BaseException) and not isinstance(done, RuntimeError):
            done = YRInvokeError(done, str(done))
        callback(done)

    def terminate_instance(self, instance_id: str) -> None:
        """End an instance: its pending calls fail first, then it may clean up. No error if it is gone."""
        with self._mutex:
            instance_record = self._instances.pop(self._names.get(instance_id, instance_id), None)
            if instance_record is None:
                return
            self._names = {key: named_id for key, named_id in self._names.items() if named_id != instance_record.id}
            waiting = [callback for callbacks in instance_record.waiting.values() for callback in callbacks]
            for object_id in instance_record.waiting:
                self._objects.pop(object_id, None)
        for callback in waiting:
            callback(_ended(instance_record.id))
        # Before the SDK ends it: afterwards its object is gone.
        worker = self._client.workers.get(instance_record.id)
        with suppress(Exception):  # user code may raise here; the instance ends in any case
            worker._instance.__yr_shutdown__(0)
        super().terminate_instance(instance_record.id)

    def terminate_instance_sync(self, instance_id: str) -> None:
        """End an instance: in local mode the asynchronous call is synchronous, too."""
        self.terminate_instance(instance_id)

    def query_named_instances(self) -> list[str]:  # pyright: ignore[reportIncompatibleMethodOverride] - there it is an error
        """Return `namespace-name` of each named instance."""
        with self._mutex:
            return sorted(key for key, instance_id in self._names.items() if instance_id)

    def get_instance_by_name(self, name: str, namespace: str, timeout: int) -> Any:  # noqa: ARG002
        """Return the metadata from which the SDK makes a handle, at once: `timeout` is not used."""
        with self._mutex:
            instance_record = self._instances.get(self._names.get(_key(namespace, name), ""))
        if instance_record is None:
            raise _error(ErrorCode.ERR_INSTANCE_NOT_FOUND, f"there is no instance named {name}")
        meta = type(instance_record.meta)()
        meta.CopyFrom(instance_record.meta)
        meta.ClearField("code")  # the class is known here; only a cluster's runtime unpacks it
        return meta

    def finalize(self) -> None:
        """End all instances and the runtime."""
        for instance in list(self._instances):
            self.terminate_instance(instance)
        super().finalize()

    @property
    def _client(self) -> Any:
        return getattr(self, "_LocalModeRuntime__invoke_client")  # noqa: B009 - private to the SDK's class


def install(nodes: Sequence[LocalNode]) -> FunctionSystem:
    """Start the SDK's local mode in this process, with a FunctionSystem as its runtime.

    Raises:
        RuntimeError: The SDK is in use in this process already.
    """
    sdk: Any = importlib.import_module("yr")  # the SDK creates its names on access
    conf = sdk.Config()
    conf.local_mode = True
    conf.log_level = "ERROR"
    conf.server_address = "127.0.0.1:1"  # never contacted; without one the SDK looks for a command to start a cluster
    sdk.init(conf)
    system = FunctionSystem(nodes)
    system.init()
    global_runtime.init(system)
    return system


def _key(namespace: str, name: str) -> str:
    return (f"{namespace}-{name}" if namespace else name) if name else ""


def _within(amounts: Mapping[str, float], room: Mapping[str, float]) -> bool:
    return all(amount <= room.get(name, 0.0) for name, amount in amounts.items())


def _error(code: ErrorCode, message: str) -> YRRuntimeError:
    return YRRuntimeError(code=code, message=message)


def _ended(instance: str) -> YRRuntimeError:
    return _error(ErrorCode.ERR_INSTANCE_EXITED, f"the instance {instance} was ended")
