"""WeightChannel without Ray: what a state becomes on its way, its keeper, and the way of ranks outside of Ray."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from life_kit import context as here

from dljob import CallError, CallTimeoutError, UsageError, WeightChannel, WeightTransport, tasks
from dljob.calls.backlog import QueueCaller
from dljob.runtime.process import context, extensions
from dljob.runtime.process.messages import Call, Reply
from dljob.runtime.process.worker_context import RankCall, held_versions, renew
from dljob.runtime.queues.storage_client import StorageClient
from dljob.runtime.rpc import object_store, storage_actor
from dljob.runtime.weights import buckets as weights_data
from dljob.runtime.weights import channel as weights
from dljob.runtime.weights import keeper as weights_keeper
from dljob.runtime.weights import transport as weight_transport
from dljob.runtime.weights.buckets import PIECE, checksum, flat, load_state
from dljob.runtime.weights.keeper import WeightsKeeper
from dljob.runtime.weights.model import NO_MARK, Mark, Version
from dljob.runtime.weights.transport import TransportCalls
from dljob.runtime.weights.version_lines import line_to

# -- a state and its buckets


def there_and_back(state: Any, bucket: int = 1 << 20) -> tuple[Any, int]:
    index, buckets = flat(state, "test", bucket)
    arrived = [[memoryview(bytes(view)) for view in one] for one in buckets]
    return load_state(index, arrived), len(buckets)


def test_arrays_and_all_else_come_back_and_arrays_are_read_only():
    state = {"w": np.arange(100.0), "more": [np.ones((3, 4), dtype=np.int8), {"step": 7}], "empty": np.zeros(0)}
    found, _ = there_and_back(state)
    assert np.array_equal(found["w"], state["w"])
    assert np.array_equal(found["more"][0], state["more"][0])
    assert found["more"][1] == {"step": 7}
    assert found["empty"].shape == (0,)
    assert not found["w"].flags.writeable


def test_small_buffers_share_a_bucket_and_a_large_one_has_its_own():
    small = [np.zeros(100, dtype=np.uint8) for _ in range(25)]
    assert there_and_back(small, bucket=1000)[1] == 3
    assert there_and_back([small[0], np.zeros(5000, dtype=np.uint8), small[1]], bucket=1000)[1] == 3
    assert there_and_back({"step": 1})[1] == 0


@pytest.mark.torch
def test_tensors_come_back_as_copies_whatever_they_are():
    torch = pytest.importorskip("torch")
    tied = torch.nn.Parameter(torch.randn(4, 3))
    state = {
        "tied": [tied, tied],
        "turned": torch.randn(5, 4).t(),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "negative": torch.randn(3, dtype=torch.complex64).conj().imag,
        "gradient": torch.zeros(2, requires_grad=True),
        "none": torch.empty(0, 3),
    }
    found, _ = there_and_back(state)
    for name in ("turned", "half", "negative", "none"):
        assert torch.equal(found[name], state[name].resolve_neg())
    assert found["tied"][0] is found["tied"][1]
    assert isinstance(found["tied"][0], torch.nn.Parameter)
    assert torch.equal(found["tied"][0], tied)
    assert found["gradient"].requires_grad
    found["half"][0] = 5
    assert state["half"][0] == 1


def test_a_value_that_cannot_be_sent_is_named():
    with pytest.raises(UsageError, match=r"WeightChannel\('p'\).publish: state\['lock'\] cannot be saved"):
        flat({"lock": threading.Lock()}, "WeightChannel('p').publish")


def test_pieces_of_dtensors_are_refused(monkeypatch):
    monkeypatch.setattr(weights_data, "pack", lambda *_: SimpleNamespace(pieces=True))
    with pytest.raises(UsageError, match="the state has DTensors") as told:
        flat({}, "w")
    assert "full_tensor()" in told.value.hint


@settings(max_examples=30, deadline=None)
@given(st.binary(min_size=1, max_size=200), st.data())
def test_a_changed_byte_changes_the_checksum(data, draw):
    at = draw.draw(st.integers(0, len(data) - 1))
    other = bytearray(data)
    other[at] ^= draw.draw(st.integers(1, 255))
    assert checksum([memoryview(data)]) != checksum([memoryview(bytes(other))])


def test_the_checksum_sees_places_and_is_the_same_without_numpy(monkeypatch):
    one, two = bytes(PIECE), b"\1" * PIECE
    bucket = [memoryview(one + two + b"tail")]
    said = checksum(bucket)
    assert said != checksum([memoryview(two + one + b"tail")])
    monkeypatch.setitem(weights_data.sys.modules, "numpy", None)
    assert checksum(bucket) == said


# -- the keeper


class Objects:
    """In the place of Ray's store: what was put, until it is lost."""

    def __init__(self) -> None:
        self.lost = False

    def put(self, value: Any) -> Any:
        store = self

        class Ref:
            def __await__(self):
                if store.lost:
                    raise weights_keeper.RayError("its owner died")
                yield from asyncio.sleep(0).__await__()
                return [memoryview(part) for part in value]

        return Ref()


@pytest.fixture
def objects(monkeypatch) -> Objects:
    made = Objects()
    monkeypatch.setattr(storage_actor, "Guard", lambda *_: None)
    monkeypatch.setattr(storage_actor.storage_actors, "follow_master", lambda *_: None)
    monkeypatch.setattr(object_store.ray, "put", made.put)
    monkeypatch.setattr(weights_keeper, "COPY_AFTER_S", 0)
    return made


def a_keeper() -> WeightsKeeper:
    job: Any = SimpleNamespace(lease_s=30.0)
    return WeightsKeeper(job, "policy")


def published(version: int, *refs: Any, node: str = "n1") -> Version:
    return Version(f"nonce{version}", version, b"index", node, refs)


ME = QueueCaller("trainer/0", 1, "line")


async def offer(held: WeightsKeeper, version: Version, who: QueueCaller = ME) -> Mark:
    """Offer a version; return its mark."""
    taken_at = await held.offer(who, version)
    assert taken_at == held._versions[-1].taken_at
    return held._versions[-1].mark


async def test_the_newest_two_are_kept_and_copied(objects):
    held = a_keeper()
    marks = [await offer(held, published(n, objects.put([b"x"]))) for n in (1, 2, 3)]
    assert [one.version for one in held._versions] == [2, 3]
    found = await held.newer(NO_MARK, 1.0)
    assert (found.version, found.mark) == (3, marks[2])
    assert await held.newer(marks[2], 0) is None
    await asyncio.gather(*held._tasks.tasks)
    assert (await held.newer(NO_MARK, 1.0)).copied
    await held.lost(marks[2])
    assert await held.on_latest() == 3
    assert await held.on_bucket(marks[2], 0) == [b"x"]
    assert await held.on_bucket(marks[0], 0) is None


async def test_a_version_whose_publisher_died_before_the_copy_is_not_handed_out(objects):
    held = a_keeper()
    await held.offer(ME, published(1, objects.put([b"x"])))
    await asyncio.gather(*held._tasks.tasks)
    objects.lost = True
    mark = await offer(held, published(2, objects.put([b"y"])))
    assert await held.on_bucket(mark, 0) is None
    await asyncio.gather(*held._tasks.tasks)
    assert await held.on_latest() == 1


async def test_a_copy_that_breaks_is_told_and_made_again(objects, monkeypatch, caplog):
    monkeypatch.setattr(tasks, "FIRST_S", 0)
    put, breaks = objects.put, [MemoryError("no room for a bucket")]

    def once(value):
        if breaks:
            raise breaks.pop()
        return put(value)

    held = a_keeper()
    mark = await offer(held, published(1, put([b"x"])))
    monkeypatch.setattr(object_store.ray, "put", once)
    await asyncio.gather(*held._tasks.tasks)
    assert held._find_version(mark).copied
    assert "copy of weights ended by an exception; it is started again" in caplog.text


async def test_a_copy_fetches_nothing_to_a_node_without_room(objects, monkeypatch):
    def no_room(_, what):
        raise UsageError(f"{what}full")

    monkeypatch.setattr(object_store, "check_room", no_room)
    monkeypatch.setattr(object_store, "would_come", lambda *_: True)
    held = a_keeper()
    mark = await offer(held, published(1, "a reference that nobody awaits"))
    copying = list(held._tasks.tasks)
    with pytest.raises(UsageError, match="a copy for readers: full"):
        await held._copy(held._find_version(mark))
    for task in copying:
        task.cancel()


async def test_a_copy_for_which_a_full_store_had_no_room_is_left_when_its_version_is_dropped(objects, monkeypatch):
    monkeypatch.setattr(tasks, "FIRST_S", 0)
    tried, go_on = asyncio.Event(), threading.Event()

    def no_room(*_):
        held.loop.call_soon_threadsafe(tried.set)
        go_on.wait(30)
        raise UsageError("/dev/shm of this node is full")

    held = a_keeper()
    held.loop = asyncio.get_running_loop()
    with monkeypatch.context() as full:
        full.setattr(object_store, "check_room", no_room)
        full.setattr(object_store, "would_come", lambda *_: False)
        await held.offer(ME, published(1, objects.put([b"x"])))
        copying = list(held._tasks.tasks)
        await tried.wait()
        for version in (2, 3):
            await held.offer(ME, replace(published(version, objects.put([b"y"])), copied=True))
        go_on.set()
        await asyncio.wait_for(asyncio.gather(*copying), 30)
    assert [one.version for one in held._versions] == [2, 3]


async def test_a_reader_of_a_lost_version_is_not_given_an_older_one(objects):
    held = a_keeper()
    first = await offer(held, published(1, objects.put([b"x"])))
    await asyncio.gather(*held._tasks.tasks)
    lost = await offer(held, published(2, objects.put([b"y"])))
    await held.lost(lost)
    assert await held.newer(lost, 0) is None
    assert (await held.newer(NO_MARK, 0)).mark == first
    restarted = QueueCaller("trainer/0", 2, "line")
    later = await offer(held, Version("another", 1, b"", "n1", (objects.put([b"z"]),)), restarted)
    assert (await held.newer(lost, 0)).mark == later
    assert (await held.newer(("another keeper's", 9, "n"), 0)).mark == later


async def test_publisher_on_a_line_is_told_when_its_buckets_are_needed_no_more(objects):
    held = a_keeper()
    await held.offer(ME, published(1, objects.put([b"x"])))
    first = asyncio.create_task(held.copied("nonce1"))
    await asyncio.gather(*held._tasks.tasks)
    await first
    objects.lost = True  # its publisher has died, and the copy fails
    await held.offer(ME, published(2, objects.put([b"y"])))
    await held.copied("nonce2")
    assert await held.on_latest() == 1


async def test_ranks_of_the_machine_are_answered_by_a_line(objects):
    held = a_keeper()
    line = line_to(await held.line_address())
    assert await held.line_address() == held._lines.address
    mark = await offer(held, Version("nonce1", 1, b"index", copied=True))
    found = await asyncio.to_thread(lambda: line.ask("newer", NO_MARK, 1.0, end=None))
    assert (found[0].version, found[0].mark) == (1, mark)


async def test_only_the_publisher_publishes_newer_versions(objects):
    held = a_keeper()
    mark = await offer(held, published(5))
    assert await offer(held, published(5)) == mark  # it was sent twice
    again = Version("another", 5, b"index")
    assert await held.offer(ME, again) == "version 5 was published already: 5 is not newer"
    taken_at = held._versions[-1].taken_at
    await offer(held, published(6))
    assert await held.offer(ME, published(5)) == taken_at  # and once more, after another thread's
    assert "trainer/0 publishes here" in await held.offer(QueueCaller("trainer/1", 1, "x"), published(7))
    assert isinstance(await held.offer(QueueCaller("trainer/0", 2, "y"), published(1)), float)
    assert "a later process of trainer/0 has begun" in await held.offer(ME, published(8))


# -- ranks outside of Ray


class Loopback:
    """Carries calls to a keeper in a loop of its own."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.numbers: dict[str, tuple[int, ...]] = {}
        self.incarnations: dict[str, int] = {}
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.kept: WeightsKeeper | None = None
        self.damage = 0
        self.away = False

    def send(self, call: RankCall) -> Future[Reply]:
        if self.away:
            failed: Future[Reply] = Future()
            failed.set_exception(CallTimeoutError(f"{call.name}: no answer", role=call.role, rank=0))
            return failed
        return asyncio.run_coroutine_threadsafe(self._send(call), self.loop)

    async def _send(self, call: RankCall) -> Reply:
        self.kept = self.kept or a_keeper()
        answer = await self.kept.invoke(Call("1", 0, 1, call.method, None, "").packed(call.payload))
        reply = answer if isinstance(answer, Reply) else Reply.unpacked(answer)
        if self.damage and call.method == "bucket":
            self.damage -= 1
            return Reply(payload=reply.payload.replace(b"\7", b"\6"))
        return reply

    def ask(self, what: str, args: Any, timeout_s: float) -> Future[Any]:
        raise AssertionError


@pytest.fixture
def line(objects, monkeypatch) -> Iterator[Loopback]:
    made = Loopback()
    context.install(here(world_size=2, peers={"w": 2}, calls=made))
    monkeypatch.setattr(weights, "AGAIN_S", 0.01)
    monkeypatch.setattr(weights, "_newest_versions", {})
    yield made
    context.install(None)
    made.loop.call_soon_threadsafe(made.loop.stop)
    made.thread.join(60)
    made.loop.close()


def test_calls_of_a_publisher_carry_its_versions_until_it_begins_anew(line):
    channel = WeightChannel("policy")
    channel.publish(2, {})
    call = RankCall("r", 0, "f", b"", None, idempotent=False)
    kept_version = line.kept._versions[-1]
    assert call.published == (("policy", (2, kept_version.taken_at)),)
    channel.publish(3, {})
    assert dict(RankCall("r", 0, "f", b"", None, idempotent=False).published)["policy"][0] == 3
    renew(here(), here(incarnation=2))
    assert RankCall("r", 0, "f", b"", None, idempotent=False).published == ()


@pytest.mark.parametrize("second", [1, 2])
def test_of_threads_that_publish_at_once_one_number_is_refused_and_the_higher_one_counts(line, monkeypatch, second):
    notes: list[Any] = []
    context.install(here(world_size=2, peers={"w": 2}, calls=line, note=lambda *note: notes.append(note)))
    is_taken, has_second_ended = threading.Event(), threading.Event()
    publish = weights.ByteCarrier.publish

    def publish_late(carrier: Any, version: Version, buckets: Any) -> float:
        taken_at = publish(carrier, version, buckets)
        if not is_taken.is_set():
            is_taken.set()
            assert has_second_ended.wait(60)
        return taken_at

    monkeypatch.setattr(weights.ByteCarrier, "publish", publish_late)
    first = threading.Thread(target=WeightChannel("policy").publish, args=(1, {}))
    first.start()
    assert is_taken.wait(60)
    if second == 1:
        with pytest.raises(UsageError, match="version 1 was published already: 1 is not newer"):
            WeightChannel("policy").publish(second, {})
    else:
        WeightChannel("policy").publish(second, {})
    has_second_ended.set()
    first.join(60)
    assert dict(RankCall("r", 0, "f", b"", None, idempotent=False).published)["policy"][0] == second
    assert [value for name, value in notes if "policy" in name][-1] == second


def test_a_version_goes_to_one_of_the_threads_that_wait_for_it(line, monkeypatch):
    channel, reader = WeightChannel("policy"), WeightChannel("policy")
    both_have_it = threading.Barrier(2)
    newest = WeightChannel._newest

    def meet(*args: Any) -> Any:
        result = newest(*args)
        if result.version == 1:
            both_have_it.wait(60)
        return result

    monkeypatch.setattr(WeightChannel, "_newest", meet)
    received: list[int] = []
    threads = [threading.Thread(target=lambda: received.append(reader.receive(60)[0])) for _ in range(2)]
    for thread in threads:
        thread.start()
    channel.publish(1, {})
    while not received:
        threads[0].join(0.01)
    channel.publish(2, {})
    for thread in threads:
        thread.join(60)
    assert received == [1, 2]
    assert held_versions["policy"] == 2


@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_version_of_an_earlier_keeper_that_comes_late_is_dropped(line, monkeypatch, is_awaited):
    """A thread of two at one object is late with version 1, which the other one and the next keeper's overtake."""
    channel, reader = WeightChannel("policy"), WeightChannel("policy")
    has_version, may_go_on = threading.Event(), threading.Event()
    newest = WeightChannel._newest
    received: list[int] = []

    def come_late(*args: Any) -> Any:
        fetched_version = newest(*args)
        if not has_version.is_set():
            has_version.set()
            assert may_go_on.wait(60)
        return fetched_version

    def receive() -> None:
        received.append((asyncio.run(reader.aio.receive(60)) if is_awaited else reader.receive(60))[0])

    monkeypatch.setattr(WeightChannel, "_newest", come_late)
    channel.publish(1, {})
    late_thread = threading.Thread(target=receive)
    late_thread.start()
    assert has_version.wait(60)
    assert reader.receive(60)[0] == 1
    line.kept = None  # the next request makes another keeper
    channel.publish(2, {})
    assert reader.receive(60)[0] == 2
    may_go_on.set()
    channel.publish(3, {})
    late_thread.join(60)
    assert received == [3]
    with pytest.raises(TimeoutError, match="nothing new"):
        reader.receive(0)


def test_a_version_that_is_offered_again_to_the_next_keeper_is_received_once(line):
    """The keeper has died with its answer to the publisher, but a reader was faster."""
    reader = WeightChannel("policy")
    carrier = weights.ByteCarrier(reader._keeper)
    version = Version("nonce", 1, flat({}, "test")[0])
    carrier.publish(version, [])
    assert reader.receive(60) == (1, {})
    line.kept = None
    carrier.publish(version, [])
    with pytest.raises(TimeoutError, match="nothing new"):
        reader.receive(0)
    carrier.publish(replace(version, nonce="another", version=2), [])
    assert reader.receive(60) == (2, {})


async def test_a_twin_answers_and_raises_as_its_method(line):
    channel, reader = WeightChannel("policy"), WeightChannel("policy")
    assert await channel.aio.latest() is None
    with pytest.raises(TimeoutError, match=r"nothing new was published in 0\.01 s"):
        await reader.aio.receive(0.01)
    waiting = asyncio.create_task(reader.aio.receive())
    await channel.aio.publish(1, {"step": 1})
    assert await waiting == (1, {"step": 1})
    with pytest.raises(UsageError, match="version 1 was published already"):
        await channel.aio.publish(1, {})
    await channel.aio.publish(2, {"step": 2})
    assert await reader.aio.receive(60) == (2, {"step": 2})
    assert held_versions["policy"] == 2


async def test_a_version_that_a_cancelled_receive_found_is_received_by_the_next(line, monkeypatch):
    channel, reader, loop = WeightChannel("policy"), WeightChannel("policy"), asyncio.get_running_loop()
    channel.publish(1, {"step": 1})
    newest = reader._newest

    def late(*waits: Any) -> Any:
        found = newest(*waits)
        loop.call_soon_threadsafe(receiving.cancel)  # before what was found is on its way
        return found

    with monkeypatch.context() as patch:
        patch.setattr(reader, "_newest", late)
        receiving = asyncio.create_task(reader.aio.receive())
        with pytest.raises(asyncio.CancelledError):
            await receiving
    assert await reader.aio.receive(60) == (1, {"step": 1})


def test_a_published_version_is_received(line):
    channel, reader = WeightChannel("policy"), WeightChannel("policy")
    assert channel.latest() is None
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(reader.receive(60)))
    waiting.start()
    channel.publish(1, {"w": np.full(1000, 7)})
    waiting.join(60)
    assert got[0][0] == 1
    assert (got[0][1]["w"] == 7).all()
    with pytest.raises(TimeoutError, match=r"nothing new was published in 0\.01 s"):
        reader.receive(0.01)
    channel.publish(2, {"step": 2})
    channel.publish(3, {"step": 3})
    assert reader.receive(60) == (3, {"step": 3})
    assert held_versions["policy"] == 3
    assert channel.latest() == 3
    with pytest.raises(UsageError, match=r"WeightChannel\('policy'\).publish: version 3 was published already"):
        channel.publish(3, {})
    line.away = True
    with pytest.raises(TimeoutError, match="no answer"):
        reader.receive(1)


@pytest.mark.parametrize("times", [1, 2])
def test_a_damaged_bucket_is_fetched_once_more(line, times):
    WeightChannel("policy").publish(1, {"w": np.full(1000, 7)})
    line.damage = times
    if times == 1:
        assert (WeightChannel("policy").receive(60)[1]["w"] == 7).all()
    else:
        with pytest.raises(CallError, match=r"a bucket arrived damaged at w/0, twice"):
            WeightChannel("policy").receive(60)


def test_data_that_arrives_damaged_at_the_keeper_is_refused(line, monkeypatch):
    monkeypatch.setattr(weights_keeper, "checksum", lambda _: -1)
    with pytest.raises(UsageError, match="version 1 arrived damaged"):
        WeightChannel("policy").publish(1, {"w": np.ones(3)})


def test_a_version_that_went_while_it_was_fetched_is_asked_for_anew(line, monkeypatch):
    channel, reader = WeightChannel("policy"), WeightChannel("policy")
    channel.publish(1, {"w": np.ones(3)})
    fetch = weights.ByteCarrier.fetch
    gone = [None]
    monkeypatch.setattr(weights.ByteCarrier, "fetch", lambda *args: gone.pop() if gone else fetch(*args))
    assert reader.receive(60)[0] == 1


def test_misuse_of_a_channel_is_told(line):
    with pytest.raises(TypeError, match="must be an integer, got str"):
        WeightChannel("p").publish("1", {})


def test_a_question_that_is_not_asked_any_more_is_left(line):
    asker = StorageClient("weights", "policy", "WeightChannel")
    over, send, sent = iter([False, True]), line.send, list[Any]()
    line.send = lambda call: sent.append(send(call)) or sent[-1]
    assert asker.ask("receive", NO_MARK, 20.0, timeout_s=None, unless=lambda: next(over)) is None
    WeightChannel("policy").publish(1, {})
    assert sent[0].result(60)


@pytest.mark.torch
def test_a_state_on_a_gpu_passes_through_one_bucket_of_memory(monkeypatch):
    """Every tensor counts as one on a GPU here: only the place of the copies differs."""
    torch = pytest.importorskip("torch")
    synchronized = []
    monkeypatch.setattr(weights_data, "_on_gpu", lambda source: isinstance(source, torch.Tensor))
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda device: SimpleNamespace(synchronize=lambda: synchronized.append(device))
    )
    state = {
        "a": torch.arange(7, dtype=torch.float32),
        "b": torch.arange(12, dtype=torch.int64).view(3, 4).t(),
        "none": torch.empty(0),
        "c": torch.arange(5, dtype=torch.bfloat16),
        "lr": 0.1,
    }
    index, made = flat(state, "weights", bucket=40)
    taken = [[bytes(view) for view in bucket] for bucket in made]
    assert len(made) == len(taken) == 3
    assert len(synchronized) == 3, "each bucket is whole before it is sent"
    assert [[bytes(view) for view in bucket] for bucket in made.views_of_all()] == taken
    found = load_state(index, [[memoryview(part) for part in bucket] for bucket in taken])
    assert found["lr"] == 0.1
    assert all(torch.equal(found[name], value) for name, value in state.items() if name != "lr")


# -- a transport of a user


class Dictionary(WeightTransport):
    """Has the versions of this process; its methods do first what a test hooks in."""

    timeout_s = 0.0

    def __init__(self, versions: dict[str, list[bytes]]) -> None:
        self.versions = versions
        self.before_publish = self.before_receive = lambda: None

    def publish(self, version: int, buckets: Any) -> str:
        self.before_publish()
        self.versions[str(version)] = [b"".join(bucket) for bucket in buckets]
        return str(version)

    def receive(self, address: str, sizes: Any) -> Any:
        self.before_receive()
        return self.versions.get(address)


@pytest.fixture
def sides(line: Any) -> tuple[Dictionary, Dictionary, WeightChannel, WeightChannel]:
    versions: dict[str, list[bytes]] = {}
    publisher, reader = Dictionary(versions), Dictionary(versions)
    return publisher, reader, WeightChannel("p", transport=publisher), WeightChannel("p", transport=reader)


def test_of_threads_that_publish_at_once_one_waits_until_the_keeper_has_the_version_of_the_other(sides, monkeypatch):
    """The first waits a moment for the second, whose transport is not to be called meanwhile."""
    publisher, _, sender, receiver = sides
    has_first_begun, has_second_begun, overlaps = threading.Event(), threading.Event(), list[bool]()
    publish = weights.ByteCarrier.publish

    def publish_late(*args: Any) -> float:
        if not has_first_begun.is_set():
            has_first_begun.set()
            overlaps.append(has_second_begun.wait(0.2))
        return publish(*args)

    monkeypatch.setattr(weights.ByteCarrier, "publish", publish_late)
    publisher.before_publish = lambda: has_second_begun.set() if has_first_begun.is_set() else None
    first = threading.Thread(target=sender.publish, args=(1, state(1)))
    first.start()
    assert has_first_begun.wait(60)
    sender.publish(2, state(2))
    first.join(60)
    assert (overlaps, sorted(publisher.versions)) == ([False], ["1", "2"])
    assert (receiver.receive(60)[0], receiver.came_by) == (2, "Dictionary")


def test_an_interrupted_call_that_hangs_is_the_only_one(monkeypatch):
    """Its caller was interrupted: the next call would leave one more thread behind."""
    release, begun, transport = threading.Event(), list[int](), Dictionary({})
    transport.before_publish = lambda: (begun.append(1), release.wait(30))
    calls = TransportCalls("p", transport)
    version = Version("n", 1, b"", sizes=((1,),))

    def interrupt(self, timeout=None):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Future, "result", interrupt)
        with pytest.raises(KeyboardInterrupt):
            calls.publish(version, [[memoryview(b"x")]])
    assert calls.publish(version, [[memoryview(b"x")]]) is version
    assert len(begun) == 1
    release.set()


@pytest.mark.parametrize("first_release", ["publish", "receive"])
def test_of_two_calls_that_hang_at_once_each_keeps_the_next_one_away(monkeypatch, first_release):
    """One object publishes in a thread and receives in another: `publish` is late first, then `receive`."""
    has_receive_begun, running = threading.Event(), dict[str, threading.Thread]()
    releases, beginnings = ({name: threading.Event() for name in ("publish", "receive")} for _ in range(2))
    begun_calls: list[str] = []

    def hang(name: str) -> None:
        begun_calls.append(name)
        running[name] = threading.current_thread()
        beginnings[name].set()
        releases[name].wait(60)

    def begin_both(_: int) -> float:
        if threading.current_thread() is publisher:
            has_receive_begun.wait(60)
        else:
            has_receive_begun.set()
            publisher.join(60)
        return 0.0

    transport = Dictionary({})
    transport.before_publish, transport.before_receive = lambda: hang("publish"), lambda: hang("receive")
    calls, version = TransportCalls("p", transport), Version("n", 1, b"", sizes=((1,),), transport="Dictionary")
    publisher = threading.Thread(target=calls.publish, args=(version, [[memoryview(b"x")]]))
    with monkeypatch.context() as patch:
        patch.setattr(weight_transport, "seconds_for", begin_both)
        publisher.start()
        assert calls.receive(version, None) is None
    assert all(beginning.wait(60) for beginning in beginnings.values())
    releases[first_release].set()
    running[first_release].join(60)
    assert calls.publish(version, [[memoryview(b"x")]]) is version
    assert begun_calls == ["publish", "receive"]
    for name, release in releases.items():
        release.set()
        running[name].join(60)
    transport.before_publish = lambda: None
    monkeypatch.setattr(weight_transport, "seconds_for", lambda _: 60.0)
    assert calls.publish(version, [[memoryview(b"x")]]).address == "1"


def state(number: int) -> dict[str, Any]:
    return {"w": np.full(1000, number), "none": np.zeros(0), "step": number}


def exchange(sender: WeightChannel, receiver: WeightChannel, number: int) -> tuple[str, str]:
    """Publish and receive a version; return by which transports."""
    sender.publish(number, state(number))
    version, found = receiver.receive(60)
    assert (version, found["step"]) == (number, number)
    assert (found["w"] == number).all()
    return sender.came_by, receiver.came_by


def test_an_object_carries_versions_and_others_have_them_from_the_store(sides):
    *_, sender, receiver = sides
    assert sender.ready
    assert sender.came_by == ""
    assert exchange(sender, receiver, 1) == ("Dictionary", "Dictionary")
    late = WeightChannel("p")
    assert late.receive(60)[1]["step"] == 1
    assert late.came_by == "store"


def test_a_reader_by_another_transport_asks_it_for_no_address_that_is_not_its_own(sides, caplog):
    class Other(Dictionary):
        """Fails where it is asked."""

    other = Other({})
    other.before_receive = fail
    assert exchange(sides[2], WeightChannel("p", transport=other), 1) == ("Dictionary", "store")
    assert not caplog.messages


def fail() -> None:
    raise OSError("the share is not mounted")


@pytest.mark.parametrize("side", [0, 1])
def test_a_side_that_raises_is_named_and_the_version_goes_by_the_store(sides, caplog, side):
    publisher, reader, sender, receiver = sides
    publisher.before_publish, reader.before_receive = (fail, lambda: None)[side], (lambda: None, fail)[side]
    assert exchange(sender, receiver, 1) == (("store", "store"), ("Dictionary", "store"))[side]
    method = ("publish", "receive")[side]
    said = f"WeightChannel('p').{method}: version 1 goes by the store: the transport Dictionary: OSError: the share is"
    assert said in caplog.text
    publisher.before_publish = reader.before_receive = lambda: None
    assert exchange(sender, receiver, 2) == ("Dictionary", "Dictionary")


@pytest.mark.parametrize("side", [0, 1])
def test_a_side_that_hangs_is_called_again_only_once_it_has_returned(sides, caplog, monkeypatch, side):
    monkeypatch.setattr(weight_transport, "seconds_for", lambda _: 0.05)
    publisher, reader, sender, receiver = sides
    going_on, hanging_threads = threading.Event(), list[threading.Thread]()

    def hang() -> None:
        hanging_threads.append(threading.current_thread())
        going_on.wait(60)

    publisher.before_publish, reader.before_receive = (hang, lambda: None)[side], (lambda: None, hang)[side]
    by = (("store", "store"), ("Dictionary", "store"))[side]
    assert exchange(sender, receiver, 1) == by
    assert "goes by the store: the transport Dictionary: TimeoutError: it did not return within 0 s" in caplog.text
    assert exchange(sender, receiver, 2) == by
    assert "TimeoutError: an earlier call has not returned yet" in caplog.text
    (hanging_thread,) = hanging_threads
    going_on.set()
    hanging_thread.join(60)
    monkeypatch.setattr(weight_transport, "seconds_for", lambda _: 60.0)
    assert exchange(sender, receiver, 3) == ("Dictionary", "Dictionary")


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ([b"x"], "a bucket came with 1 bytes instead of 8000"),
        ([], "zip() argument 2 is longer"),
        ([bytes(8000)], "version 1 arrived damaged by the transport Dictionary; fetching it from the store"),
        (["text"], "TypeError: memoryview: a bytes-like object is required"),
    ],
)
def test_wrong_bytes_are_fetched_from_the_store(sides, caplog, pieces, said):
    publisher, _, sender, receiver = sides
    sender.publish(1, state(1))
    publisher.versions["1"] = pieces
    assert receiver.receive(60)[1]["w"][0] == 1
    assert receiver.came_by == "store"
    assert said in caplog.text


def test_an_error_of_check_is_raised_where_versions_are_published_and_received(sides, monkeypatch):
    *_, sender, receiver = sides
    for channel in (sender, receiver):
        monkeypatch.setattr(channel._calls, "check", fail)
    with pytest.raises(OSError, match="not mounted"):
        sender.publish(1, {})
    with pytest.raises(OSError, match="not mounted"):
        receiver.receive(60)


# -- by an entry point


MODULES = {
    "broken": "\n1 / 0",
    "lacking": "import module_of_nobody",
    "misspelt": "\n\ndef",
    "number": "Mine = 5",
    "function": "def Mine(channel):\n    return open(f'/no/folder/{channel}')",
    "failing": "from dljob import WeightTransport\nclass Mine(WeightTransport):\n    publish = receive = len\n"
    "    def __init__(self, channel, folder='', **more):\n        self.share = {}[folder]",
    "partial": "from dljob import WeightTransport\nclass Mine(WeightTransport):\n    def publish(self, *_): ...\n"
    "    def __init__(self, channel, *, folder=''): ...",
    "nameless": "from dljob import WeightTransport\nclass Mine(WeightTransport):\n    publish = receive = len",
}
"""Modules of users whose `Mine` is no transport."""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "share-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: share\nVersion: 1.0\n")
    points = {"good": "share_mod:Good", "dict": "share_mod:dict", "gone": "share_mod:Gone", "builtin": "builtins:dict"}
    for name, text in MODULES.items():
        (tmp_path / f"{name}_mod.py").write_text(text)
        points[name] = f"{name}_mod:Mine"
    lines = [f"{name} = {value}\n" for name, value in points.items()]
    (info / "entry_points.txt").write_text(f"[{extensions.WEIGHT_TRANSPORTS}]\n{''.join(lines)}")
    monkeypatch.syspath_prepend(str(tmp_path))

    class Good(Dictionary):
        name = "good"
        channels: ClassVar[dict[str, dict[str, list[bytes]]]] = {}

        def __init__(self, channel: str, *, folder: str = "") -> None:
            super().__init__(self.channels.setdefault(channel, {}))
            self.folder = folder

    module: Any = ModuleType("share_mod")
    module.Good, module.dict = Good, lambda channel: {"channel": channel}
    monkeypatch.setitem(sys.modules, "share_mod", module)


def test_a_transport_is_found_by_its_entry_point_and_gets_its_options(line, package):
    sender, receiver = WeightChannel("p", transport="good", folder="/mnt"), WeightChannel("p", transport="good")
    assert exchange(sender, receiver, 1) == ("good", "good")


@pytest.mark.usefixtures("line", "package")
@pytest.mark.parametrize(
    ("transport", "options", "said", "hint"),
    [
        (
            "nccl",
            {},
            "the transport 'nccl' is not installed; installed: broken, builtin, collective",
            "install the package",
        ),
        ("gone", {}, "'gone' (share_mod:Gone) cannot be made in w/0: AttributeError: module 'share", "['gone'].load()"),
        (
            "good",
            {"fold": 1},
            "cannot be made in w/0: TypeError: package.<locals>.Good",
            "correct share_mod:Good; it is called with the channel's name, and its options: folder",
        ),
        (
            "dict",
            {},
            "(share_mod:dict) cannot be made in w/0: TypeError: no WeightTransport, but {'channel'",
            "share_mod:dict",
        ),
        ("builtin", {}, "(builtins:dict) cannot be made in w/0: ValueError: dictionary", "correct builtins:dict"),
        (
            "number",
            {},
            "(number_mod:Mine) cannot be made in w/0: TypeError: 'int' object is not",
            "correct number_mod:Mine",
        ),
        ("broken", {}, "cannot be made in w/0: ZeroDivisionError: division by zero, at /", "['broken'].load()"),
        ("broken", {}, "/broken_mod.py:2 in <module>", ""),
        ("lacking", {}, "/lacking_mod.py:1 in <module>", "['lacking'].load()"),
        ("misspelt", {}, "/misspelt_mod.py:3 in <module>", "['misspelt'].load()"),
        (
            "function",
            {},
            "/function_mod.py:2 in Mine",
            "/function_mod.py:2 in Mine; it is called with the channel's name, and its options: none",
        ),
        ("failing", {}, "(failing_mod:Mine) cannot be made in w/0: KeyError: '', at /", "its options: folder, more"),
        (
            "failing",
            {"folder": "f", "size": 1},
            "KeyError: 'f', at /",
            "/failing_mod.py:5 in __init__; it is called with",
        ),
        (
            "partial",
            {},
            "abstract class Mine",
            "correct partial_mod:Mine; it is called with the channel's name, and its options: folder",
        ),
        (
            "nameless",
            {},
            "cannot be made in w/0: TypeError: Mine() takes no arguments",
            "called with the channel's name",
        ),
        (Dictionary, {}, "is no WeightTransport, but <class", "pass an object"),
        ("store", {"group": "g"}, "takes no options, not group", "the store has none"),
        (Dictionary({}), {"folder": "/"}, "takes no options, not folder", "an object has its own"),
    ],
)
def test_a_transport_that_cannot_be_used_is_refused_by_name(transport, options, said, hint):
    with pytest.raises(UsageError) as info:
        WeightChannel("p", transport=transport, **options)
    assert info.value.message.startswith("WeightChannel('p'): the transport")
    assert said in info.value.message
    assert hint in info.value.hint
