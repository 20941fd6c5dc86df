"""Streams where they are made: how far ahead a generator runs, how it ends, what its caller hears."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue

import pytest

from dljob import rpc
from dljob.calls.mark import RpcMark, ServiceDescriptor
from dljob.errors import UnreachableError
from dljob.master.state.views import Outcome
from dljob.runtime.process import wire
from dljob.runtime.process.messages import CLOSE, DESCRIBE, PULL, Call, NotRun
from dljob.runtime.rpc import caller_watch, server
from dljob.runtime.rpc.server import RpcServer, describe
from dljob.runtime.rpc.stream_producer import CutOffError, StreamProducer


class Source:
    """A generator, and whether it was closed."""

    def __init__(self, count: int, fails: bool = False) -> None:
        self.count, self.fails, self.closed = count, fails, threading.Event()

    def items(self):
        try:
            yield from range(self.count)
            if self.fails:
                raise ValueError("no more words")
        finally:
            self.closed.set()


def feed_of(source: Source, window: int = 4, patience_s: float = 60.0):
    ended = threading.Event()
    return StreamProducer(source.items(), window, lambda item: b"%d" % item, ended.set, patience_s), ended


def take(feed: StreamProducer, timeout_s: float = 10.0):
    items, over = feed.take(timeout_s)
    return [int(item) for item in items], over


def test_end_of_its_rank_is_not_taken_for_the_end_of_the_stream():
    source = Source(100)
    feed, ended = feed_of(source)
    assert take(feed)[0]
    feed.close(cut=True)
    assert ended.wait(10)
    for _ in range(2):
        with pytest.raises(CutOffError):
            feed.take(10)


def test_stream_whose_items_were_all_taken_is_over_though_its_rank_ends():
    source, got = Source(3), []
    feed, ended = feed_of(source)
    while len(got) < 3:
        got += take(feed)[0]
    assert ended.wait(10)
    feed.close(cut=True)
    assert feed.take(10) == ([], True)


def test_a_stream_without_a_caller_ends_and_tells_a_late_caller():
    source = Source(100)
    feed, ended = feed_of(source, patience_s=0.05)
    assert ended.wait(10)
    assert source.closed.is_set()
    with pytest.raises(TimeoutError, match=r"nobody took an item of the stream for 0\.05 s"):
        feed.take(10)


def test_items_that_wait_after_the_end_are_dropped_too_and_the_error_of_the_generator_stays():
    lapsed, errors = threading.Semaphore(0), []

    def keep(error: BaseException) -> None:
        errors.append(error)
        lapsed.release()

    for source in (Source(2), Source(2, fails=True)):
        feed = StreamProducer(source.items(), 4, lambda _: b"1", lambda: None, 0.05, lapsed=keep)
        assert lapsed.acquire(timeout=10)
        with pytest.raises(type(errors[-1])):
            feed.take(10)
    assert [type(error) for error in errors] == [TimeoutError, ValueError]


def test_patience_counts_from_when_the_caller_was_heard_of_last():
    source, lapsed = Source(4), []
    feed = StreamProducer(source.items(), 1, lambda item: b"%d" % item, lambda: None, 1.5, lapsed=lapsed.append)
    got: list[int] = []
    for _ in range(4):
        got += take(feed)[0]
        time.sleep(0.5)
    assert (got, take(feed)) == ([0, 1, 2, 3], ([], True))
    assert lapsed == []


def test_caller_who_waits_for_an_item_is_there():
    gate = threading.Event()

    def slow():
        gate.wait(10)
        yield 1

    feed = StreamProducer(slow(), 1, lambda _: b"1", lambda: None, 0.2)
    threading.Timer(0.5, gate.set).start()
    assert feed.take(10)[0] == [b"1"]
    assert feed.take(10) == ([], True)


class Talker:
    """A callee."""

    mesh = {"dp": 2}  # noqa: RUF012 - as users write it

    @rpc(stream=True, concurrency=1)
    def count(self, n):
        yield from range(n)

    @rpc(stream=True)
    def not_one(self):
        return 3

    @rpc(dispatch="hash:key")
    def keyed(self, value, key, *, more=0):
        return value


@pytest.fixture
def callee():
    made = RpcServer("w")
    made.open(Talker())
    yield made
    made.close(Outcome(ok=True))


def call(callee: RpcServer, method: str, payload: bytes = b"", **more):
    return callee.answer(Call("1", 0, 1, method, 10.0, "me", **more), payload)


def opened(callee: RpcServer, n: int) -> bytes:
    return wire.load(call(callee, "count", wire.dump(((n,), {}), ""), window=4).payload).encode()


class TestCallee:
    def test_a_card_lists_the_methods_and_their_options(self, callee):
        card = wire.load(call(callee, DESCRIBE).payload)
        assert card == describe(Talker())
        assert set(card.methods) == {"count", "not_one", "keyed"}
        assert card.methods["keyed"] == RpcMark(dispatch="hash:key", parameters=("value", "key"))
        assert card.mesh == {"dp": 2}

    def test_a_descriptor_of_a_class_runs_nothing_of_it_and_methods_of_one_name_are_apart(self):
        class Other(Talker):
            @property
            def model(self):
                raise AssertionError("loaded by a look")

            @rpc
            def keyed(self, value):
                return value

        card = describe(Other())
        assert set(card.methods) == {"count", "not_one", "keyed"}
        assert card.methods["keyed"] == RpcMark(parameters=("value",))
        assert describe(Talker()).methods["keyed"].dispatch == "hash:key"

    def test_a_descriptor_reads_a_device_mesh(self):
        class DeviceMesh:
            mesh_dim_names = ("dp", "tp")
            shape = (2, 4)

        class Other:
            mesh = DeviceMesh()

        assert describe(Other()) == ServiceDescriptor({}, {"dp": 2, "tp": 4})
        assert describe(object()) == ServiceDescriptor()

    def test_asking_a_function_for_its_card_is_refused(self):
        made = RpcServer("w")
        made.open(None)
        assert "only classes have methods" in call(made, DESCRIBE).message

    def test_stream_is_taken_by_its_key_and_forgotten_at_its_end(self, callee):
        key, got = opened(callee, 3), []
        while True:
            items, over = wire.load(call(callee, PULL, key).payload)
            got += [wire.load(item) for item in items]
            if over:
                break
        assert got == [0, 1, 2]
        assert call(callee, PULL, key).refused is NotRun.NOT_AGAIN

    def test_items_whose_answer_was_lost_are_not_passed_over(self, callee):
        key = opened(callee, 100)
        assert call(callee, PULL, key).refused is None
        assert callee.answer(Call("1", 0, 1, PULL, 10.0, "me", again=True), key).refused is NotRun.NOT_AGAIN
        assert opened(callee, 1), "the stream is over: it counts no more"

    def test_stream_that_nobody_took_keeps_but_its_error(self, callee, monkeypatch):
        monkeypatch.setattr(server, "UNHEARD_S", 0.05)
        monkeypatch.setattr(server, "LAPSED", 2)
        keys = []
        for number in range(3):
            hasty = Call(str(number), 0, 1, "count", 0.05, "me", window=4)
            callee.answer(hasty, wire.dump(((3,), {}), ""))
            keys.append(str(number).encode())
            end = time.monotonic() + 10
            while callee._streams and time.monotonic() < end:
                time.sleep(0.01)
        assert callee._streams == {}
        assert call(callee, PULL, keys[0]).refused is NotRun.NOT_AGAIN
        for key in keys[1:]:
            reply = call(callee, PULL, key)
            assert (reply.error_type, reply.refused) == ("TimeoutError", None)
            assert "nobody took an item of the stream for 0.05 s" in reply.message

    def test_concurrency_counts_streams_that_are_open(self, callee):
        key = opened(callee, 100)
        refused = callee.answer(Call("2", 0, 1, "count", 0.05, "me"), wire.dump(((1,), {}), ""))
        assert refused.refused is NotRun.LATE
        call(callee, CLOSE, key)
        assert opened(callee, 1)

    @pytest.mark.parametrize("queued", [False, True], ids=["open", "waits for its turn"])
    def test_stream_of_a_caller_that_ended_gives_its_place_back(self, monkeypatch, queued):
        monkeypatch.setattr(caller_watch, "LOOK_S", 0.01)
        questions: SimpleQueue = SimpleQueue()

        def ask(callers):
            questions.put((callers, answer := Future()))
            return answer

        made = RpcServer("w", ask_ended=ask)
        made.open(Talker())

        def count(id_: str, incarnation: int, timeout_s: float = 10.0):
            said = Call(id_, 0, 1, "count", timeout_s, "trainer/3", window=4, caller_incarnation=incarnation)
            return made.answer(said, wire.dump(((100,), {}), ""))

        with ThreadPoolExecutor(2) as pool:
            assert count("1", 1).refused is None
            callers, answer = questions.get(timeout=10)
            assert callers == [("trainer", 3, 1)]
            waiting = pool.submit(count, "2", 1) if queued else pool.submit(count, "3", 2)
            assert not waiting.done()
            answer.set_result([["trainer", 3, 1]])
            assert waiting.result(10).refused is (NotRun.LATE if queued else None)
        # The next incarnation keeps its stream, and PrimeMaster is asked about it alone.
        assert list(made._streams) == ([] if queued else ["3"])
        if not queued:
            callers, answer = questions.get(timeout=10)
            assert callers == [("trainer", 3, 2)]
            answer.set_exception(UnreachableError("it restarts"))
        made.close(Outcome(ok=True))

    def test_a_streamed_method_that_is_no_generator_is_an_error_of_the_callee(self, callee):
        assert "wanted a generator" in call(callee, "not_one", wire.dump(((), {}), "")).message

    def test_end_of_the_rank_ends_its_streams(self, callee):
        opened(callee, 100)
        callee.close(Outcome(ok=True))
        idle = threading.Thread(target=callee.wait_idle)
        idle.start()
        idle.join(10)
        assert not idle.is_alive()

    def test_caller_that_waits_for_an_item_hears_that_the_rank_ended(self):
        class Slow:
            begun, gate = threading.Event(), threading.Event()

            @rpc(stream=True)
            def count(self, n):
                yield n
                self.begun.set()
                self.gate.wait(10)
                yield n

        made = RpcServer("w")
        made.open(Slow())
        key = opened(made, 7)
        assert wire.load(call(made, PULL, key).payload)[1] is False
        with ThreadPoolExecutor(1) as caller:
            pulled = caller.submit(call, made, PULL, key)
            assert Slow.begun.wait(10)
            made.close(Outcome(ok=False, message="out of memory"))
            Slow.gate.set()
            reply = pulled.result(10)
        assert reply.refused is NotRun.NOT_AGAIN
        assert reply.message == "w/0 ended: out of memory, and the stream with it"

    def test_quiet_call_is_run_and_says_nothing(self, callee):
        reply = call(callee, "keyed", wire.dump((("v", "k"), {}), ""), quiet=True)
        assert (reply.error_type, reply.payload) == ("", b"")


def test_calls_and_replies_come_back_as_they_were():
    from dljob.runtime.process.messages import Reply

    sent = Call("1", 2, 3, "f", None, "me", again=True, quiet=True, window=7)
    assert Call.unpacked(sent.packed(b"args")) == (sent, b"args")
    for reply in (Reply(b"value", idempotent=True), Reply(error_type="E", message="ü", refused=NotRun.LATE)):
        assert Reply.unpacked(reply.packed()) == reply
