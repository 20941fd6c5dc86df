"""Chains without Ray: the keeper's desk, its relays and readers in one process, on loopback."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from dljob.runtime.weights import chain_desk, chain_reader, relay
from dljob.runtime.weights.buckets import checksum
from dljob.runtime.weights.chain import Hop
from dljob.runtime.weights.chain_desk import ChainDesk
from dljob.runtime.weights.chain_reader import read_chain
from dljob.runtime.weights.model import Version
from dljob.runtime.weights.relay import WeightRelay

STATE = [[b"first" * 1000, b"", b"second"], [], [b"third" * 500_000]]
SUMS = tuple(checksum([memoryview(part) for part in bucket]) for bucket in STATE)
SIZES = tuple(tuple(len(part) for part in bucket) for bucket in STATE)


class Answer:
    """In the place of a reference to an answer that comes."""

    def __init__(self, value: Coroutine[Any, Any, Any] | Exception | None) -> None:
        self.done: Future[Any] = Future()
        if isinstance(value, Exception):
            self.done.set_exception(value)
        elif value is not None:  # else none ever comes
            self.task = asyncio.ensure_future(value)
            self.task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[Any]) -> None:
        error = task.exception()
        self.done.set_exception(error) if error else self.done.set_result(task.result())

    def future(self) -> Future[Any]:
        return self.done


class Put:
    """In the place of a reference to a bucket in the store."""

    def __init__(self, bucket: list[bytes]) -> None:
        self.bucket = bucket

    def __await__(self) -> Any:
        yield from asyncio.sleep(0).__await__()
        return [memoryview(part) for part in self.bucket]


class Handle:
    """In the place of an actor's handle: the actor is an object of this process."""

    def __init__(self, actor: WeightRelay, node: str, fault: Callable[[str, str], Any]) -> None:
        self.actor, self.node, self.fault = actor, node, fault

    def __getattr__(self, method: str) -> Any:
        def call(*args: Any) -> Answer:
            fault = self.fault(self.node, method)
            return Answer(getattr(self.actor, method)(*args) if fault == "" else fault)

        return SimpleNamespace(remote=call)


class Fleet:
    """In the place of Ray: it makes relays, and lets some of them fail."""

    def __init__(self) -> None:
        self.made: dict[str, Handle] = {}
        self.faults: dict[tuple[str, str], Any] = {}
        """Node and method -> the error that answers it, or None for no answer."""

    def remote(self, **_: Any) -> Any:
        return lambda cls: SimpleNamespace(options=lambda **options: self._options(cls, options))

    def _options(self, cls: Any, options: dict[str, Any]) -> Any:
        node = options["scheduling_strategy"].node_id

        def made() -> Handle:
            self.made[node] = Handle(cls(), node, lambda *at: self.faults.get(at, ""))
            return self.made[node]

        return SimpleNamespace(remote=made)

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "keeper")


@pytest.fixture
async def fleet(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    made = Fleet()
    monkeypatch.setattr(chain_desk, "ray", made)
    monkeypatch.setattr(chain_desk, "NodeAffinitySchedulingStrategy", lambda node, **_: SimpleNamespace(node_id=node))
    monkeypatch.setattr(chain_desk, "LEAST_BYTES", 0)
    monkeypatch.setattr(chain_desk, "ANSWER_S", 0.3)
    monkeypatch.setattr(relay.ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(relay, "free", lambda: (None, ""))
    monkeypatch.setattr(relay, "CONNECT_S", 2.0)
    yield made
    for handle in made.made.values():
        for each in handle.actor._held.values():
            each.close()
        await asyncio.to_thread(handle.actor._threads.shutdown)


@pytest.fixture
async def desk(fleet: Fleet) -> ChainDesk:
    made = ChainDesk("WeightChannel('p')")
    for node in ("a", "b", "c"):
        made.asked(node)
    return made


def version(number: int = 1, **changes: Any) -> Version:
    refs = [Put(bucket) for bucket in STATE]
    what: dict[str, Any] = {"node": "p", "refs": refs, "sums": SUMS, "sizes": SIZES, **changes}
    return Version(secrets.token_hex(8), number, b"", **what)


async def sent(desk: ChainDesk, one: Version) -> None:
    work = desk.begin(one)
    assert work is not None
    await work


def wait(answer: Answer, until: float) -> Any:
    try:
        return answer.future().result(max(0.0, until - time.monotonic()))
    except TimeoutError:
        raise GetTimeoutError from None


async def received(desk: ChainDesk, one: Version, node: str, *, verify: bool = True) -> Any:
    """What a reader gets by the chain."""
    handle = await desk.relay(one.nonce, node)
    if handle is None:
        return None
    loop = asyncio.get_running_loop()

    def filled(*args: Any) -> Future[Any]:
        async def asked() -> Any:
            return await asyncio.wrap_future(handle.filled.remote(*args).future())

        return asyncio.run_coroutine_threadsafe(asked(), loop)

    def waited(answer: Future[Any], until: float) -> Any:
        return wait(SimpleNamespace(future=lambda: answer), until)  # type: ignore[arg-type]

    there = SimpleNamespace(filled=SimpleNamespace(remote=filled))
    found = await asyncio.to_thread(lambda: read_chain(there, one, waited, "p.receive", verify=verify))
    return found and [[bytes(view) for view in bucket] for bucket in found]


async def test_version_goes_to_each_node_with_readers_and_to_the_keeper(desk, fleet):
    one = version()
    await sent(desk, one)
    assert sorted(fleet.made) == ["a", "b", "c", "keeper", "p"]
    assert [await received(desk, one, node) for node in "abc"] == [STATE] * 3
    assert await desk.relay(one.nonce, "p") is None
    assert await desk.relay(one.nonce, "elsewhere") is None
    assert await desk.relay("unknown", "a") is None
    came = await desk.came(one)
    assert came is not None
    assert [[bytes(view) for view in bucket] for bucket in came] == STATE


async def test_dropped_versions_are_dropped_on_all_nodes(desk, fleet):
    first, second = version(1), version(2)
    await sent(desk, first)
    await sent(desk, second)
    desk.keep([first.nonce, second.nonce])
    handle = await desk.relay(first.nonce, "a")
    desk.keep([second.nonce])
    await asyncio.sleep(0)
    assert list(fleet.made["a"].actor._held) == [second.nonce]
    assert await desk.relay(first.nonce, "a") is None
    assert await handle.actor.filled(first.nonce, 0, 0.0) is None
    assert await desk.came(first) is None


async def test_no_chain_where_the_store_does_as_well(desk, monkeypatch):
    assert desk.begin(version(transport="rdt")) is None
    assert desk.begin(version(node="")) is None
    with monkeypatch.context() as patch:
        patch.setenv("RAY_USE_TLS", "1")
        assert desk.begin(version()) is None
    with monkeypatch.context() as patch:
        patch.setattr(chain_desk, "LEAST_BYTES", 1 << 30)
        assert desk.begin(version()) is None
    lonely = ChainDesk("lonely")
    for node in ("a", "p", ""):
        lonely.asked(node)
    assert lonely.begin(version()) is None
    assert await lonely.came(version()) is None


@pytest.mark.parametrize("fault", [None, RayActorError(), RayError("it fails")])
async def test_node_whose_relay_does_not_answer_is_left_out_and_not_asked_again_at_once(
    desk, fleet, monkeypatch, fault
):
    await sent(desk, version(0))
    fleet.faults["b", "prepare"] = fault
    one = version()
    await sent(desk, one)
    assert [await received(desk, one, node) for node in "abc"] == [STATE, None, STATE]
    first = fleet.made["b"]
    fleet.faults.clear()
    two = version(2)
    await sent(desk, two)
    by = [await received(desk, two, node) for node in "abc"]
    assert by == [STATE, None if fault is None else STATE, STATE]
    assert (fleet.made["b"] is first) is not isinstance(fault, RayActorError)


async def later(event: asyncio.Event, answer: Any) -> Any:
    await event.wait()
    return answer


async def test_only_the_first_version_waits_for_a_relay_that_does_not_start(desk, fleet, monkeypatch):
    monkeypatch.setattr(chain_desk, "START_S", 0.3)
    fleet.faults["b", "ready"] = None
    await sent(desk, version(1))
    monkeypatch.setattr(chain_desk, "START_S", 60.0)
    two = version(2)
    await asyncio.wait_for(sent(desk, two), 30)
    assert [await received(desk, two, node) for node in "abc"] == [STATE, None, STATE]


async def test_version_that_newer_ones_displace_on_its_way_blames_no_node(desk, fleet, caplog):
    go_on = asyncio.Event()
    fleet.faults["b", "forward"] = later(go_on, Hop(received=False))
    one = version(1)
    work = desk.begin(one)
    assert work is not None
    sending = asyncio.create_task(work)
    assert await desk.relay(one.nonce, "a") is not None
    assert desk.begin(version(2)) is None, "two chains at once would share each link"
    desk.keep([])
    go_on.set()
    await sending
    assert (desk._apart, desk._orders, desk._ended) == ({}, {}, set())
    assert "did not come whole" not in caplog.text
    work = desk.begin(version(3))
    assert work is not None
    work.close()


async def test_version_that_was_dropped_while_its_relays_started_is_not_begun(desk, fleet):
    started = asyncio.Event()
    fleet.faults["b", "ready"] = later(started, ("127.0.0.1", 0))
    work = desk.begin(version(1))
    assert work is not None
    sending = asyncio.create_task(work)
    await asyncio.sleep(0)
    desk.keep([])
    started.set()
    await sending
    assert (desk._orders, desk._ended) == ({}, set())


async def test_relay_that_starts_late_is_in_the_next_chain(desk, fleet, monkeypatch):
    monkeypatch.setattr(chain_desk, "START_S", 0.3)
    started = asyncio.Event()
    fleet.faults["b", "ready"] = later(started, ("127.0.0.1", 0))
    one, two = version(1), version(2)
    await sent(desk, one)
    fleet.faults.clear()
    started.set()
    await desk._starts["b"]
    await sent(desk, two)
    assert [await received(desk, one, node) for node in "ab"] == [STATE, None]
    assert [await received(desk, two, node) for node in "ab"] == [STATE, STATE]


async def test_publisher_whose_node_has_no_relay_uses_the_store(desk, fleet):
    await sent(desk, version(1))
    fleet.faults["p", "ready"] = None
    two = version(2)
    await sent(desk, two)
    assert await received(desk, two, "a") is None
    assert await desk.came(two) is None
    assert desk.begin(version(3)) is None


async def test_node_that_breaks_a_chain_is_named_and_in_none_for_a_while_and_then_its_last(desk, fleet, caplog):
    fleet.faults["b", "forward"] = RayActorError()
    one = version()
    await sent(desk, one)
    assert await received(desk, one, "a") == STATE
    assert "version 1 did not come whole to node b; the nodes after it fetch it from the store" in caplog.text
    fleet.faults.clear()
    assert desk._nodes("p") == ["a", "c", "keeper"]
    desk._apart["b"] = time.monotonic()
    two = version(2)
    await sent(desk, two)
    assert desk._orders[two.nonce] == ["p", "a", "c", "keeper", "b"]
    assert await received(desk, two, "b") == STATE


async def test_node_with_too_little_memory_is_left_out(desk, fleet, monkeypatch, caplog):
    monkeypatch.setattr(relay, "free", lambda: (1 << 20, "in this container"))
    one = version()
    await sent(desk, one)
    assert await received(desk, one, "a") is None
    assert "1 MiB are free in this container" in caplog.text


async def test_damaged_bytes_are_found_by_readers_and_by_the_keeper_unless_nothing_is_checked(desk, caplog):
    one = version(sums=(SUMS[0], SUMS[1], 7))
    await sent(desk, one)
    assert await received(desk, one, "a") is None
    assert "version 1 arrived damaged" in caplog.text
    assert await desk.came(one) is None
    assert await received(desk, one, "a", verify=False) == STATE


async def test_reader_whose_relay_says_nothing_goes_to_the_store(desk, fleet, monkeypatch, caplog):
    one = version()
    await sent(desk, one)
    monkeypatch.setattr(chain_reader, "STALL_S", 0.1)
    fleet.faults["a", "filled"] = None
    assert await received(desk, one, "a") is None
    fleet.faults["a", "filled"] = RayActorError()
    assert await received(desk, one, "a") is None
    assert "version 1 did not come by its chain" in caplog.text
    fleet.faults.clear()
    monkeypatch.setattr(chain_reader, "mapped", lambda *_: None)
    assert await received(desk, one, "a") is None
    assert "cannot be mapped" in caplog.text


async def test_relay_that_never_prepared_has_nothing(fleet):
    made = fleet.remote()(WeightRelay).options(scheduling_strategy=SimpleNamespace(node_id="a")).remote().actor
    assert not (await made.forward("unknown", b"", None)).received
    assert await made.filled("unknown", 0, 0.0) is None
    assert await made.ready() == ("127.0.0.1", 0)
    assert await made.pid() > 0
    closed = ("127.0.0.1", 9)
    assert not (await made.source([Put([b"x"])], 64, b"secret", closed)).forwarded
    address = await made.prepare("one", b"secret", 64)
    assert address is not None
    with pytest.raises(OSError, match="secret"):
        await asyncio.to_thread(relay.connected, address, b"other")
    forwarding = asyncio.create_task(made.forward("one", b"secret", closed))
    connection = await asyncio.to_thread(relay.connected, address, b"secret")
    connection.close()
    hop = await forwarding
    assert (hop.received, hop.forwarded) == (False, False)
    assert made._held == {}, "its memory is given up at once"


async def test_versions_on_their_way_count_as_memory_that_is_taken(fleet, monkeypatch, caplog):
    made = fleet.remote()(WeightRelay).options(scheduling_strategy=SimpleNamespace(node_id="a")).remote().actor
    monkeypatch.setattr(relay, "free", lambda: (relay.SPARE + 100, "here"))
    assert await made.prepare("one", b"secret", 64) is not None
    assert await made.prepare("two", b"secret", 64) is None
    made._held["one"].fail("no connection came")
    assert await made.prepare("three", b"secret", 64) is not None


async def test_node_that_can_make_no_memory_or_port_uses_the_store(fleet, monkeypatch, caplog):
    made = fleet.remote()(WeightRelay).options(scheduling_strategy=SimpleNamespace(node_id="a")).remote().actor

    def refuse(*_: Any) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(relay, "Transfer", refuse)
        assert await made.prepare("one", b"secret", 64) is None
    with monkeypatch.context() as patch:
        patch.setattr(relay, "listening", refuse)
        assert await made.prepare("one", b"secret", 64) is None
    assert "no memory can be made for it" in caplog.text
    assert "127.0.0.1 cannot be listened on" in caplog.text
