"""Ray's private names: all of them are in one module, and the installed Ray has each as that module uses it."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import sources

from dljob.ray_private import ACTOR_DEAD, DIED_OF_ITSELF, SYSTEM_GROUP

ROOT = Path(__file__).parents[3]
MODULE = ROOT / "workers/dljob/ray_private.py"
SOURCES = sorted(path for room in ("workers", "operator") for path in (ROOT / room).rglob("*.py"))
NOT_PUBLIC = ("ray.cluster_utils", "ray.core", "ray.dashboard", "ray.experimental", "ray.includes", "ray.scripts")
"""Of Ray's own, though without an underscore."""
OTHERS = {
    "_LocalModeRuntime__invoke_client": "openYuanrong",
    "_abort_process_group": "torch.distributed",
    "_create_pool_manager": "kubernetes_asyncio",
    "_asdict": "a named tuple's, public",
    "_current_frames": "sys",
    "_lazy_call": "torch.cuda",
    "_get_sequence_number_for_group": "torch.distributed",
    "_get_running_loop": "asyncio, for loops that are not its own",
    "_Options": "torch.distributed",
    "_option_string_actions": "argparse",
    "_run_exitfuncs": "atexit",
    "_set_running_loop": "asyncio, for loops that are not its own",
    "_shutdown": "threading",
    "_world": "torch.distributed",
}
"""Private attributes that no file of ours defines, and that are not Ray's."""
IN_TEXT = re.compile(r"\bray\.(?:_|core\.|dashboard\.)[\w.]*|\b_ray_\w+")

USES = """
ray._common.pydantic_compat.BaseModel
ray._common.usage.usage_lib.usage_stats_enabled()
ray._private.arrow_serialization._register_custom_datasets_serializers("context")
ray._private.accelerators.get_all_accelerator_resource_names()
ray._private.accelerators.get_accelerator_manager_for_resource("GPU")
ray._private.accelerators.NvidiaGPUAcceleratorManager.get_current_node_num_accelerators()
ray._private.accelerators.NvidiaGPUAcceleratorManager.get_visible_accelerator_ids_env_var()
ray._private.authentication.authentication_utils.is_token_auth_enabled()
ray._private.grpc_utils.init_grpc_channel("address")
ray._private.node.Node("params", head=True, shutdown_at_exit=False, spawn_reaper=True)
ray._private.node.Node.all_processes
ray._private.node.Node.gcs_address
ray._private.node.Node.get_logs_dir_path("self")
ray._private.node.Node.get_session_dir_path("self")
ray._private.node.Node.start_api_server
ray._private.node.get_all_node_info_until_retrieved
ray._private.parameter.RayParams(gcs_address="", node_ip_address="", temp_dir="", plasma_store_socket_name="", \
raylet_socket_name="", object_store_memory=0, min_worker_port=0, max_worker_port=0, dashboard_agent_listen_port=0, \
include_dashboard=False, include_log_monitor=False, no_monitor=True, plasma_directory="", num_cpus=0, \
num_gpus=0, memory=0, resources={}, labels={})
ray._private.serialization._object_ref_deserializer(b"id", "call site", b"owner", b"status", None)
ray._private.services.ConsolePopen("command", start_new_session=True)
ray._private.services.ProcessInfo.process
ray._private.services.get_node_ip_address("address")
ray._private.utils.get_dashboard_dependency_error()
ray._private.utils.set_omp_num_threads_if_unset()
ray._private.services.start_ray_process("command", "raylet", fate_share=True, env_updates={})
ray._private.state.state._connect_and_get_accessor()
ray._private.state.state.actor_table("id")
ray._private.state.state.available_resources_per_node()
ray._private.state.state.get_draining_nodes()
ray._private.state.state.placement_group_table()
ray._private.state.state.placement_group_table("id")
ray._private.worker.global_worker.core_worker
ray._private.worker.global_worker.gcs_client
ray._private.worker.global_worker._rdt_manager
ray._private.worker.listen_error_messages
ray._raylet.AuthenticationTokenLoader.get_raw_token("self")
ray._raylet.AuthenticationTokenLoader.instance()
ray._raylet.AuthenticationTokenLoader.reset_cache("self")
ray._raylet.Config.initialize("")
ray._raylet.CoreWorker.serialize_object_ref("self", "ref")
ray._raylet.GlobalStateAccessor.get_actor_table("self", None, "RESTARTING")
ray._raylet.GlobalStateAccessor.get_job_table(\
"self", skip_submission_job_info_field=True, skip_is_running_tasks_field=True)
ray._raylet.InnerGcsClient.get_all_node_info("self", timeout=1.0)
ray._raylet.InnerGcsClient.get_cluster_resource_state("self")
ray.actor.ActorHandle._actor_id
ray.actor.ActorHandle._get_local_state("self")
ray.core.generated.autoscaler_pb2.ClusterResourceState.pending_resource_requests
ray.core.generated.autoscaler_pb2.GetClusterResourceStateReply.cluster_resource_state
ray.core.generated.autoscaler_pb2.ResourceRequest.resources_bundle
ray.core.generated.autoscaler_pb2.ResourceRequestByCount.count
ray.core.generated.autoscaler_pb2.ResourceRequestByCount.request
ray.core.generated.common_pb2.JobConfig.metadata
ray.core.generated.gcs_pb2.ActorTableData(\
actor_id=b"", class_name="", job_id=b"", name="", placement_group_id=b"", required_resources={}, state=0)
ray.core.generated.gcs_pb2.GcsNodeInfo(instance_id="", node_manager_hostname="")
ray.core.generated.gcs_pb2.JobTableData(config=None, is_dead=False, job_id=b"")
ray.core.generated.gcs_service_pb2.KillActorViaGcsRequest(actor_id=b"", force_kill=True, no_restart=True)
ray.core.generated.gcs_service_pb2_grpc.ActorInfoGcsServiceStub("channel")
ray.core.generated.gcs_service_pb2_grpc.ActorInfoGcsServiceStub.KillActorViaGcs
ray.experimental.get_object_locations([], timeout_ms=0)
ray.experimental.internal_kv._internal_kv_del("prefix", del_by_prefix=True, namespace="")
ray.experimental.internal_kv._internal_kv_get("key", namespace=None)
ray.experimental.internal_kv._internal_kv_list("prefix", namespace="")
ray.experimental.internal_kv._internal_kv_put("key", b"", overwrite=True, namespace="")
ray.experimental.rdt.rdt_manager.RDTManager._lock
ray.experimental.rdt.rdt_manager.RDTManager._managed_rdt_metadata
ray.experimental.rdt.rdt_manager.RDTManager.rdt_store
ray.experimental.rdt.rdt_store.RDTStore.has_object("self", "id")
ray.experimental.rdt.util.TransportManagerInfo.devices
ray.experimental.rdt.util._ensure_default_transports_registered()
ray.experimental.rdt.util.get_tensor_transport_manager("NIXL")
ray.experimental.rdt.util.is_one_sided_transport("NIXL")
ray.experimental.rdt.util.transport_manager_info
ray.job_config.JobConfig(_py_driver_sys_path=[])
ray.put("value", _tensor_transport="NIXL")
ray.util.collective.backend_registry._global_registry.get("name")
ray.util.collective.backend_registry._global_registry.is_registered("name")
ray.util.collective.collective._group_mgr._name_group_map
ray.util.collective.collective._group_mgr.create_collective_group("backend", 2, 0, "name")
""".strip().splitlines()
"""Each private name, called as the product calls it: the arguments' number and names count, their values do not."""


# -- where they are


def is_private(name: str) -> bool:
    """Whether a dotted name is one of Ray's that Ray does not offer."""
    segments = name.split(".")
    return segments[0] == "ray" and (
        any(segment.startswith("_") and not segment.startswith("__") for segment in segments)
        or any(f"{name}.".startswith(f"{known}.") for known in NOT_PUBLIC)
    )


def nodes_of(source: str) -> list[ast.AST]:
    """All nodes of a source."""
    return list(sources.nodes(source))


def own(node: ast.expr) -> bool:
    """Whether it is `self`."""
    return isinstance(node, ast.Name) and node.id == "self"


def defined(nodes: list[ast.AST]) -> Iterator[str]:
    """Names that a file defines, those of attributes included."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and own(node.value):
            yield node.attr


def imported(nodes: list[ast.AST]) -> Iterator[tuple[int, str, str]]:
    """(line, name in the file, what of Ray it means)."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name.split(".")[0] == "ray":
                    yield node.lineno, each.asname or "ray", each.name if each.asname else "ray"
                    yield node.lineno, "", each.name
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "ray":
            for each in node.names:
                yield node.lineno, each.asname or each.name, f"{node.module}.{each.name}"


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    """What of Ray an expression means, `x.y.z` of an imported x; empty when it does not begin so."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    inner = dotted(node.value, names) if isinstance(node, ast.Attribute) else ""
    return f"{inner}.{node.attr}" if isinstance(node, ast.Attribute) and inner else ""


def asked_for(node: ast.AST) -> str:
    """The attribute that an expression asks for, by a dot or by getattr and its like."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1:
        name = node.args[1]
        if node.func.id in {"getattr", "setattr", "hasattr", "delattr"} and isinstance(name, ast.Constant):
            return str(name.value)
    return ""


def private_names(nodes: list[ast.AST], ours: set[str]) -> list[tuple[int, str]]:
    """(line, private name of Ray) in a source. `ours`: names that the product defines."""
    names = {name: meant for _, name, meant in imported(nodes)}
    found = {(line, meant) for line, _, meant in imported(nodes) if is_private(meant)}
    texts = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings may name sources
    for node in nodes:
        if isinstance(node, ast.Attribute) and is_private(meant := dotted(node, names)):
            found.add((node.lineno, meant))
        elif re.match(r"_[^_]", name := asked_for(node)) and name not in ours and name not in OTHERS:
            found.add((getattr(node, "lineno", 0), f".{name}"))
        if isinstance(node, ast.Call) and dotted(node.func, names):
            found |= {(node.lineno, f"{each.arg}=") for each in node.keywords if (each.arg or "").startswith("_")}
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            found |= {(node.lineno, text) for text in IN_TEXT.findall(node.value)}
    return sorted(found)


def test_private_names_of_ray_stand_in_one_module() -> None:
    files = {path.relative_to(ROOT): nodes_of(path.read_text()) for path in SOURCES if path != MODULE}
    ours = {name for nodes in files.values() for name in defined(nodes)}
    found = [f"{path}:{line}: {name}" for path, nodes in files.items() for line, name in private_names(nodes, ours)]
    assert not found, f"private names of Ray belong in {MODULE.relative_to(ROOT)}:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import ray._private.worker", "ray._private.worker"),
        ("from ray._private import worker as w", "ray._private.worker"),
        ("from ray import _raylet", "ray._raylet"),
        ("def f():\n    from ray.core.generated import gcs_pb2", "ray.core.generated.gcs_pb2"),
        ("from ray.cluster_utils import Cluster", "ray.cluster_utils.Cluster"),
        ("import ray\nray._private.state.nodes()", "ray._private"),
        ("import ray\nray.experimental.internal_kv", "ray.experimental"),
        ("from ray.util import collective as c\nc.collective._group_mgr", "ray.util.collective.collective._group_mgr"),
        ("handle._actor_id", "._actor_id"),
        ("getattr(worker, '_rdt_manager', None)", "._rdt_manager"),
        ("import ray\nray.put(1, _owner=2)", "_owner="),
        ("CODE = 'from ray._private import worker'", "ray._private"),
        ("GROUPS = {'_ray_system': 1}", "_ray_system"),
    ],
)
def test_a_private_name_is_found(source: str, name: str) -> None:
    assert name in {found for _, found in private_names(nodes_of(source), {"_mine"})}


@pytest.mark.parametrize(
    "source",
    [
        "import ray\nray.get_actor('a')",
        "from ray.util.placement_group import PlacementGroup",
        "other._mine",
        '"""See ray/_private/services.py, `ray._private.worker`."""',
        "import ray\nray.__version__",
    ],
)
def test_public_names_and_our_own_are_no_private_names_of_ray(source: str) -> None:
    assert not private_names(nodes_of(source), {"_mine"})


# -- whether Ray has them


def resolved(name: str) -> Any:
    """The object of a dotted name, of which as much is a module as can be; raises AttributeError naming what lacks."""
    segments = name.split(".")
    found, rest = import_module("ray"), segments[1:]
    while rest and inspect.ismodule(found):
        try:
            found = import_module(f"{found.__name__}.{rest[0]}")
        except ModuleNotFoundError:
            break
        del rest[0]
    made: Any = found
    for segment in rest:
        made = member(made, segment)
    return made


def member(of: Any, name: str) -> Any:
    """An attribute: one of a class's instances may be known by the source alone, one of a message by its fields."""
    if hasattr(of, name) or inspect.ismodule(of):
        return getattr(of, name)
    if hasattr(of, "DESCRIPTOR"):
        return of.DESCRIPTOR.fields_by_name[name]
    kind: type = of if isinstance(of, type) else type(of)
    if re.search(rf"\.{name}(?:: .*)? = ", inspect.getsource(sys.modules[kind.__module__])):
        return None
    raise AttributeError(f"{kind.__qualname__} has no {name}")


def takes(called: Any, call: ast.Call) -> None:
    """Raises when it does not take these arguments."""
    if hasattr(called, "DESCRIPTOR"):
        lacks = {str(each.arg) for each in call.keywords} - set(called.DESCRIPTOR.fields_by_name)
        assert not lacks, f"has no fields {', '.join(sorted(lacks))}"
        return
    given = {str(each.arg): None for each in call.keywords}
    inspect.signature(called).bind(*call.args, **given)


def check(use: str) -> None:
    """Raises when the installed Ray lacks it, or would not take the call."""
    node = ast.parse(use, mode="eval").body
    named = node.func if isinstance(node, ast.Call) else node
    found = resolved(ast.unparse(named))
    if isinstance(node, ast.Call):
        takes(found, node)


@pytest.mark.parametrize("use", USES)
def test_the_installed_ray_has_each_private_name(use: str) -> None:
    try:
        check(use)
    except Exception as error:  # noqa: BLE001 - whatever a Ray that has moved it raises
        pytest.fail(f"{use}: {error!r}; mend {MODULE.relative_to(ROOT)}", pytrace=False)


@pytest.mark.parametrize(
    "use",
    [
        "ray._private.moved.away()",
        "ray._private.worker.moved",
        "ray._private.worker.global_worker._moved",
        "ray._private.node.Node(1, 2, moved=True)",
        "ray._raylet.GlobalStateAccessor.get_actor_table('self')",
        "ray.core.generated.gcs_pb2.ActorTableData(moved=1)",
        "ray.core.generated.gcs_pb2.ActorTableData.moved",
    ],
)
def test_a_private_name_that_ray_has_moved_is_noticed(use: str) -> None:
    with pytest.raises((AttributeError, AssertionError, KeyError, TypeError), match=r"moved|job_id"):
        check(use)


def test_each_private_name_of_the_module_is_looked_at() -> None:
    nodes, uses = nodes_of(MODULE.read_text()), "\n".join(USES)
    names = {meant for _, _, meant in imported(nodes) if is_private(meant)}
    names |= {
        name for _, found in private_names(nodes, set(defined(nodes))) for name in re.findall(r"\b_[a-z]\w+", found)
    }
    assert sorted(name for name in names if name not in uses and name != SYSTEM_GROUP) == []


def test_constants_copied_from_ray_equal_rays() -> None:
    from ray.core.generated import common_pb2, gcs_pb2
    from ray.experimental.rdt import rdt_manager

    assert getattr(gcs_pb2, "ActorTableData").ActorState.DEAD == ACTOR_DEAD  # noqa: B009 - protoc's, without stubs
    died = getattr(common_pb2, "ActorDiedErrorContext")  # noqa: B009 - likewise
    assert (died.WORKER_DIED, died.NODE_DIED) == DIED_OF_ITSELF
    assert f'concurrency_group="{SYSTEM_GROUP}"' in inspect.getsource(rdt_manager)


def test_importing_the_module_imports_no_ray() -> None:
    code = "import sys, dljob.ray_private; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
