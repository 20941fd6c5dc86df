"""WeightChannel past the store: a collective group of threads, and Ray Direct Transport without Ray.

`tests/ray/data/test_weight_ways.py` has the real ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dljob import CollectiveAbortedError, CollectiveError, DeadlineError, UsageError
from dljob.calls.backlog import QueueCaller
from dljob.runtime.rpc import storage_actor
from dljob.runtime.weights import group_transport, rdt_transport
from dljob.runtime.weights.group_transport import ChannelMember, member
from dljob.runtime.weights.keeper import WeightsKeeper
from dljob.runtime.weights.model import Broadcast, Version
from dljob.runtime.weights.rdt_transport import RdtTransport, forget, usable

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

BUCKETS = [[memoryview(b"one"), memoryview(b"")], [memoryview(b"")], [memoryview(b"two"), memoryview(b"three")]]
PIECES = [b"".join(bucket) for bucket in BUCKETS]
SIZES = [len(piece) for piece in PIECES]


def plain(buckets: Any) -> list[bytes]:
    return [bytes(bucket) for bucket in buckets]


# -- a group


class Groups:
    """Groups of threads: who asks for one waits until all have asked. One lost breaks all operations."""

    def __init__(self, size: int) -> None:
        self.size, self.epoch, self.ended = size, 0, False
        self.receiving: set[int] = set()
        self.meet = threading.Barrier(size, self._made)
        self.lock = threading.Lock()
        self.number = itertools.count()
        self.fails: list[Exception] = []
        self.hook: Callable[[Any], None] = lambda _: None

    def _made(self) -> None:
        self.epoch += 1
        self.number = itertools.count()
        self.lost = threading.Event()
        self.work = threading.Barrier(self.size)
        self.slots: dict[int, Any] = {}

    def __call__(self, name: str) -> Group:
        if self.fails:
            raise self.fails.pop(0)
        try:
            self.meet.wait(60)
        except threading.BrokenBarrierError:
            raise CollectiveError("the test is over") from None
        with self.lock:
            return Group(self, next(self.number))

    def lose(self) -> None:
        self.lost.set()
        self.work.abort()


class Group:
    """One member's."""

    device = "cpu"

    def __init__(self, all_: Groups, rank: int) -> None:
        self.all, self.rank, self.full_name = all_, rank, f"j/{all_.epoch}.1/g"
        self.done = 0
        self.closed = False

    @property
    def whole(self) -> bool:
        return not self.all.lost.is_set()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def broadcast(self, tensor: Any, src: int) -> None:
        """As gloo's: whoever sends may be done before anybody has received."""
        number, self.done = self.done, self.done + 1
        if self.rank == src:
            self.all.hook(self)
            self._alive()
            self.all.slots[number] = tensor.clone()
            return
        self.all.receiving.add(self.rank)
        until(lambda: number in self.all.slots or not self.whole)
        self._alive()
        tensor.copy_(self.all.slots[number])

    def barrier(self) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            self.all.work.wait(60)
        self._alive()

    def _alive(self) -> None:
        if self.closed:
            raise UsageError("group g is closed")
        if not self.whole:
            told = "r/1 was started again"
            raise CollectiveAbortedError(told, group="g", epoch=1, lost=("r/1",), ended=self.all.ended)


class Line:
    """In the place of `StorageClient`: to a keeper in a loop of its own."""

    name = "WeightChannel('policy')"
    caller = QueueCaller("trainer/0", 1, "line")

    def __init__(self, held: WeightsKeeper, loop: asyncio.AbstractEventLoop) -> None:
        self.held, self.loop = held, loop
        self.me = SimpleNamespace(incarnation=1)
        self.spec = SimpleNamespace(recreate=True)
        self.groups: list[Groups] = []

    def ask(self, method: str, *args: Any, timeout_s: float | None, unless: Callable[[], bool] = lambda: False) -> Any:
        future = asyncio.run_coroutine_threadsafe(getattr(self.held, f"on_{method}")(*args), self.loop)
        while not unless():
            with contextlib.suppress(TimeoutError):
                return future.result(0.01)
        future.cancel()
        return None

    def end(self) -> None:
        """End the members, then the loop that serves them."""
        self.me.incarnation = 9
        for groups in self.groups:
            groups.meet.abort()
        for thread in threading.enumerate():
            if thread.name.startswith("dljob-weights-"):
                thread.join(60)
        self.loop.call_soon_threadsafe(self.loop.stop)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    monkeypatch.setattr(storage_actor, "Guard", lambda *_: None)
    monkeypatch.setattr(storage_actor.storage_actors, "follow_master", lambda *_: None)
    monkeypatch.setattr(storage_actor.storage_actors, "follow_master", lambda *_: None)
    monkeypatch.setattr(group_transport, "AGAIN_S", 0.01)
    monkeypatch.setattr(group_transport, "REPEAT_S", 0.05)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    job: Any = SimpleNamespace(lease_s=30.0)
    made = Line(WeightsKeeper(job, "policy"), loop)
    monkeypatch.setattr(group_transport, "current_worker", lambda: made.me)
    monkeypatch.setattr(group_transport, "group_spec", lambda *_: made.spec)
    yield made
    made.end()
    thread.join(60)
    loop.close()
    group_transport._members.clear()


def members(held: Line, monkeypatch: pytest.MonkeyPatch, count: int = 3) -> tuple[Groups, list[ChannelMember]]:
    groups = Groups(count)
    held.groups.append(groups)
    monkeypatch.setattr(group_transport, "CollectiveGroup", groups)
    line: Any = held
    made = [ChannelMember(line, "g") for _ in range(count)]
    for each in made:
        each.start()
    until(lambda: all(each.ready for each in made))
    return groups, made


def until(true: Callable[[], Any]) -> None:
    for _ in range(6000):
        if true():
            return
        threading.Event().wait(0.01)
    raise AssertionError("not within 60 s")


def test_each_byte_comes_to_all_members_though_nobody_reads_yet(held, monkeypatch):
    _, (first, *others) = members(held, monkeypatch)
    all_pieces = [[bytes([number] * size) for size in SIZES] for number in range(3)]
    addresses = [first.publish(n, [[memoryview(piece)] for piece in pieces]) for n, pieces in enumerate(all_pieces)]
    for each in others:
        assert [plain(each.receive(address, SIZES)) for address in addresses[1:]] == all_pieces[1:]
    assert [buckets is None for buckets in others[0]._taken.values()] == [True, False, False]


def test_a_lost_member_is_named_and_the_next_version_goes_by_a_new_group(held, monkeypatch):
    groups, (first, *others) = members(held, monkeypatch)
    before = first.publish(1, BUCKETS)
    until(lambda: all(any(each._taken.values()) for each in others))  # its sender may be done before they are
    groups.hook = lambda _: groups.lose()
    with pytest.raises(CollectiveAbortedError, match="r/1 was started again"):
        first.publish(2, BUCKETS)
    groups.hook = lambda _: None
    until(lambda: groups.epoch == 2 and all(each.ready for each in (first, *others)))
    assert plain(others[0].receive(before, SIZES)) == PIECES  # it came, and is not taken back
    assert others[0].receive("j/1.1/g other", SIZES) is None  # nobody waits for what a broken group had
    assert plain(others[1].receive(first.publish(3, BUCKETS), SIZES)) == PIECES


def test_a_member_out_of_memory_says_so_and_enters_its_group_again(held, monkeypatch, caplog):
    monkeypatch.setattr(group_transport, "OWN_PAUSES_S", (0.01, 0.02))
    groups, (first, *others) = members(held, monkeypatch)
    receive, errors = Group.broadcast, [RuntimeError("CUDA out of memory")] * 3

    def broadcast(self: Group, tensor: Any, src: int) -> None:
        if self.rank != src and errors:
            groups.lose()  # the others notice that a member has left
            raise errors.pop()
        receive(self, tensor, src)

    monkeypatch.setattr(Group, "broadcast", broadcast)
    epoch = 1
    while errors:
        with pytest.raises(CollectiveAbortedError):
            first.publish(epoch, BUCKETS)
        epoch += 1
        until(lambda epoch=epoch: groups.epoch == epoch and all(each.ready for each in (first, *others)))
    assert "this rank has left group g, and enters it again in 0.01 s: RuntimeError: CUDA out of memory" in caplog.text
    after = first.publish(9, BUCKETS)
    assert [plain(each.receive(after, SIZES)) for each in others] == [PIECES] * 2
    first.check()


def test_a_group_is_closed_once_nobody_publishes_by_it(held, monkeypatch):
    groups, (first, *_) = members(held, monkeypatch)

    def loses(group: Group) -> None:
        groups.lose()
        until(lambda: not first.ready)
        threading.Event().wait(0.3)
        assert not group.closed

    groups.hook = loses
    with pytest.raises(CollectiveAbortedError):
        first.publish(1, BUCKETS)
    groups.hook = lambda _: None
    until(lambda: groups.epoch == 2 and first.ready)


def test_a_lost_member_is_raised_where_the_group_says_fail(held, monkeypatch):
    held.spec.recreate = False
    groups, (first, *others) = members(held, monkeypatch)

    def loses(_: Group) -> None:
        until(lambda: len(groups.receiving) == len(others))  # else a member finds it lost before it enters
        groups.lose()

    groups.hook = loses
    with pytest.raises(CollectiveAbortedError):
        first.publish(1, BUCKETS)
    until(lambda: not first.ready)
    for each in (first, *others):
        until(lambda each=each: each._failure)
        with pytest.raises(CollectiveAbortedError, match="r/1 was started again"):
            each.check()
    assert first.publish(2, BUCKETS) is None


def test_a_reader_that_ended_is_no_loss_where_the_group_says_fail(held, monkeypatch):
    held.spec.recreate = False
    groups, (first, *_) = members(held, monkeypatch)
    groups.ended = True
    groups.hook = lambda _: groups.lose()
    with pytest.raises(CollectiveAbortedError):
        first.publish(1, BUCKETS)
    groups.fails = [CollectiveError("r/1 has ended")] * 3
    until(lambda: first._failure)
    first.check()
    assert first.publish(2, BUCKETS) is None


def test_an_announcement_that_died_with_its_keeper_is_made_again(held, monkeypatch):
    _, (first, *others) = members(held, monkeypatch)
    once = iter([None])
    announced = WeightsKeeper.on_announce

    async def loses(self: Any, *args: Any) -> None:
        await announced(self, *args)
        for nothing in once:
            self._coming = nothing

    monkeypatch.setattr(WeightsKeeper, "on_announce", loses)
    address = first.publish(1, BUCKETS)
    assert all(plain(each.receive(address, SIZES)) == PIECES for each in others)


def test_versions_go_by_the_store_without_a_group(held, monkeypatch, caplog):
    groups = Groups(1)
    groups.fails = [DeadlineError("r/1 has not called"), CollectiveError("the job is ending")]
    monkeypatch.setattr(group_transport, "CollectiveGroup", groups)
    line: Any = held
    alone = ChannelMember(line, "g")
    assert alone.publish(1, BUCKETS) is None
    alone.start()
    until(lambda: alone._failure)
    assert "goes by the store: r/1 has not called" in caplog.text
    assert "goes by the store from now on: the job is ending" in caplog.text
    alone.check()
    assert not alone.ready


def test_a_group_is_for_one_channel_and_shared_by_its_objects(held, monkeypatch):
    monkeypatch.setattr(ChannelMember, "start", lambda _: None)
    assert member("policy", "g") is member("policy", group="g")
    with pytest.raises(UsageError, match=r"WeightChannel\('g'\): group g carries WeightChannel\('policy'\) already"):
        member("g")
    held.me.incarnation = 5
    assert member("policy", "g").incarnation == 5


async def test_announcements_are_of_who_may_publish(held):
    kept = held.held
    await kept.on_publish(QueueCaller("trainer/0", 1, "x"), Version("n", 5, b"", sums=()), [])
    with pytest.raises(UsageError, match="trainer/0 publishes here, not trainer/1"):
        await kept.on_announce(QueueCaller("trainer/1", 1, "x"), 6, Broadcast("g", "n6", 0, ()))
    await kept.on_announce(QueueCaller("trainer/0", 1, "x"), 6, Broadcast("g", "n6", 0, ()))
    await kept.on_announce(QueueCaller("trainer/0", 1, "x"), 5, Broadcast("g", "n6", 0, ()))  # the same again
    assert (await kept.on_announced("g", "", 0.0)).nonce == "n6"
    assert await kept.on_announced("g", "n6", 0.0) is None
    assert await kept.on_announced("other", "", 0.0) is None


# -- Ray Direct Transport


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gloo", "GLOO is two-sided: .* ray.put refuses it"),
        ("nccl", "NCCL is two-sided"),
        ("cuda_ipc", "CUDA_IPC takes tensors of cuda only"),
        ("rdma", "Ray has no tensor transport 'rdma'"),
    ],
)
def test_a_collective_group_that_cannot_carry_a_channel_is_refused_with_the_reason(name, why):
    with pytest.raises(UsageError, match=why) as told:
        usable("WeightChannel('p')", name)
    assert told.value.hint


def test_nixl_that_is_not_there_is_told_with_what_to_install(monkeypatch):
    from ray.experimental.rdt import util

    def absent(*_: Any) -> None:
        raise ImportError("No module named 'nixl'")

    monkeypatch.setattr(util.get_tensor_transport_manager("NIXL"), "get_nixl_agent", absent)
    with pytest.raises(UsageError, match="NIXL cannot be used here: No module named 'nixl'") as told:
        usable("WeightChannel('p')", "nixl")
    assert "pip install nixl" in told.value.hint
    monkeypatch.setattr(util.get_tensor_transport_manager("NIXL"), "get_nixl_agent", lambda: None)
    assert usable("WeightChannel('p')", "nixl") == "NIXL"
    monkeypatch.setattr(rdt_transport.importlib, "import_module", absent)
    with pytest.raises(UsageError, match="rdt needs torch"):
        usable("WeightChannel('p')", "nixl")


@pytest.fixture
def way(monkeypatch: pytest.MonkeyPatch) -> RdtTransport:
    """Objects are the references to themselves."""
    calls = SimpleNamespace(keeper=lambda _: None)
    monkeypatch.setattr(rdt_transport, "current_worker", lambda: SimpleNamespace(calls=calls))
    monkeypatch.setattr(rdt_transport, "usable", lambda _, name: name.upper())
    monkeypatch.setattr(rdt_transport.ray, "put", lambda value, _tensor_transport: value)
    monkeypatch.setattr(rdt_transport.ray, "get", lambda ref: ref)
    monkeypatch.setattr(rdt_transport, "forget", lambda _: None)
    handed: dict[str, Any] = {}

    def ask(method: str, nonce: str, *refs: Any) -> Any:
        return handed.update({nonce: refs[0]}) if method == "hand" else handed.get(nonce)

    monkeypatch.setattr(rdt_transport, "RayCarrier", lambda *_: SimpleNamespace(ask=ask))
    return RdtTransport("p", "nixl")


def test_copies_are_put_and_come_back_byte_by_byte(way):
    changing = bytearray(b"three")
    buckets = [*BUCKETS[:2], [memoryview(b"two"), memoryview(changing)]]
    address = way.publish(1, buckets)
    changing[:] = b"later"
    assert plain(way.receive(address, SIZES)) == PIECES
    assert way.receive("other", SIZES) is None


@pytest.mark.parametrize("is_late_error", [False, True])
def test_notes_of_a_version_stay_while_another_thread_fetches_it(way, monkeypatch, is_late_error):
    """Ray notes tensors once for a process, and cannot fetch or wait for those of which it has no note."""
    notes, is_fetching, may_go_on = set[str](), threading.Event(), threading.Event()
    addresses = [way.publish(number, [[memoryview(b"one")]]) for number in (1, 2)]
    ask, late_results = way._ask, list[Any]()

    def ask_and_note(method: str, address: str) -> Any:
        notes.add(address)
        return [SimpleNamespace(address=address, value=ask(method, address)[0])]

    def fetch(ref: Any) -> Any:
        if threading.current_thread() is late_thread:
            is_fetching.set()
            assert may_go_on.wait(60)
        assert ref.address in notes
        if is_late_error and threading.current_thread() is late_thread:
            raise OSError("the publisher does not answer")
        return ref.value

    def receive_late() -> None:
        with contextlib.suppress(OSError):
            late_results.append(plain(way.receive(addresses[0], [3])))

    monkeypatch.setattr(way, "_ask", ask_and_note)
    monkeypatch.setattr(rdt_transport.ray, "get", fetch)
    monkeypatch.setattr(rdt_transport, "forget", lambda refs: notes.difference_update(ref.address for ref in refs))
    late_thread = threading.Thread(target=receive_late)
    late_thread.start()
    assert is_fetching.wait(60)
    assert [plain(way.receive(address, [3])) for address in addresses] == [[b"one"]] * 2
    assert notes == {addresses[0]}
    may_go_on.set()
    late_thread.join(60)
    assert late_results == ([] if is_late_error else [[b"one"]])
    assert not notes


def test_direct_transport_is_not_for_scripts(monkeypatch):
    monkeypatch.setattr(rdt_transport, "current_worker", lambda: SimpleNamespace(calls=None))
    with pytest.raises(UsageError, match="rdt needs a rank in Ray's own process") as told:
        RdtTransport("p")
    assert "collective serve scripts" in told.value.hint


def test_notes_of_borrowed_tensors_go_and_those_of_ones_own_stay(monkeypatch):
    notes = {"aa": 1, "bb": 2}
    store = SimpleNamespace(has_object=lambda name: name == "bb")
    global_worker = pytest.importorskip("ray._private.worker").global_worker
    manager = SimpleNamespace(_managed_rdt_metadata=notes, _lock=threading.Lock(), rdt_store=store)
    forget([SimpleNamespace(hex=lambda: "aa")])  # a process that has none
    monkeypatch.setattr(global_worker, "_rdt_manager", manager, raising=False)
    forget([SimpleNamespace(hex=lambda name=name: name) for name in ("aa", "bb", "cc")] + [None])
    assert notes == {"bb": 2}


async def test_the_keeper_holds_references_as_long_as_the_version(held, monkeypatch):
    kept, gone = held.held, list[Any]()
    monkeypatch.setattr("dljob.runtime.weights.keeper.forget", gone.append)
    for number in (1, 2, 3):
        await kept.hand(f"n{number}", [number])
        made = Version(f"nonce{number}", number, b"", transport="rdt", address=f"n{number}")
        await kept.on_publish(QueueCaller("t/0", 1, "x"), made, [])
    assert gone == [[1]]
    assert await kept.handed("n1") is None
    assert await kept.handed("n3") == [3]


async def test_the_keeper_drops_references_of_a_version_that_is_refused_or_lost(held, monkeypatch):
    """And no others: those of the publisher's next version are there before it is offered."""
    keeper, publisher, dropped_refs = held.held, QueueCaller("t/0", 1, "x"), list[Any]()
    monkeypatch.setattr("dljob.runtime.weights.keeper.forget", dropped_refs.extend)
    versions = [Version(f"nonce{number}", number, b"", transport="rdt", address=f"n{number}") for number in range(4)]
    for number in range(4):
        await keeper.hand(f"n{number}", [number])
    await keeper.offer(publisher, versions[2])
    await keeper.hand("n3", [3])
    assert dropped_refs == [0, 1, 3]  # `hand` of these broke, since their publisher has offered a version after them
    await keeper.hand("n1", [1])
    assert await keeper.offer(publisher, versions[1]) == "version 2 was published already: 1 is not newer"
    await keeper.hand("n0", [0])
    assert "t/0 publishes here" in await keeper.offer(QueueCaller("t/1", 1, "x"), versions[0])
    assert dropped_refs == [0, 1, 3, 1, 0]
    await keeper.lost(keeper._versions[0].mark)
    assert dropped_refs == [0, 1, 3, 1, 0, 2]
    assert [await keeper.handed(f"n{number}") for number in range(4)] == [None, None, None, [3]]


def test_a_version_says_which_process_published_it(monkeypatch):
    # Its guard would end this process, the tests', when the lease is over.
    monkeypatch.setattr(storage_actor, "Guard", lambda *_: None)
    monkeypatch.setattr(storage_actor.storage_actors, "follow_master", lambda *_: None)

    async def publish() -> Version | None:
        job: Any = SimpleNamespace(lease_s=30.0)
        keeper = WeightsKeeper(job, "policy")
        await keeper.on_publish(QueueCaller("t/0", 3, ""), Version("n", 7, b""), [])
        return await keeper.version(7)

    found = asyncio.run(publish())
    assert found is not None
    assert found.by == ("t/0", 3)
