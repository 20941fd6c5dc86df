"""The real SDK of openYuanrong in its local mode passes the suite that every backend must pass, as far as it can."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("yr", reason="openyuanrong-sdk is not installed: pip install 'dljob[yr]'")

from backend_contract import PROBE, TAKES, BackendContract, unit, without

from dljob.errors import UsageError
from dljob.plan.model import GRAIN
from dljob.runtime.backend.interface import ActorLostError, ActorSpec, ReservationRefusedError
from dljob.runtime.backend.yr_local_mode import LOCAL
from dljob.runtime.yr import session
from dljob.runtime.yr.backend import YrBackend, actor_name, instance_name
from dljob.runtime.yr.resources import bundle_of, resources_of
from dljob.spec.capabilities import Capability

pytestmark = pytest.mark.filterwarnings("ignore:setDaemon:DeprecationWarning")  # of the SDK's threads


@pytest.fixture(scope="module")
def here() -> Iterator[Any]:
    yield session.local((("CPU", 4 * GRAIN), ("memory", 8 * 2**30 * GRAIN)))
    session.close()


@pytest.fixture
def backend(here: Any) -> YrBackend:
    return YrBackend({"localMode": True})


class TestLocalMode(BackendContract):
    locals().update(without(Capability.PROCESSES, Capability.SEVERAL_NODES, Capability.DEVICES))

    @pytest.fixture
    def backend(self, here: Any) -> YrBackend:
        return YrBackend({"localMode": True})


def test_the_capabilities_left_out_are_those_the_backend_lacks():
    assert not LOCAL & TAKES.keys()


async def test_an_environment_of_its_own_is_refused_and_not_dropped(backend):
    with pytest.raises(UsageError, match=r"t/a has an environment of its own: .* lacks processes"):
        await backend.spawn(ActorSpec("t/a", PROBE, env=(("MARK", "x"),)))
    assert await backend.actors("t/") == ()


async def test_the_sdks_error_for_a_lost_actor_is_certain_loss(backend):
    ref = await backend.spawn(ActorSpec("t/gone", PROBE))
    await backend.kill(ref)
    with pytest.raises(ActorLostError) as caught:
        await backend.call(ref, "about")
    assert caught.value.certain


async def test_a_reservation_is_given_back_when_its_request_fails_under_way(backend, monkeypatch):
    async def two() -> tuple[Any, ...]:
        return (*await YrBackend.nodes(backend), *await YrBackend.nodes(backend))

    node = (await backend.nodes())[0].id
    monkeypatch.setattr(backend, "nodes", two)
    with pytest.raises(
        ReservationRefusedError, match="lacks several-nodes: it cannot pin a resource group to one of 2 nodes"
    ):
        await backend.reserve(unit({"CPU": 1}), node, "t/u", 1)
    with pytest.raises(UsageError, match="lacks several-nodes"):
        await backend.spawn(ActorSpec("t/a", PROBE, node=node))


async def test_an_actor_in_no_bundle_is_refused(backend):
    with pytest.raises(ActorLostError, match="there is no bundle 0"):
        await backend.spawn(ActorSpec("t/b", PROBE, reservation="t/none"))
    assert await backend.lookup("t/b") is None


async def test_calls_run_beside_each_other(backend):
    ref = await backend.spawn(ActorSpec("t/many", PROBE))
    waiting = [asyncio.ensure_future(backend.call(ref, "wait_for_ever")) for _ in range(40)]
    assert (await asyncio.wait_for(backend.call(ref, "about"), 60))[1] == ""
    await backend.kill(ref)
    ends = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
    assert all(isinstance(end, ActorLostError) for end in ends)


@pytest.mark.parametrize("name", ["a/b-1_c.d", "0a1b2c3d/role-x/spare-4f-0/2", "ü"])
def test_names_have_no_dash_for_the_sdk_to_cut_at(name):
    made = instance_name(name)
    assert made.replace("_", "").isalnum()
    assert made.isascii()
    assert actor_name(made) == name


def test_resources_are_translated_to_openyuanrongs_and_back():
    ours = (("CPU", GRAIN // 2), ("NPU", 2 * GRAIN), ("memory", 512 * 2**20 * GRAIN))
    theirs = {"CPU": 500.0, "NPU/.+/count": 2.0, "Memory": 512}
    assert bundle_of(ours) == theirs
    assert resources_of(theirs) == ours


def test_an_unknown_option_is_refused():
    with pytest.raises(UsageError, match="backend yr has no option 'lokalMode'"):
        YrBackend({"lokalMode": True})


def test_a_cluster_takes_an_address(monkeypatch):
    monkeypatch.delenv("YR_SERVER_ADDRESS", raising=False)
    monkeypatch.setattr(session, "_session", None)
    with pytest.raises(UsageError, match="YR_SERVER_ADDRESS is not set"):
        YrBackend({})


def test_a_process_has_either_local_mode_or_a_cluster(here):
    with pytest.raises(UsageError, match="has openYuanrong's local mode"):
        YrBackend({})


# -- the stand-in has the SDK's shape


def shape(function: Any) -> list[tuple[str, Any]]:
    """Names and kinds of the parameters, and which may be left out."""
    given = inspect.signature(function).parameters.values()
    return [(own.name, own.kind, own.default is inspect.Parameter.empty) for own in given]


STANDS_IN = (
    "resources",
    "get_node_id",
    "get_node_ip_address",
    "get_namespace",
    "create_resource_group",
    "wait_resource_group",
    "remove_resource_group",
    "create_instance",
    "invoke_instance",
    "set_get_callback",
    "terminate_instance",
    "terminate_instance_sync",
    "query_named_instances",
    "get_instance_by_name",
    "finalize",
)


@pytest.mark.parametrize("name", STANDS_IN)
def test_the_stand_in_has_the_signatures_of_the_clusters_runtime(name):
    from yr.cluster_mode_runtime import ClusterModeRuntime

    from dljob.runtime.yr.local import FunctionSystem

    assert shape(getattr(FunctionSystem, name)) == shape(getattr(ClusterModeRuntime, name))


def test_nothing_of_the_stand_in_goes_unchecked():
    from dljob.runtime.yr.local import FunctionSystem

    own = {name for name, value in vars(FunctionSystem).items() if inspect.isfunction(value) and name[0] != "_"}
    assert own == set(STANDS_IN)


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("create_resource_group", ("bundles", "name", "strategy")),
        ("remove_resource_group", ("resource_group",)),
        ("get_instance", ("name", "namespace", "timeout")),
        ("kill_instance", ("instance_id",)),
        ("list_named_instances", ("all_namespaces",)),
        ("resources", ()),
        ("finalize", ()),
    ],
)
def test_the_sdk_has_what_the_backend_calls(name, taken):
    import yr

    assert tuple(inspect.signature(getattr(yr, name)).parameters) == taken


def test_the_sdk_has_the_options_that_the_backend_sets():
    import yr

    known = set(inspect.signature(yr.InvokeOptions).parameters)
    named = {"name", "namespace", "cpu", "memory", "custom_resources", "concurrency", "recover_retry_times"}
    assert named | {"env_vars", "resource_group_options"} <= known


@pytest.mark.usefixtures("here")  # the SDK's runtime takes its settings from an init
def test_bare_local_mode_lacks_what_the_stand_in_adds():
    """Should this fail one day, the SDK has learned it, and the stand-in may go."""
    from yr.local_mode.local_mode_runtime import LocalModeRuntime

    bare = LocalModeRuntime()
    for ask in (
        lambda: bare.create_resource_group([{}], "g", "PACK"),
        lambda: bare.wait_resource_group("g", "r", 1),
        bare.query_named_instances,
        bare.get_node_ip_address,
    ):
        with pytest.raises(RuntimeError, match="not support in local mode"):
            ask()
    assert not hasattr(bare, "get_instance_by_name")
    assert isinstance(bare.get_node_id(), RuntimeError)
