"""All private names of Ray that dljob uses, so that a new release of Ray can break only this module.

They are those of Ray 2.60. Each function says what it is for and, where Ray has a public name for it, why that will not
do. Functions import Ray when they are called; importing this module does not.
`tests/unit/house/test_ray_private.py` reports each name that the installed Ray lacks, and each changed signature.
"""

# Ray's private modules have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false, reportMissingTypeArgument=false
# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false, reportMissingParameterType=false

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from ray.job_config import JobConfig

ACTOR_DEAD = 4
"""`ActorTableData.ActorState.DEAD`."""
DIED_OF_ITSELF = (1, 3)
"""`ActorDiedErrorContext.Reason`: WORKER_DIED and NODE_DIED; the others are orders, or follow the owner's end."""
SYSTEM_GROUP = "_ray_system"
"""The concurrency group in which Ray frees tensors that a tensor transport has put. An actor without this group never
frees them (`rdt_manager.free_object_primary_copy`)."""
WORKER_MODULES = (
    "ray._private.workers.default_worker",
    *("ray._common.usage.usage_lib", "ray._common.pydantic_compat", "ray._private.arrow_serialization"),
)
"""What a worker of Ray imports of Ray: its program, and what that imports when it connects and reads a first argument
(but pyarrow, which starts threads)."""
WORKER_LIBRARIES = (
    *("requests", "yaml", "attr", "jsonschema", "filelock", "msgpack", "packaging.version"),
    *("google.protobuf.json_format", "google.protobuf.descriptor_pb2"),
)
"""What these import that is not Ray's, and takes longest."""
KILL_S = 5.0
"""Seconds for the GCS to accept an order to kill an actor."""


# -- the GCS's key-value store: Ray has no public name for it


def kv_get(key: str, namespace: str | None = None) -> bytes | None:
    """Return the value of a key; None if it has none."""
    from ray.experimental import internal_kv

    return internal_kv._internal_kv_get(key, namespace=namespace)


def kv_put(key: str, value: bytes, *, overwrite: bool, namespace: str) -> bool:
    """Write a value; return whether there was one before."""
    from ray.experimental import internal_kv

    return internal_kv._internal_kv_put(key, value, overwrite=overwrite, namespace=namespace)


def kv_delete(prefix: str, *, namespace: str) -> int:
    """Delete all keys with this prefix; return their number."""
    from ray.experimental import internal_kv

    return internal_kv._internal_kv_del(prefix, del_by_prefix=True, namespace=namespace)


def kv_keys(prefix: str, *, namespace: str) -> list[bytes]:
    """Return all keys with this prefix."""
    from ray.experimental import internal_kv

    return internal_kv._internal_kv_list(prefix, namespace=namespace)


# -- objects: Ray's public `wait` would begin to fetch them


def would_come(refs: Sequence[Any], within_s: float) -> bool:
    """Whether fetching objects would bring bytes to this node; their owners are asked for at most `within_s` seconds.

    An object that is lost brings none, and one whose owner does not answer may.
    """
    import ray
    from ray.exceptions import GetTimeoutError
    from ray.experimental import get_object_locations

    try:
        locations = get_object_locations(list(refs), timeout_ms=round(within_s * 1000))
    except GetTimeoutError:
        return True
    own_node = ray.get_runtime_context().get_node_id()
    return any(own_node not in place["node_ids"] for place in locations.values())


# -- the GCS's tables: the public `ray.util.state` asks the API server, which an embedded Ray does not start


def group_rows() -> dict[str, Any]:
    """Return the placement groups by id, removed ones included.

    The public `ray.util.placement_group_table` starts a Ray in a process that has lost its own.
    """
    from ray._private import state

    return cast("dict[str, Any]", state.state.placement_group_table())


def group_row(group_id: Any) -> Mapping[str, Any]:
    """Return one placement group; empty if the GCS has forgotten it."""
    from ray._private import state

    return cast("dict[str, Any]", state.state.placement_group_table(group_id))


def actor_row(handle: Any) -> Mapping[str, Any]:
    """Return one actor; empty if the GCS has forgotten it."""
    from ray._private import state

    return cast("dict[str, Any]", state.state.actor_table(handle._actor_id.hex()))


def actor_rows(actor_state: str | None = None) -> list[Any]:
    """Return the actors of all Ray jobs as `ActorTableData`, or only those in `actor_state`."""
    from ray._private import state
    from ray.core.generated import gcs_pb2

    protobuf: Any = gcs_pb2  # made by protoc, without stubs
    rows = state.state._connect_and_get_accessor().get_actor_table(None, actor_state)
    return [protobuf.ActorTableData.FromString(row) for row in rows]


def job_rows() -> list[Any]:
    """Return the Ray jobs, running and ended, as `JobTableData`."""
    from ray._private import state
    from ray.core.generated import gcs_pb2

    protobuf: Any = gcs_pb2
    accessor: Any = state.state._connect_and_get_accessor()
    rows = accessor.get_job_table(skip_submission_job_info_field=True, skip_is_running_tasks_field=True)
    return [protobuf.JobTableData.FromString(row) for row in rows]


def free_by_node() -> Mapping[str, Mapping[str, float]]:
    """Return node -> free resources, as last reported; the public `ray.available_resources` sums all nodes."""
    from ray._private import state

    return state.state.available_resources_per_node()


def draining_nodes() -> Mapping[str, int]:
    """Return node -> time of its announced departure, in unix milliseconds; `ray.nodes()` does not have it."""
    from ray._private import state

    return state.state.get_draining_nodes()


def pending_demands() -> list[tuple[Mapping[str, float], int]]:
    """Return the demands for which raylets have no room, each with its number, as the autoscaler sees them."""
    from ray._private.worker import global_worker
    from ray.core.generated import autoscaler_pb2

    protobuf: Any = autoscaler_pb2
    packed = cast("Any", global_worker).gcs_client.get_cluster_resource_state()
    state = protobuf.GetClusterResourceStateReply.FromString(packed).cluster_resource_state
    return [(demand.request.resources_bundle, demand.count) for demand in state.pending_resource_requests]


def node_infos(within_s: float) -> Mapping[str, Any]:
    """Return node -> `GcsNodeInfo`, which has the id of the machine's instance; `ray.nodes()` omits it."""
    from ray._private.worker import global_worker

    rows = cast("Any", global_worker).gcs_client.get_all_node_info(timeout=within_s)
    return {node.hex(): info for node, info in rows.items()}


# -- actors


def known_dead(handle: Any) -> bool:
    """Whether this process already knows that the actor is dead, so a call to it was surely not run. No public name."""
    return handle._get_local_state() == ACTOR_DEAD


def end_actors(ids: Iterable[str]) -> None:
    """Kill actors by id: the public `ray.kill` needs a handle, and Ray gives handles only of named actors."""
    import ray
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

    request: Any = gcs_service_pb2
    channel = init_grpc_channel(ray.get_runtime_context().gcs_address)
    try:
        stub = gcs_service_pb2_grpc.ActorInfoGcsServiceStub(channel)
        for id_ in ids:
            order = request.KillActorViaGcsRequest(actor_id=bytes.fromhex(id_), force_kill=True, no_restart=True)
            with suppress(Exception):  # the caller looks again whether it is gone, and repeats the order
                stub.KillActorViaGcs(order, timeout=KILL_S)
    finally:
        channel.close()


# -- a driver that joins


@contextmanager
def joining_quietly() -> Generator[None]:
    """Join a Ray in this block, and print no worker's death on stdout from then on: stdout is data in dljob.

    Ray prints it whatever the public `log_to_driver` says. Within the block Ray's warning is silenced, too, that
    signals cannot be handled in this thread.
    """
    from ray._private import worker

    worker.listen_error_messages = _listen_to_nothing
    log = logging.getLogger(worker.__name__)
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _listen_to_nothing(*_: object) -> None:
    """Replace Ray's printer of worker deaths, and print nothing: the job's timeline reports deaths."""


def driver_config(sys_path: Sequence[str]) -> JobConfig:
    """Return a config for `ray.init` with the import path of Ray's workers; the public `runtime_env` copies folders."""
    from ray.job_config import JobConfig

    return JobConfig(_py_driver_sys_path=list(sys_path))


class _FixedPath(list[str]):
    """An import path to which `ray.init` cannot add the driver's current folder (ray 2.60, `Worker.connect`)."""

    def __bool__(self) -> bool:
        # JobConfig replaces an empty path by a list of its own.
        return True

    def extend(self, folders: Iterable[str], /) -> None:
        """Leave the path as it is."""


def driver_config_without_code() -> JobConfig:
    """Return a config for `ray.init` with which Ray's workers import nothing of the user's folder."""
    from ray.job_config import JobConfig

    return JobConfig(_py_driver_sys_path=_FixedPath())


def auth_token() -> str | None:
    """Return the token of this Ray's clients; None if Ray needs none. No public name."""
    from ray._private.authentication.authentication_utils import is_token_auth_enabled
    from ray._raylet import AuthenticationTokenLoader  # pyright: ignore[reportAttributeAccessIssue] - compiled

    return AuthenticationTokenLoader.instance().get_raw_token() if is_token_auth_enabled() else None


# -- devices: the public `ray.util.accelerators` has names of models alone. ImportError: no Ray, or an adapter of it


def device_kinds() -> tuple[str, ...]:
    """Return the resources for which Ray has device ids."""
    from ray._private import accelerators

    return tuple(sorted(accelerators.get_all_accelerator_resource_names()))


def device_variable(resource: str) -> str:
    """Return the variable that restricts devices of a kind on this machine; empty if the resource is no device."""
    from ray._private import accelerators

    manager = accelerators.get_accelerator_manager_for_resource(resource)
    return (manager and manager.get_visible_accelerator_ids_env_var()) or ""


def gpu_count() -> int:
    """Return the number of this machine's GPUs, of any vendor."""
    from ray._private import accelerators

    manager = accelerators.get_accelerator_manager_for_resource("GPU")
    return manager.get_current_node_num_accelerators() if manager is not None else 0


# -- an embedded Ray: with the public `ray start` it takes four times as long, and outlives who ran it


def read_config_again() -> None:
    """Make Ray read the variables RAY_* again, in case it was imported before they were set.

    It keeps the token that it read first: a second start in one process would be refused by its own GCS.
    """
    from ray._raylet import AuthenticationTokenLoader, Config  # pyright: ignore[reportAttributeAccessIssue] - compiled

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def look_up_own_ip(by: Callable[..., str]) -> Callable[..., str]:
    """Replace Ray's lookup of this machine's address by `by`; return the function it used before."""
    from ray._private import services

    before = services.get_node_ip_address
    services.get_node_ip_address = by
    return before


def start_processes_by(start: Callable[..., Any]) -> None:
    """Have `start` start each of Ray's processes from now on; it gets Ray's own function as its first argument."""
    from ray._private import services

    ray_services: Any = services
    ray_services.start_ray_process = partial(start, ray_services.start_ray_process)


@contextmanager
def nodes_started_by(start: Callable[..., Any], head_info: Callable[..., Any]) -> Generator[None]:
    """Start nodes in this block, each of Ray's processes by `start` and in a session of its own.

    `start` gets Ray's own function as its first argument. `head_info` answers a node's question to the GCS about the
    head. Ray does not import all of its dashboard to learn whether an agent can have it (0.5 to 0.9 s).
    """
    from ray._private import node, services, utils

    changes: list[tuple[Any, str, Any]] = [
        (services, "start_ray_process", partial(start, services.start_ray_process)),
        (node, "get_all_node_info_until_retrieved", head_info),
        (services, "ConsolePopen", partial(services.ConsolePopen, start_new_session=True)),
        (utils, "get_dashboard_dependency_error", lambda: None),
    ]
    originals = [(module, name, getattr(module, name)) for module, name, _ in changes]
    for module, name, value in changes:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in originals:
            setattr(module, name, value)


def node_params(**params: Any) -> Any:
    """Return the parameters of a node to start."""
    from ray._private.parameter import RayParams

    return RayParams(**params)


def start_head(params: Any, serves: Callable[[Any], None]) -> Any:
    """Start Ray's head without an API server, and call `serves` with it once its GCS answers.

    Returns Ray's `Node`, whose processes end with the calling thread.
    """
    from ray._private.node import Node

    class HeadNode(Node):
        """Reports when the GCS serves: that is when Ray would start the API server."""

        def start_api_server(self, **_: Any) -> None:
            serves(self)

    return HeadNode(params, head=True, shutdown_at_exit=False, spawn_reaper=True)


def start_node(params: Any) -> Any:
    """Start a raylet and return Ray's `Node`, whose processes end with the calling thread."""
    from ray._private.node import Node

    return Node(params, head=False, shutdown_at_exit=False, spawn_reaper=True)


def when_threads_are_known(then: Callable[[], None]) -> None:
    """Call a function whenever Ray has set this worker's OMP_NUM_THREADS, which it does before a task or an actor."""
    from ray._private import utils

    original = utils.set_omp_num_threads_if_unset

    def known() -> bool:
        changed = original()
        then()
        return changed

    utils.set_omp_num_threads_if_unset = known


def when_registered(then: Callable[[], None]) -> None:
    """Call a function once this worker has registered with its raylet. No public name."""
    from ray._private import worker

    rays_connect = worker.connect

    def connect(*args: Any, **more: Any) -> None:
        rays_connect(*args, **more)
        then()

    worker.connect = connect


# -- collective groups: the public `init_collective_group` meets at an actor of its own, which outlives a lost member


def known_collective_backend(name: str) -> type | None:
    """Return the class registered under this name in this process; no public name of `ray.util.collective` tells it."""
    from ray.util.collective import backend_registry

    registry = backend_registry._global_registry
    return registry.get(name) if registry.is_registered(name) else None


def create_collective_group(backend: str, size: int, rank: int, name: str) -> Any:
    """Create a group and enter it in Ray's list, in which `ray.util.collective.allreduce` finds it by name."""
    from ray.util.collective.collective import _group_mgr

    return _group_mgr.create_collective_group(backend, size, rank, name)


def forget_collective_group(name: str) -> None:
    """Remove a group from Ray's list.

    The public `destroy_collective_group` asks for an actor by name, and would start a Ray in a script.
    """
    from ray.util.collective.collective import _group_mgr

    _group_mgr._name_group_map.pop(name, None)


# -- references that pass outside of Ray: pickled by its public `cloudpickle` they would never be freed


def packed_ref(ref: Any) -> tuple[Any, ...]:
    """Return what `borrowed_ref` takes. Ray does not learn of it: whoever packs keeps the reference meanwhile."""
    from ray._private.worker import global_worker

    core = cast("Any", global_worker).core_worker
    _, owner, status = core.serialize_object_ref(ref)
    return ref.binary(), ref.call_site(), owner, status, ref.tensor_transport()


def borrowed_ref(*parts: Any) -> Any:
    """Return the reference that `packed_ref` took apart; its owner does not know of it, and may free the object."""
    from ray._private import serialization

    return serialization._object_ref_deserializer(*parts)


# -- Ray Direct Transport, which is alpha: `register_tensor_transport` is its only public name here


def tensor_transports() -> Mapping[str, Any]:
    """Return the known tensor transports by name; `devices` of each are the device types whose memory it transfers."""
    from ray.experimental.rdt import util

    util._ensure_default_transports_registered()
    return util.transport_manager_info


def is_one_sided(transport: str) -> bool:
    """Whether the reader fetches by itself, without the writer."""
    from ray.experimental.rdt import util

    return util.is_one_sided_transport(transport)


def transport_manager(transport: str) -> Any:
    """Return the object that transfers tensors in this process."""
    from ray.experimental.rdt import util

    return util.get_tensor_transport_manager(transport)


def put_by(transport: str, value: Any) -> Any:
    """Put an object whose tensors stay in this process until a reader fetches them."""
    import ray

    return ray.put(value, _tensor_transport=transport)


def forget_borrowed(names: Iterable[str]) -> None:
    """Drop Ray's metadata of borrowed tensors, which it never drops itself (ray 2.60.0, ray-project/ray#57962)."""
    from ray._private.worker import global_worker

    manager = getattr(global_worker, "_rdt_manager", None)
    if manager is None:
        return
    for name in names:
        if not manager.rdt_store.has_object(name):
            with suppress(KeyError), manager._lock:
                manager._managed_rdt_metadata.pop(name)
