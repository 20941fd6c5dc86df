"""Streams that go on at another callee: from the handle to the callee's generator, with threads for processes."""

from __future__ import annotations

import re
import threading
import time

import pytest
from life_kit import context
from rpc_fleet import Fleet

from dljob import CallError, CallTimeoutError, PeerLostError, RemoteError, RoleGroup, UsageError, rpc, whole
from dljob.calls.resumption import StreamSegment
from dljob.runtime.process.context import current_worker, install
from dljob.runtime.process.messages import CLOSE
from dljob.runtime.rpc import resumed
from dljob.runtime.rpc.resumed import ResumedCall, code_of
from dljob.runtime.rpc.stream_producer import StreamProducer


class Engine:
    """Yields what follows from the prompt and the items before."""

    def __init__(self, rank: int, incarnation: int) -> None:
        self.who = rank, incarnation
        self.made = 0
        self.began: list[list[int]] = []
        self.closed = threading.Event()

    def _tokens(self, prompt, count, received):
        self.began.append(received)
        text = [*prompt, *received]
        try:
            while len(text) < len(prompt) + count:
                text.append(sum(text) * 31 % 997)
                self.made += 1
                yield text[-1]
        finally:
            self.closed.set()

    @rpc(dispatch="round_robin", stream=4, resume="prefix", timeout=30)
    def tokens(self, prompt, count, *, received):
        yield from self._tokens(prompt, count, received)

    @rpc(dispatch="least_loaded", stream=4, resume="prefix", timeout=None)
    async def busy(self, prompt, count, *, received):
        for token in self._tokens(prompt, count, received):
            yield token

    @rpc(dispatch="rank0", stream=4, resume="prefix")
    def first(self, prompt, count, *, received):
        yield from self._tokens(prompt, count, received)

    @rpc(stream=4, resume="prefix")
    def everywhere(self, count, *, received):
        for number in range(len(received), count):
            yield self.who[0], number

    @rpc(dispatch="each", stream=4, resume="prefix")
    def own(self, start, *, received):
        for number in range(len(received), 10):
            yield start + number

    @rpc(dispatch="round_robin", stream=4, resume="prefix")
    def awkward(self, *, received):
        for number in range(len(received), 10):
            yield threading.Lock() if number == 5 else number

    @rpc(dispatch="round_robin", stream=4)
    def plain(self, count):
        yield from range(count)


class Caching(Engine):
    """An engine with a cache for each stream, which it hands over."""

    def __init__(self, rank: int, incarnation: int) -> None:
        super().__init__(rank, incarnation)
        self.weights_version = 1
        self.caches: list[object] = []
        self.fails = False

    @rpc(dispatch="round_robin", stream=4, resume="prefix", hand_over="cache_of")
    def tokens(self, prompt, count, *, received, state):
        self.caches.append(state)
        yield from self._tokens(prompt, count, received)

    def cache_of(self, prompt, count, *, received):
        assert not self.closed.is_set(), "the generator is still there"
        if self.fails:
            raise ValueError("no cache")
        return {"prompt": prompt, "tokens": received}

    @rpc(dispatch="round_robin", stream=4, resume="prefix", hand_over="cache_off")
    def misspelt(self, *, received, state):
        yield state


class Stepped(Engine):
    """A role whose ranks work in step."""

    def __init__(self, rank: int, incarnation: int) -> None:
        super().__init__(rank, incarnation)
        self.mesh = {"dp": -1, "tp": 2}

    @rpc(stream=4, resume="prefix", mesh="dp")
    def everywhere(self, count, *, received):
        yield from range(len(received), count)


PROMPT = [3, 5]


def expected(count: int) -> list[int]:
    text = list(PROMPT)
    for _ in range(count):
        text.append(sum(text) * 31 % 997)
    return text[len(PROMPT) :]


def fleet_of(kind: type, ranks: int = 2) -> Fleet:
    made = Fleet(kind, ranks)
    install(context(role="caller", peers={"talker": ranks, "caller": 1}, calls=made))
    return made


@pytest.fixture(autouse=True)
def no_channels(monkeypatch):
    monkeypatch.setattr(resumed, "held_versions", {})


@pytest.fixture
def fleet():
    made = fleet_of(Engine)
    yield made
    install(None)
    made.close()


@pytest.fixture
def group(fleet) -> RoleGroup:
    return RoleGroup("talker")


def test_an_undisturbed_stream_is_of_one_segment(group, fleet):
    stream = group.tokens(PROMPT, 50)
    assert list(stream) == expected(50)
    assert stream.segments == (StreamSegment("talker/0", 1, {}, 0, 50, code_of(Engine)),)
    assert fleet[0].began == [[]]


def test_a_killed_callee_costs_what_was_under_way_and_no_item(group, fleet):
    stream = group.tokens(PROMPT, 100)
    got = [next(stream) for _ in range(10)]
    fleet.kill(0)
    got += stream
    assert got == expected(100)
    first, second = stream.segments
    assert (first.callee, second.callee) == ("talker/0", "talker/1")
    assert first.count + second.count == 100
    assert second.first == first.count
    assert fleet[0].made - first.count <= 4 + 1
    assert fleet[1].began == [expected(first.count)]


async def test_a_coroutine_is_not_held_up_by_a_loss(group, fleet):
    stream = group.busy(PROMPT, 100)
    got = [await anext(stream) for _ in range(10)]
    fleet.kill(int(stream.segments[0].callee[-1]))
    got += [token async for token in stream]
    assert got == expected(100)


async def test_items_tell_position_version_and_callee(group, fleet):
    stream = group.tokens(PROMPT, 40)
    items = [next(stream.items()) for _ in range(10)]
    fleet.kill(0)
    items += [item async for item in stream.items()]
    assert [item.value for item in items] == expected(40)
    assert [item.position for item in items] == list(range(40))
    assert {item.callee for item in items} == {"talker/0", "talker/1"}
    with pytest.raises(UsageError, match="only a stream that resumes"):
        next(group[1].plain(3).items())


def test_a_stream_of_one_rank_waits_for_its_next_process(group, fleet):
    for stream in (group[0].tokens(PROMPT, 60), group.first(PROMPT, 60)):
        got = [next(stream) for _ in range(10)]
        fleet.kill(0)
        threading.Timer(0.1, fleet.revive, (0,)).start()
        assert got + list(stream) == expected(60)
        assert {segment.callee for segment in stream.segments} == {"talker/0"}
        assert len(stream.segments) == 2


def test_with_no_other_callee_ready_it_waits_for_the_one_that_it_lost(group, fleet):
    stream = group.tokens(PROMPT, 60)
    got = [next(stream) for _ in range(10)]
    fleet.kill(1)
    fleet.kill(0)
    threading.Timer(0.1, fleet.revive, (0,)).start()
    assert got + list(stream) == expected(60)


def test_each_rank_of_a_stream_of_all_goes_on_by_itself(group, fleet):
    stream = group.everywhere(30)
    got = [next(stream) for _ in range(10)]
    fleet.kill(1)
    fleet.revive(1)
    got += stream
    assert [number for rank, number in got if rank == 0] == list(range(30))
    assert [number for rank, number in got if rank == 1] == list(range(30))
    assert sorted(group.own([10, 20])) == [*range(10, 20), *range(20, 30)]


def test_a_caller_may_bring_the_items_that_it_has(group, fleet):
    stream = group.tokens(PROMPT, 20, received=expected(5))
    items = list(stream.items())
    assert [item.value for item in items] == expected(20)[5:]
    assert items[0].position == 5
    with pytest.raises(UsageError, match="received=7: wanted the list"):
        list(group.tokens(PROMPT, 20, received=7))


def test_ranks_that_are_gone_are_passed_over(group, fleet):
    stream = group.tokens(PROMPT, 60)
    got = [next(stream) for _ in range(10)]
    fleet.lose(0)
    assert got + list(stream) == expected(60)
    fleet.lose(1)
    with pytest.raises(CallError, match="it is gone"):
        list(group.tokens(PROMPT, 60))


def test_an_error_of_the_method_ends_the_stream_as_before(group, fleet):
    stream = group.awkward()
    got = []
    with pytest.raises(RemoteError, match=r"an item of talker/0.awkward, a _thread.lock, cannot be pickled"):
        got.extend(stream)
    assert list(stream) == []
    assert len(fleet[1].began) == 0


def test_a_request_that_kills_three_callees_is_given_up(fleet):
    fleet = fleet_of(Engine, 5)
    stream = RoleGroup("talker").tokens(PROMPT, 100)
    got = [next(stream) for _ in range(10)]

    def all_of_it() -> None:
        while True:
            fleet.kill(int(stream._resuming[0].callee[-1]))
            got.append(next(stream))

    with pytest.raises(PeerLostError, match="seems to kill its callees") as told:
        all_of_it()
    assert len(re.findall(r"talker/\d \(incarnation 1\) at item 1\d", str(told.value))) == 3
    assert "dljob events" in told.value.hint
    assert list(stream) == []
    assert got == expected(100)[: len(got)]


def test_a_stream_that_gets_on_between_deaths_is_not_given_up_but_for_the_cap(group, fleet, monkeypatch):
    monkeypatch.setattr("dljob.runtime.rpc.resuming.RESUMPTIONS", 3)
    stream = group[0].tokens(PROMPT, 1000)
    got: list[int] = []

    def all_of_it() -> None:
        while True:
            got.extend(next(stream) for _ in range(20))
            fleet.kill(0)
            fleet.revive(0)

    with pytest.raises(PeerLostError, match=r"given up after 3 resumptions: talker/0 \(incarnation 1\) at item"):
        all_of_it()
    assert fleet.processes[0].incarnation == 5
    assert got == expected(1000)[: len(got)]


def test_a_gap_counts_as_a_loss_and_the_old_generator_is_closed(group, fleet, monkeypatch):
    take, left = StreamProducer.take, [1]

    def lossy(self, timeout_s):
        items, over = take(self, timeout_s)
        return (items[1:], over) if left and items[0][0] > 3 and left.pop() else (items, over)

    monkeypatch.setattr(StreamProducer, "take", lossy)
    stream = group.tokens(PROMPT, 60)
    assert list(stream) == expected(60)
    assert len(stream.segments) == 2
    assert fleet[0].closed.wait(10)
    assert [call.rank for call in fleet.sent if call.method == CLOSE] == [0]


def test_a_stream_that_moved_loads_its_new_rank_until_it_is_over(group, fleet):
    busy = current_worker().descriptors.in_flight
    stream = group.busy(PROMPT, 100)
    assert next(stream) == expected(1)[0]
    first = int(stream.segments[0].callee[-1])
    fleet.kill(first)
    for _ in range(20):
        next(stream)
    assert busy("talker") == {first: 0, 1 - first: 1}
    list(stream)
    assert busy("talker") == {0: 0, 1: 0}


def test_a_stream_that_is_left_while_it_moves_is_closed_where_it_arrives(group, fleet):
    stream = group[0].tokens(PROMPT, 1000)
    next(stream)
    fleet.kill(0)
    reader = threading.Thread(target=lambda: list(stream), daemon=True)
    reader.start()
    end = time.monotonic() + 10
    while not stream._resuming[0].progress.losses:
        assert time.monotonic() < end
        time.sleep(0.001)
    stream.close()
    fleet.revive(0)
    assert fleet[0].closed.wait(10)
    reader.join(10)
    assert not reader.is_alive()


def test_ranks_that_work_in_step_do_not_resume():
    fleet = fleet_of(Stepped, 4)
    with pytest.raises(UsageError, match="ranks that work in step"):
        list(RoleGroup("talker").everywhere(3))
    install(None)
    fleet.close()


def test_a_whole_argument_stays_whole_beside_the_prefix(group):
    assert sorted(group.own(whole(10))) == sorted(2 * list(range(10, 20)))


class TestDrain:
    """Ranks that end by order."""

    def test_a_drained_callee_costs_no_item(self, group, fleet):
        stream = group.tokens(PROMPT, 100)
        got = [next(stream) for _ in range(10)]
        drained = []
        drainer = threading.Thread(target=lambda: drained.append(fleet.drain(0)))
        drainer.start()
        got += stream
        drainer.join(10)
        assert drained == [True]
        assert got == expected(100)
        assert fleet[0].made + fleet[1].made == 100
        assert [part.callee for part in stream.segments] == ["talker/0", "talker/1"]
        assert fleet[0].closed.is_set()

    def test_streams_that_begin_meanwhile_go_elsewhere_and_others_run_on(self, group, fleet):
        plain = group[0].plain(100)
        next(plain)
        fleet.processes[0].server.drain(0.0)
        fleet[0].closed.clear()
        assert list(group.tokens(PROMPT, 20)) == expected(20)
        assert fleet[0].began == []
        assert list(plain) == list(range(1, 100))

    def test_a_stream_that_opens_as_the_drain_begins_drains_too(self, group, fleet, monkeypatch):
        server, begin = fleet.processes[0].server, ResumedCall.begin

        def late(self, args):
            server.drain(0.0)
            return begin(self, args)

        monkeypatch.setattr(ResumedCall, "begin", late)
        assert list(group.tokens(PROMPT, 20)) == expected(20)
        assert 1 <= fleet[0].made <= 4 + 1
        assert fleet[0].made + fleet[1].made == 20

    def test_a_stream_that_ends_by_itself_is_over(self, group, fleet):
        stream = group.tokens(PROMPT, 3)
        assert next(stream) == expected(1)[0]
        assert fleet[0].closed.wait(10)
        assert not fleet.drain(0, 0.0)
        assert list(group[1].tokens(PROMPT, 3)) == expected(3)

    def test_a_caller_that_takes_too_long_has_the_rest_made_again(self, group, fleet):
        stream = group.tokens(PROMPT, 100)
        got = [next(stream)]
        assert not fleet.drain(0, 0.05)
        assert got + list(stream) == expected(100)
        assert fleet[0].made + fleet[1].made > 100

    def test_state_is_handed_over_once_and_with_the_items_it_belongs_to(self):
        fleet = fleet_of(Caching)
        stream = RoleGroup("talker").tokens(PROMPT, 60)
        got = [next(stream) for _ in range(10)]
        threading.Thread(target=fleet.drain, args=(0,)).start()
        got += stream
        assert got == expected(60)
        first = stream.segments[0].count
        assert fleet[0].caches == [None]
        assert fleet[1].caches == [{"prompt": PROMPT, "tokens": expected(first)}]
        assert fleet[0].made == first

    @pytest.mark.parametrize("why", ["version", "hook", "death"])
    def test_state_that_would_be_wrong_or_is_not_there_is_none(self, why, capfd):
        fleet = fleet_of(Caching, 3)
        stream = RoleGroup("talker").tokens(PROMPT, 60)
        got = [next(stream) for _ in range(10)]
        fleet[0].fails = why == "hook"
        if why == "version":
            fleet[1].weights_version = fleet[2].weights_version = 2
        threading.Thread(target=fleet.drain, args=(0,)).start()
        got += [next(stream) for _ in range(20)]
        if why == "death":
            fleet.kill(int(stream.segments[-1].callee[-1]))
        assert got + list(stream) == expected(60)
        assert fleet[int(stream.segments[-1].callee[-1])].caches == [None]
        assert ("tokens: cache_of failed; it hands over no state" in capfd.readouterr().err) == (why == "hook")

    def test_a_hook_that_is_not_there_fails_the_first_call(self):
        fleet_of(Caching)
        with pytest.raises(RemoteError, match="hand_over='cache_off': Caching has no such method"):
            list(RoleGroup("talker").misspelt())

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"stream": True, "hand_over": "cache_of"}, "only a stream that resumes hands over"),
            ({"stream": True, "resume": "prefix", "hand_over": 3}, "hand_over=3: wanted the name"),
            ({"stream": True, "resume": "prefix", "hand_over": "a b"}, "hand_over='a b': wanted the name"),
            ({"stream": True, "resume": "prefix", "hand_over": "cache_of"}, "it has no parameter 'state'"),
        ],
    )
    def test_a_hook_that_cannot_serve_is_refused_where_it_is_declared(self, options, words):
        with pytest.raises(UsageError, match=words):
            rpc(**options)(Engine.tokens)


class TestVersions:
    """Engines whose weights change while they stream."""

    def test_by_default_it_goes_on_with_any_and_segments_tell_which(self, group, fleet):
        fleet[0].weights_version, fleet[1].weights_version = 3, 4
        stream = group.tokens(PROMPT, 60)
        got = [next(stream) for _ in range(10)]
        fleet.kill(0)
        assert got + list(stream) == expected(60)
        assert [(part.callee, part.version) for part in stream.segments] == [("talker/0", 3), ("talker/1", 4)]

    def test_channels_that_the_process_received_are_the_version(self, group, fleet, monkeypatch):
        monkeypatch.setitem(resumed.held_versions, "policy", 7)
        assert next(group.tokens(PROMPT, 3).items()).version == {"policy": 7}

    def test_the_same_version_is_looked_for_among_all(self):
        fleet = fleet_of(Engine, 4)
        for rank, version in enumerate((3, 4, 5, 3)):
            fleet[rank].weights_version = version
        stream = RoleGroup("talker").options(versions="same").tokens(PROMPT, 60)
        got = [next(stream) for _ in range(10)]
        fleet.kill(0)
        assert got + list(stream) == expected(60)
        assert [part.callee for part in stream.segments] == ["talker/0", "talker/3"]
        assert fleet[1].began == fleet[2].began == []

    def test_it_waits_until_a_callee_has_loaded_its_version(self, group, fleet):
        fleet[0].weights_version = 3
        stream = group[0].options(versions="same").tokens(PROMPT, 60)
        got = [next(stream) for _ in range(10)]
        fleet.kill(0)
        fleet.revive(0)
        threading.Timer(0.3, lambda: setattr(fleet[0], "weights_version", 3)).start()
        assert got + list(stream) == expected(60)
        assert [(part.incarnation, part.version) for part in stream.segments] == [(1, 3), (2, 3)]

    def test_a_deadline_ends_the_wait_and_names_who_has_what(self, group, fleet):
        fleet[0].weights_version, fleet[1].weights_version = 3, 4
        stream = group.options(versions="same", timeout=0.3).tokens(PROMPT, 60)
        next(stream)
        fleet.kill(0)
        words = r"nobody could go on within 0\.3 s: talker/1 holds version 4, and the stream began with 3"
        with pytest.raises(CallTimeoutError, match=words):
            list(stream)
        assert list(stream) == []

    def test_whoever_leaves_the_stream_ends_the_wait(self, group, fleet):
        fleet[0].weights_version, fleet[1].weights_version = 3, 4
        stream = group.options(versions="same", timeout=None).tokens(PROMPT, 60)
        next(stream)
        fleet.kill(0)
        reader = threading.Thread(target=lambda: list(stream), daemon=True)
        reader.start()
        resuming = stream._resuming[0]
        while not any(call.rank == 1 for call in fleet.sent):
            time.sleep(0.01)
        stream.close()
        assert resuming.left.is_set()
        reader.join(10)
        assert not reader.is_alive()
        while any(thread.name == "dljob-resume" for thread in threading.enumerate()):
            time.sleep(0.01)

    def test_weights_that_change_in_mid_stream_are_another_version(self, group, fleet):
        fleet[0].weights_version, fleet[1].weights_version = 3, 3
        stream = group.options(versions="same").tokens(PROMPT, 60)
        got = [next(stream) for _ in range(10)]
        fleet[0].weights_version = 4
        assert got + list(stream) == expected(60)
        assert [(part.callee, part.version) for part in stream.segments] == [("talker/0", 3), ("talker/1", 3)]
        mixed = group.options(versions="any").tokens(PROMPT, 60)
        got = [next(mixed) for _ in range(10)]
        fleet[0].weights_version = fleet[1].weights_version = 5
        assert got + list(mixed) == expected(60)
        assert [part.version for part in mixed.segments] in ([3, 5], [4, 5])

    def test_other_code_is_refused_with_the_same_version_and_warned_of_without(self, group, fleet, monkeypatch, caplog):
        streams = [group[0].options(versions=which, timeout=0.3).tokens(PROMPT, 60) for which in ("any", "same")]
        got = [[next(stream)] for stream in streams]
        fleet.kill(0)

        class Later(Engine):
            def _tokens(self, prompt, count, received):
                return super()._tokens(prompt, count, received)

        fleet._make = Later
        fleet.revive(0)
        assert got[0] + list(streams[0]) == expected(60)
        first, second = streams[0].segments
        assert first.code != second.code
        assert "tokens: talker/0 goes on with other code than talker/0 ran, from item" in caplog.text
        with pytest.raises(CallTimeoutError, match="talker/0 runs other code of Later"):
            list(streams[1])

    def test_an_unknown_choice_is_refused(self, group):
        with pytest.raises(UsageError, match="versions='some': unknown"):
            group.options(versions="some")


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (lambda self, received: [], "it is no generator"),
        (lambda self: (yield), "it has no parameter 'received'"),
        (lambda self, *received: (yield), "it has no parameter 'received'"),
    ],
)
def test_a_method_that_cannot_resume_is_refused_where_it_is_declared(method, words):
    with pytest.raises(UsageError, match=words):
        rpc(stream=True, resume="prefix")(method)


def test_only_a_stream_resumes():
    with pytest.raises(UsageError, match="resume='prefix': only a stream resumes"):
        rpc(resume="prefix")
    with pytest.raises(UsageError, match="resume='suffix': unknown"):
        rpc(stream=True, resume="suffix")
