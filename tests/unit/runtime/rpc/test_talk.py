"""Calls of whole roles from the handle to the callee's method and back, with threads in the place of processes."""

from __future__ import annotations

import threading
import time
import weakref
from concurrent.futures import Future

import numpy as np
import pytest
from life_kit import context
from rpc_threads import Threads

from dljob import CallTimeoutError, RemoteError, RoleGroup, UsageError, rpc, whole
from dljob.runtime.process import activities, wire
from dljob.runtime.process.context import current_worker, install
from dljob.runtime.process.messages import DESCRIBE, PULL, Reply
from dljob.runtime.process.worker_context import RankCall
from dljob.runtime.rpc import server
from dljob.runtime.rpc.futures import then_in_thread
from dljob.runtime.rpc.sending import CallTarget


class Talker:
    """A rank on a mesh of two by two."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.mesh = {"dp": -1, "tp": 2}
        self.seen: list = []
        self.made = 0
        self.closed = threading.Event()

    @rpc(dispatch="shard", collect="concat", mesh="dp")
    def double(self, batch, factor=2):
        self.seen.append(batch)
        return [factor * x for x in batch]

    @rpc(dispatch="shard", collect="concat", pad="auto")
    def twice(self, batch):
        self.seen.append(batch)
        return [x for x in batch for _ in range(2)]

    @rpc(dispatch="each")
    def own(self, item):
        return self.rank, item

    @rpc(dispatch="round_robin")
    def turn(self):
        return self.rank

    @rpc(dispatch="hash:session")
    def session(self, prompt, session):
        return self.rank

    @rpc(dispatch="owner")
    def mine(self):
        return self.rank

    @rpc(dispatch="least_loaded")
    def wait(self, gate):
        GATES[gate].wait(10)
        return self.rank

    @rpc(dispatch="least_loaded", stream=2)
    def letters(self, n):
        for _ in range(n):
            yield self.rank

    @rpc(collect="as_completed")
    def finish(self, slow):
        if self.rank == slow:
            GATES["slow"].wait(10)
        return self.rank * 10

    @rpc(collect="none")
    def note(self, word):
        self.seen.append(word)
        if word == "bad":
            raise ValueError("nobody hears it")

    @rpc(collect="mean")
    def loss(self):
        return {"loss": float(self.rank)}

    @rpc
    def one_fails(self, bad):
        if self.rank == bad:
            raise ValueError("not me")
        GATES["fail"].wait(10)

    @rpc(dispatch="rank0", stream=4)
    def count(self, n):
        try:
            for i in range(n):
                self.made = i + 1
                yield i
        finally:
            self.closed.set()

    @rpc(stream=True)
    async def everywhere(self, n):
        for i in range(n):
            self.made = i + 1
            yield self.rank, i

    @rpc(dispatch="rank0", stream=True)
    def late(self, *gates):
        for gate in gates:
            GATES[gate].wait(10)
            yield gate

    @rpc(dispatch="rank0", stream=True)
    def breaks(self):
        yield 1
        raise ValueError("out of words")

    @rpc(dispatch="shard", collect="as_completed")
    def breaks_beside(self, xs, bad, gate=None):
        if self.rank == bad:
            raise ValueError("not me")
        if self.rank == 2 and gate:
            GATES[gate].wait(10)
        return xs

    @rpc
    def rows(self, xs, ys=(), name="", table=None):
        return [(x, y, name, table) for x, y in zip(xs, ys or xs, strict=True)]

    @rpc
    def too_few(self, xs):
        return xs[:-1]


GATES: dict[str, threading.Event] = {}


@pytest.fixture
def calls():
    GATES.update({name: threading.Event() for name in ("slow", "fail", "a")})
    made = Threads([Talker(rank) for rank in range(4)])
    install(context(role="caller", rank=1, world_size=2, peers={"talker": 4, "caller": 2}, calls=made))
    yield made
    install(None)
    for gate in GATES.values():
        gate.set()
    made.pool.shutdown()


@pytest.fixture
def group(calls):
    calls.open()
    return RoleGroup("talker")


def test_call_of_a_role_that_is_not_up_waits_with_its_arguments(calls):
    batch = [1, 2]
    call = RoleGroup("talker").call("double", batch)
    batch.append(3)
    assert not call.wait(0.05)
    calls.open()
    assert call.result(10) == [2, 4]
    assert call.done()


def test_a_call_that_waited_for_its_role_is_sent_by_no_thread_that_reads_answers(calls, monkeypatch):
    """Its arguments may be large: pickling and storing them would hold up all other calls of the process."""
    by, send_all = list[str](), calls.send_all

    def noted(requests):
        by.append(threading.current_thread().name)
        return send_all(requests)

    monkeypatch.setattr(calls, "send_all", noted)
    call = RoleGroup("talker").call("double", [1, 2])
    calls.open()
    assert call.result(10) == [2, 4]
    assert by == ["dljob-begin"]


def test_calls_that_waited_for_their_roles_are_sent_in_the_order_in_which_these_are_known():
    order, gate = list[str](), threading.Event()
    first, second = Future[str](), Future[str]()
    later = then_in_thread(second, order.append)
    made = then_in_thread(first, lambda value: gate.wait(10) and order.append(value))
    first.set_result("first")
    second.set_result("second")
    assert not later.done()
    gate.set()
    later.result(10)
    assert made.done()
    assert order == ["first", "second"]


def test_shards_go_to_all_ranks_of_theirs_and_one_answers(group, calls):
    assert group.double([1, 2, 3, 4, 5]) == [2, 4, 6, 8, 10]
    assert [one.seen for one in calls.objects] == [[[1, 2, 3]], [[1, 2, 3]], [[4, 5]], [[4, 5]]]
    assert [(call.rank, call.quiet) for call in calls.sent[1:]] == [(0, False), (1, True), (2, False), (3, True)]
    assert calls.sent[1].payload is calls.sent[2].payload


def test_future_of_a_call_that_has_ended_does_not_keep_its_arguments(group):
    assert group.double([1, 2]) == [2, 4], "what it is need not be asked any more"
    batch = np.arange(6)
    kept = weakref.ref(batch)
    call, direct = group.call("rows", batch, table=[]), group[0].call("double", batch)
    del batch
    assert call.wait(10)
    assert direct.wait(10)
    assert kept() is None


def test_padding_is_seen_by_ranks_and_not_by_the_caller(group, calls):
    assert group.twice(["a", "b", "c"]) == ["a", "a", "b", "b", "c", "c"]
    assert [one.seen for one in calls.objects] == [[["a", "b"]], [["a", "b"]], [["c", "a"]], [["c", "a"]]]


def test_options_of_the_caller_come_before_those_of_the_method(group):
    assert group.options(collect="list").double([1, 2]) == [[2], [4]]
    assert group.double.options(mesh="dp,tp", collect="list")([1, 2, 3, 4]) == [[2], [4], [6], [8]]
    assert group.options(dispatch="rank0").double([1, 2, 3]) == [2, 4, 6]
    assert group[3].double([1, 2, 3]) == [2, 4, 6]
    with pytest.raises(UsageError, match=r"talker.double: mesh='ep': role talker has no axis 'ep'"):
        group.options(mesh="ep").double([1])
    with pytest.raises(UsageError, match=r"options: dispatch='every': unknown"):
        group.options(dispatch="every")
    with pytest.raises(UsageError, match=r"options\(dispatch=...\): unknown option"):
        group[0].options(dispatch="all")


def test_a_whole_argument_reaches_one_rank_as_it_is(group):
    assert group[1].double(whole([1, 2])) == [2, 4]
    assert group.options(dispatch="rank0").double([1, 2], factor=whole(3)) == [3, 6]


def test_options_are_checked_with_what_the_method_says(group):
    assert group.options(pad="auto").double([1, 2, 3]) == [2, 4, 6]
    assert group.options(collect="none").twice([1, 2, 3]) is None
    with pytest.raises(UsageError, match=r"talker.rows: pad='auto' with collect='list'"):
        group.options(pad="auto").rows([1])
    with pytest.raises(UsageError, match=r"options: pad='auto' with collect='sum'"):
        group.options(pad="auto", collect="sum")


@pytest.mark.parametrize("begin_call", [lambda one: one.double, lambda one: lambda arg: one.map("double", arg)])
def test_a_caller_that_waits_until_its_callee_is_up_is_known_to_wait(group, monkeypatch, begin_call):
    known_waits = []

    class Asked(Future):
        def result(self, timeout=None):
            known_waits.extend((wait.kind, wait.name, wait.method) for wait in activities._waits)
            raise UsageError("it is not up")

    monkeypatch.setattr(CallTarget, "ask", lambda *_: Asked())
    with pytest.raises(UsageError, match="it is not up"):
        begin_call(group[0])([1])
    assert known_waits == [("call", "talker/0", "double")]


def test_numbers_of_numpy_are_plain_ones_on_the_wire(group, calls):
    one = group.options(timeout=np.float64(60))[np.int64(1)]
    assert one.double([1]) == [2]
    assert one.rank == 1
    assert [call.method for call in calls.sent] == [DESCRIBE, "double"]
    for call in calls.sent:
        assert [type(call.rank), type(call.timeout_s)] == [int, float]
    assert len(group.call_batch("rows", np.int64(2), [1, 2]).result(10)) == 2


def test_a_wait_of_any_length_is_accepted(group):
    assert group.call("double", [1]).result(float("inf")) == [2]
    assert group.options(timeout=float("inf")).double([1]) == [2]
    with pytest.raises(UsageError, match="timeout='5': wanted seconds, or None"):
        group.call("double", [1]).result("5")


def test_each_owner_turns_and_keys(group):
    assert group.own(["a", "b"]) == [(0, "a"), (2, "b")]
    assert [group.turn() for _ in range(5)] == [0, 1, 2, 3, 0]
    assert group.mine() == 2
    homes = {key: group.session("p", session=key) for key in "abcdefgh"}
    assert len(set(homes.values())) > 1
    assert {key: group.session("q", key) for key in homes} == homes
    assert group.loss() == {"loss": 1.5}


def test_least_loaded_goes_where_nothing_is_under_way(group):
    calls = [group.call("wait", "a") for _ in range(4)]
    time.sleep(0.05)
    GATES["a"].set()
    assert sorted(call.result(10) for call in calls) == [0, 1, 2, 3]


def test_least_loaded_counts_streams_until_they_are_over_or_left(group, calls):
    streams = [group.letters(100) for _ in range(4)]
    assert sorted(next(stream) for stream in streams) == [0, 1, 2, 3]
    streams[2].close()
    free = 6 - sum(next(stream) for stream in streams if stream is not streams[2])
    assert list(group.letters(2)) == [free] * 2
    with group.letters(2) as last:
        assert next(last) == free, "one that came to its end counts no more"


def test_least_loaded_stream_that_is_left_before_it_begins_counts_no_more(calls):
    RoleGroup("talker").stream("letters", 100).close()
    calls.open()
    eventually_free(lambda: sum(current_worker().descriptors.in_flight("talker").values()))


def eventually_free(count) -> None:
    end = time.monotonic() + 10
    while count():
        assert time.monotonic() < end
        time.sleep(0.01)


async def test_answers_come_as_they_are_completed(group):
    coming = group.finish(0)
    assert sorted(next(coming) for _ in range(3)) == [(1, 10), (2, 20), (3, 30)]
    GATES["slow"].set()
    assert list(coming) == [(0, 0)]
    assert len([pair async for pair in await group.call("finish", 2)]) == 4


async def test_answers_that_are_not_wanted_are_errors_all_the_same(group):
    """Rank 1 does its part of the shard for which rank 0 answers."""
    for came in (list(group.breaks_beside([1, 2], None)), [p async for p in group.breaks_beside([1, 2], None)]):
        assert sorted(came) == [(0, [1]), (2, [2])]
    words = "talker/1.breaks_beside raised ValueError: not me"
    with pytest.raises(RemoteError, match=words):
        list(group.breaks_beside([1, 2], 1))
    with pytest.raises(RemoteError, match=words):
        [pair async for pair in group.breaks_beside([1, 2], 1)]


def test_a_call_whose_answer_is_not_wanted_does_not_block(group, calls, caplog):
    assert group.note("word") is None
    assert group.note("bad") is None
    calls.pool.shutdown()
    assert [sorted(one.seen) for one in calls.objects] == [["bad", "word"]] * 4
    assert "talker.note, whose answer nobody waits for, failed: nobody hears it" in caplog.text


def test_first_error_ends_the_wait_for_the_others(group):
    with pytest.raises(RemoteError, match=r"talker/2.one_fails raised ValueError: not me"):
        group.one_fails(2)
    assert not GATES["fail"].is_set()


async def test_calls_are_awaited_in_a_coroutine(group):
    assert await group.call("double", [1, 2]) == [2, 4]
    with pytest.raises(RemoteError, match="not me"):
        await group.call("one_fails", 1)
    assert [x for x, *_ in await group.call_batch("rows", 3, [1, 2, 3])] == [1, 2, 3]


class TestBatches:
    """The forms of DLRover's unified API, and what its own got wrong."""

    def test_five_items_over_four_ranks_are_five_items(self, group):
        got = group.options(mesh="dp,tp").call_batch("rows", 5, list("abcde"))
        assert len(got) == 5
        assert [item[0] for item in got] == list("abcde")
        assert got[-1] == got[4] == got.wait(10)[-1]
        assert got[1:4] == got.result()[1:4]
        assert [item[0] for item in reversed(got)] == list("edcba")
        assert got[::2] == [got[0], got[2], got[4]]
        assert got.done()
        for index in (5, -6):
            with pytest.raises(IndexError):
                got[index]

    def test_an_answer_of_a_rank_is_unpickled_once(self, group, monkeypatch):
        load, read = wire.load, []

        def loaded(data):
            read.append(load(data))
            return read[-1]

        monkeypatch.setattr(wire, "load", loaded)
        got = group.call_batch("rows", 8, list("abcdefgh"))
        assert [item[0] for item in got] == [item[0] for item in got.result()] == list("abcdefgh")
        assert got[0] is got[0]
        assert [len(one) for one in read if isinstance(one, list)] == [4, 4], "the answers of two shards"

    def test_a_batch_with_fewer_items_than_ranks_is_answered(self, group):
        assert [x for x, *_ in group.options(mesh="dp,tp").call_batch("rows", 2, [1, 2])] == [1, 2]
        assert list(group.call_batch("rows", 0, [])) == []

    def test_arguments_by_name_are_split_and_texts_are_not(self, group):
        got = group.call_batch("rows", 4, [1, 2, 3, 4], ys=[5, 6, 7, 8], name="four")
        assert got.result(10) == [(x, x + 4, "four", None) for x in (1, 2, 3, 4)]
        assert group.call_batch("rows", 2, [1, 2], table=whole([9])).result(10) == [(1, 1, "", [9]), (2, 2, "", [9])]

    def test_size_that_is_not_that_of_the_arguments_is_refused(self, group):
        with pytest.raises(UsageError, match="size=3, but the arguments have 2 rows"):
            group.call_batch("rows", 3, [1, 2]).result(10)
        with pytest.raises(UsageError, match="wanted a whole number from 0"):
            group.call_batch("rows", -1, [1, 2])

    def test_items_of_a_rank_that_answered_are_taken_while_others_work(self, group):
        items = iter(group.call_batch("breaks_beside", 2, [1, 2], None, gate="slow"))
        assert next(items) == 1
        GATES["slow"].set()
        assert list(items) == [2]

    @pytest.mark.parametrize("bad", [1, 3])
    def test_error_of_a_rank_that_answers_nothing_is_raised_before_the_items_that_are_not_there(self, group, bad):
        batch = group.call_batch("breaks_beside", 2, [1, 2], bad, gate="slow")
        with pytest.raises(RemoteError, match=f"talker/{bad}.breaks_beside raised ValueError: not me"):
            list(batch)
        assert not GATES["slow"].is_set()

    def test_answer_of_another_length_is_named(self, group):
        with pytest.raises(UsageError, match="was given 1 item and answered 0 items"):
            list(group.call_batch("too_few", 2, [1, 2]))


class TestStreams:
    def test_items_come_in_their_order(self, group):
        assert list(group.count(50)) == list(range(50))

    def test_rank_is_a_window_ahead_of_what_was_used_and_no_more(self, group, calls):
        stream = group.count(1000)
        for expected in range(20):
            assert next(stream) == expected
            assert calls.objects[0].made <= expected + 1 + 4
        stream.close()
        assert calls.objects[0].closed.wait(10)
        assert list(stream) == []

    def test_stream_that_is_left_is_closed(self, group, calls):
        with group.count(1000) as stream:
            assert next(stream) == 0
        assert calls.objects[0].closed.wait(10)

    def test_stream_that_the_collector_finds_is_closed_though_its_thread_holds_a_lock(self, group, calls):
        streams = [group.count(1000)]
        assert next(streams[0]) == 0

        def collect():
            with calls.lock:
                streams.clear()

        collector = threading.Thread(target=collect, daemon=True)
        collector.start()
        collector.join(10)
        assert not collector.is_alive()
        assert calls.objects[0].closed.wait(10)

    def test_stream_that_is_left_before_it_began_is_closed(self, calls):
        RoleGroup("talker").stream("count", 1000).close()
        calls.open()
        assert calls.objects[0].closed.wait(10)

    async def test_items_of_all_ranks_as_they_come(self, group):
        items = [item async for item in group.everywhere(20)]
        assert sorted(items) == [(rank, i) for rank in range(4) for i in range(20)]
        assert [i for rank, i in items if rank == 2] == list(range(20))

    def test_of_a_mesh_one_rank_of_each_shard_gives_items_and_all_make_them(self, group, calls):
        items = list(group.options(mesh="dp").everywhere(20))
        assert sorted(items) == [(rank, i) for rank in (0, 2) for i in range(20)]
        assert [one.made for one in calls.objects] == [20] * 4

    def test_error_comes_after_the_items(self, group):
        stream = group.breaks()
        assert next(stream) == 1
        with pytest.raises(RemoteError, match=r"talker/0.breaks raised ValueError: out of words"):
            next(stream)
        assert list(stream) == []

    def test_stream_whose_items_are_not_there_in_time_is_closed_where_it_runs(self, group, calls, monkeypatch):
        send = calls.send

        def late(call: RankCall) -> Future[Reply]:
            if call.method != PULL:
                return send(call)
            failed: Future[Reply] = Future()
            failed.set_exception(CallTimeoutError("no answer within 1 s", role="talker", rank=call.rank))
            return failed

        monkeypatch.setattr(calls, "send", late)
        stream = group.count(1000)
        with pytest.raises(CallTimeoutError):
            next(stream)
        assert calls.objects[0].closed.wait(10)
        assert list(stream) == []

    def test_item_is_waited_for_in_as_many_pulls_as_it_takes(self, group, calls, monkeypatch):
        monkeypatch.setattr(server, "LOOK_S", 0.01)
        send, pulls = calls.send, []

        def counted(call: RankCall) -> Future[Reply]:
            if call.method == PULL:
                pulls.append(call.started)
                if len(pulls) == 3:
                    GATES["a"].set()
                if call.started > pulls[0]:  # the wait for the next item
                    GATES["slow"].set()
            return send(call)

        monkeypatch.setattr(calls, "send", counted)
        assert list(group.late("a", "slow")) == ["a", "slow"]
        assert len(set(pulls[:3])) == 1, "one wait, with one deadline"
        assert GATES["slow"].is_set()

    def test_wait_for_an_item_ends_at_the_timeout_of_its_first_pull(self, group, calls, monkeypatch):
        monkeypatch.setattr(server, "LOOK_S", 0.01)
        with pytest.raises(RemoteError, match="for an item of talker/0"):
            next(group.options(timeout=0.2).late("a"))
        assert [call.method for call in calls.sent].count(PULL) > 3

    def test_stream_and_call_are_not_mixed_up(self, group):
        with pytest.raises(UsageError, match=r"talker.count: it is a stream\n  use .stream\('count'"):
            group.call("count", 3).result(10)
        with pytest.raises(UsageError, match="it is no stream"):
            list(group.stream("double", [1]))


def test_method_that_is_not_there_is_refused_by_the_callee(group):
    with pytest.raises(RemoteError, match="no @rpc method 'doubel'; did you mean 'double'"):
        group.doubel([1])
