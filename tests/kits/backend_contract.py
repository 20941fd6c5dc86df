"""The contract of every backend, as tests. Subclass `BackendContract` with fixtures `backend` and `doomed_node`.

`doomed_node`: a function that adds a node and returns its id and a function that kills it as a lost machine would be.
A backend that lacks a capability leaves out the tests that `TAKES` lists for it (`without`), and refuses their calls.
Actors are of `contract_actors.Probe`, which the backend's workers must be able to import.
"""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest

from dljob.errors import UsageError
from dljob.master.state.views import NodeView, Outcome, Reason
from dljob.plan.model import GRAIN, Bundle, Resources, Unit
from dljob.runtime.backend.interface import (
    ActorCallError,
    ActorLostError,
    ActorRef,
    ActorSpec,
    Backend,
    ReservationRefusedError,
)
from dljob.spec.capabilities import Capability

PROBE = "contract_actors.Probe"
TAKES = {
    Capability.PROCESSES: (
        "test_an_actor_has_its_arguments_env_and_node",
        "test_env_may_name_what_the_node_has",
        "test_a_signal_from_outside_breaks_the_pending_call",
        "test_an_exit_of_its_own_breaks_the_pending_call",
    ),
    Capability.SEVERAL_NODES: ("test_a_vanished_node_is_said_to_be_lost",),
    Capability.DEVICES: ("test_sharers_of_a_bundle_get_one_device_and_bundles_differ",),
}


def without(*lacking: Capability) -> dict[str, None]:
    """Return members that switch off tests of lacking capabilities; a subclass does `locals().update(without(...))`."""
    return {name: None for capability in lacking for name in TAKES[capability]}


def unit(*bundles: dict[str, float]) -> Unit:
    made = tuple(
        Bundle(tuple(sorted((k, round(v * GRAIN)) for k, v in b.items())), (("r", i),)) for i, b in enumerate(bundles)
    )
    return Unit("r/0", made, (("r", 0),), ())


def amount(resources: Resources, name: str) -> float:
    return dict(resources).get(name, 0) / GRAIN


async def until(check: Callable[[], Any], within: float = 15.0) -> Any:
    """Return the first true answer of an async check; fails after `within` seconds."""
    end = asyncio.get_running_loop().time() + within
    while asyncio.get_running_loop().time() < end:
        if got := await check():
            return got
        await asyncio.sleep(0.05)
    raise AssertionError("never came true")


class BackendContract:
    """The contract of a backend: nodes and reservations, actors, devices, key-value store."""

    @pytest.fixture
    async def prefix(self, backend: Backend) -> AsyncIterator[str]:
        """Return a name prefix of this test; everything created under it is removed afterwards."""
        mine = f"t{uuid.uuid4().hex[:8]}/"
        yield mine
        for name in await backend.actors(mine):
            if ref := await backend.lookup(name):
                await backend.kill(ref)
        for name in await backend.reservations(mine):
            await backend.release(name)

    async def roomy(self, backend: Backend) -> NodeView:
        async def found() -> NodeView | None:
            return next((n for n in await backend.nodes() if amount(n.free, "CPU") >= 2), None)

        return await until(found)

    async def idle(self, backend: Backend) -> NodeView:
        async def found() -> NodeView | None:
            nodes = (n for n in await backend.nodes() if amount(n.total, "CPU") >= 2)
            return next((n for n in nodes if amount(n.free, "CPU") == amount(n.total, "CPU")), None)

        return await until(found)

    async def made(self, backend: Backend, name: str, **more: Any) -> ActorRef:
        return await backend.spawn(ActorSpec(name, PROBE, **more))

    # -- nodes and reservations

    async def test_nodes_are_sorted_and_have_room(self, backend: Backend) -> None:
        nodes = await backend.nodes()
        assert [n.id for n in nodes] == sorted(n.id for n in nodes)
        assert all(dict(n.free).keys() <= dict(n.total).keys() for n in nodes)
        assert sum(n.head for n in nodes) <= 1
        assert backend.own_node() in {"", *(n.id for n in nodes)}, "where this process is"

    async def test_a_reservation_is_taken_off_its_node_at_once_and_given_back(self, backend, prefix) -> None:
        node = await self.idle(backend)  # Resources of an earlier test may be returned late.
        await backend.reserve(unit({"CPU": 1}, {"CPU": 0.5}), node.id, prefix + "u", 10)
        after = next(n for n in await backend.nodes() if n.id == node.id)
        assert amount(after.free, "CPU") <= amount(node.free, "CPU") - 1.5
        assert await backend.reservations(prefix) == (prefix + "u",)
        await backend.release(prefix + "u")

        async def back() -> bool:
            now = next(n for n in await backend.nodes() if n.id == node.id)
            return now.free == node.free and not await backend.reservations(prefix)

        assert await until(back)

    async def test_reserving_twice_under_a_name_is_once(self, backend, prefix) -> None:
        node = await self.roomy(backend)
        for _ in range(2):
            await backend.reserve(unit({"CPU": 1}), node.id, prefix + "u", 10)
        assert await backend.reservations(prefix) == (prefix + "u",)

    async def test_no_room_is_refused_with_the_reason_and_leaves_nothing(self, backend, prefix) -> None:
        node = await self.idle(backend)
        await backend.reserve(unit({"CPU": amount(node.free, "CPU")}), node.id, prefix + "all", 10)
        with pytest.raises(ReservationRefusedError, match="no room"):
            await backend.reserve(unit({"CPU": 1}), node.id, prefix + "u", 0.5)
        assert await backend.reservations(prefix) == (prefix + "all",)

    async def test_more_than_the_node_has_is_refused(self, backend, prefix) -> None:
        node = await self.roomy(backend)
        with pytest.raises(ReservationRefusedError, match="never hold it"):
            await backend.reserve(unit({"CPU": amount(node.total, "CPU") + 1}), node.id, prefix + "u", 10)
        assert await backend.reservations(prefix) == ()

    async def test_an_unknown_node_is_refused(self, backend, prefix) -> None:
        with pytest.raises(ReservationRefusedError, match="node is gone"):
            await backend.reserve(unit({"CPU": 1}), "f" * 56, prefix + "u", 10)

    async def test_releasing_what_is_not_there_is_fine(self, backend, prefix) -> None:
        await backend.release(prefix + "never")
        assert await backend.reservations(prefix) == ()

    # -- actors

    async def test_an_actor_has_its_arguments_and_is_on_its_node(self, backend, prefix) -> None:
        node = await self.roomy(backend)
        ref = await self.made(backend, prefix + "a-1_b/ü", args=("tag",), node=node.id)
        assert (await backend.call(ref, "about"))[1] == "tag"
        assert await backend.call(ref, "node") == node.id
        assert await backend.actors(prefix) == (prefix + "a-1_b/ü",)

    async def test_an_actor_has_its_arguments_env_and_node(self, backend, prefix) -> None:
        node = await self.roomy(backend)
        ref = await self.made(backend, prefix + "a", args=("tag",), env=(("MARK", "x"),), node=node.id)
        pid, tag, env = await backend.call(ref, "about")
        assert (tag, env["MARK"]) == ("tag", "x")
        assert pid != os.getpid()
        assert await backend.call(ref, "node") == node.id

    async def test_env_may_name_what_the_node_has(self, backend, prefix) -> None:
        ref = await self.made(backend, prefix + "a", env=(("PYTHONPATH", "/mine:${PYTHONPATH}"),))
        _, _, env = await backend.call(ref, "about")
        assert env["PYTHONPATH"].startswith("/mine:")

    async def test_an_actor_lives_in_its_reservation_and_ends_with_it(self, backend, prefix) -> None:
        node = await self.roomy(backend)
        await backend.reserve(unit({"CPU": 1}), node.id, prefix + "u", 10)
        ref = await self.made(backend, prefix + "a", resources=(("CPU", GRAIN),), reservation=prefix + "u")
        assert await backend.call(ref, "node") == node.id
        waiting = asyncio.ensure_future(backend.call(ref, "wait_for_ever"))
        await backend.release(prefix + "u")
        with pytest.raises(ActorLostError):
            await waiting

    async def test_actors_are_found_by_name_and_listed(self, backend, prefix) -> None:
        ref = await self.made(backend, prefix + "a")
        await backend.call(ref, "about")
        again = await backend.lookup(prefix + "a")
        assert again is not None
        assert (await backend.call(again, "about"))[0] == (await backend.call(ref, "about"))[0]
        assert await backend.actors(prefix) == (prefix + "a",)
        assert await backend.lookup(prefix + "b") is None

    async def test_a_taken_name_is_refused(self, backend, prefix) -> None:
        await backend.call(await self.made(backend, prefix + "a"), "about")
        with pytest.raises(UsageError, match="exists already"):
            await self.made(backend, prefix + "a")

    async def test_who_stops_waiting_for_an_actor_finds_it_listed_or_it_never_comes(self, backend, prefix) -> None:
        spawning = asyncio.create_task(backend.spawn(ActorSpec(prefix + "a", PROBE)))
        await asyncio.sleep(0)  # Let the call begin.
        spawning.cancel()
        listed = await backend.actors(prefix)
        for name in listed:
            await backend.kill(await backend.lookup(name))
        ref = await backend.spawn(ActorSpec(prefix + "later", PROBE))
        await backend.call(ref, "about")

        async def only_the_later_one() -> bool:
            return await backend.actors(prefix) == (prefix + "later",)

        assert await until(only_the_later_one)

    async def test_kill_breaks_calls_and_frees_the_name(self, backend, prefix) -> None:
        ref = await self.made(backend, prefix + "a")
        await backend.call(ref, "about")
        waiting = asyncio.ensure_future(backend.call(ref, "wait_for_ever"))
        await backend.kill(ref)
        await backend.kill(ref)
        with pytest.raises(ActorLostError):
            await waiting

        async def free() -> bool:
            return await backend.actors(prefix) == () and await backend.lookup(prefix + "a") is None

        assert await until(free)

    @pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSEGV])
    async def test_a_signal_from_outside_breaks_the_pending_call(self, backend, prefix, sig) -> None:
        ref = await self.made(backend, prefix + "a")
        pid, *_ = await backend.call(ref, "about")
        waiting = asyncio.ensure_future(backend.call(ref, "wait_for_ever"))
        queued = asyncio.ensure_future(backend.call(ref, "about"))
        await asyncio.sleep(0)
        os.kill(pid, sig)
        for call in (waiting, queued):
            with pytest.raises(ActorLostError) as caught:
                await call
            assert (caught.value.node_lost, caught.value.certain) == (False, True)

    async def test_an_exit_of_its_own_breaks_the_pending_call(self, backend, prefix) -> None:
        ref = await self.made(backend, prefix + "a")
        waiting = asyncio.ensure_future(backend.call(ref, "wait_for_ever"))
        with suppress(ActorLostError):  # On a busy machine the process ends before the answer arrives.
            await backend.call(ref, "end", 3)
        with pytest.raises(ActorLostError):
            await waiting

    async def test_an_exception_comes_back_with_its_traceback(self, backend, prefix) -> None:
        ref = await self.made(backend, prefix + "a")
        with pytest.raises(ActorCallError, match="nothing under that name") as caught:
            await backend.call(ref, "fail")
        assert (caught.value.error_type, caught.value.outcome) == ("LookupError", None)
        assert "contract_actors.py" in caught.value.remote_traceback
        with pytest.raises(ActorCallError) as caught:
            await backend.call(ref, "fail_in_user_code")
        assert caught.value.outcome == Outcome(False, Reason.USER_ERROR, error_type="KeyError", message="'ring'")

    async def test_a_vanished_node_is_said_to_be_lost(self, backend, prefix, doomed_node) -> None:
        node, end = doomed_node()

        async def there() -> bool:
            return any(n.id == node for n in await backend.nodes())

        await until(there)
        ref = await self.made(backend, prefix + "a", node=node)
        pid, *_ = await backend.call(ref, "about")
        waiting = asyncio.ensure_future(backend.call(ref, "wait_for_ever"))
        await asyncio.sleep(0)
        end()
        try:
            with pytest.raises(ActorLostError) as caught:
                await asyncio.wait_for(waiting, 30)
        finally:
            os.kill(pid, signal.SIGKILL)
        assert caught.value.node_lost
        assert not await there()

    # -- devices

    async def test_sharers_of_a_bundle_get_one_device_and_bundles_differ(self, backend, prefix) -> None:
        node = next((n for n in await backend.nodes() if amount(n.free, "NPU") >= 2), None)
        if node is None:
            pytest.skip("no node with two NPUs")
        await backend.reserve(unit({"NPU": 1}, {"NPU": 1}), node.id, prefix + "u", 10)
        shares = [(0, 0.4), (0, 0.6), (1, 0.5), (1, 0.5)]
        refs = [
            await self.made(
                backend, f"{prefix}a{i}", reservation=prefix + "u", bundle=b, resources=(("NPU", round(f * GRAIN)),)
            )
            for i, (b, f) in enumerate(shares)
        ]
        ids = [(await backend.call(ref, "devices"))["NPU"] for ref in refs]
        assert ids[0] == ids[1]
        assert ids[2] == ids[3]
        assert ids[0] != ids[2]

    # -- key-value

    async def test_key_value(self, backend, prefix) -> None:
        kv = backend.kv
        assert await kv.get(prefix + "k") is None
        assert await kv.put_if_absent(prefix + "k", b"1")
        assert not await kv.put_if_absent(prefix + "k", b"2")
        assert await kv.get(prefix + "k") == b"1"
        await kv.put(prefix + "k", b"3")
        await kv.put(prefix + "j", b"")
        assert await kv.get(prefix + "k") == b"3"
        assert await kv.keys(prefix) == (prefix + "j", prefix + "k")
        assert await kv.delete(prefix) == 2
        assert await kv.keys(prefix) == ()

    async def test_put_if_absent_has_one_winner(self, backend, prefix) -> None:
        won = await asyncio.gather(*(backend.kv.put_if_absent(prefix + "k", b"%d" % i) for i in range(8)))
        assert sum(won) == 1
        await backend.kv.delete(prefix)
