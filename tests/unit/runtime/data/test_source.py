"""Sources as user code sees them, on the real core: batches, news, and no event lost or repeated in any checkpoint."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from desk_kit import Desk, Place
from source_kit import offsets, told

from dljob.errors import CheckpointError, UsageError
from dljob.master.state import events as ev
from dljob.master.state.checkpoint_ids import CheckpointId, RunId
from dljob.master.state.evolve import evolve
from dljob.runtime.data import leases, source_cursor
from dljob.runtime.data import source as module
from dljob.runtime.data.shards import shards
from dljob.runtime.data.source import BatchLimits, EventSource, source
from dljob.runtime.data.source_reader import Extent, SourceError, SourceEvent

LIMITS = BatchLimits(4, 100, 1.0)


class Memory:
    """A source in memory: partitions of events, each with its first offset."""

    def __init__(self, **events: int) -> None:
        self.logs = {name: [str(n).encode() for n in range(count)] for name, count in events.items()}
        self.first = dict.fromkeys(self.logs, 0)
        self.why = ""
        self.repeats = 0
        self.closed = False
        self.time = 50.0

    def partitions(self) -> Mapping[str, Extent]:
        if self.why:
            raise SourceError(self.why)
        return {name: Extent(self.first[name], len(log)) for name, log in self.logs.items()}

    def read(self, partition: str, offset: int, most: int) -> Sequence[SourceEvent]:
        if self.why:
            raise SourceError(self.why)
        begin = max(offset - self.repeats, self.first[partition])
        found = [(n, value) for n, value in enumerate(self.logs.get(partition, ()))][begin : offset + most]
        return [SourceEvent(partition, n, n + 1, value, self.time) for n, value in found]

    def close(self) -> None:
        self.closed = True


def opened(desk: Desk, me: Any, memory: Memory, limits: BatchLimits = LIMITS, **more: Any) -> EventSource:
    return EventSource(desk, "s", memory, limits, clock=lambda: me.stopping.now, **more)  # type: ignore[arg-type]


def test_a_full_batch_comes_at_once_and_a_smaller_one_after_its_linger(desk, me):
    mine = opened(desk, me, Memory(a=6))
    first = next(mine)
    assert offsets(first) == [("a", n) for n in range(4)]
    assert (len(first), me.stopping.waits, first.watermark) == (4, 0, 50.0)
    assert [event.value for event in first] == [b"0", b"1", b"2", b"3"]
    assert offsets(next(mine)) == [("a", 4), ("a", 5)]
    assert 1.0 <= me.stopping.now < 1.1
    assert mine.unreported_positions()["done"] == [(0, 4, None)]
    assert list(me.noted) == ["source:s"]


def test_a_batch_is_handed_out_after_its_linger_though_other_partitions_are_slow_to_answer(desk, me):
    came = list[float]()

    class SlowMemory(Memory):
        def read(self, partition: str, offset: int, most: int) -> Sequence[SourceEvent]:
            me.stopping.now += 0.4
            found = super().read(partition, offset, most)
            came.extend(me.stopping.now for _ in found)
            return found

    mine = opened(desk, me, SlowMemory(a=1, **dict.fromkeys([f"p{number:02}" for number in range(20)], 0)))
    mine._turn = 10  # in the midst of the others
    assert offsets(mine.take()) == [("a", 0)]
    assert me.stopping.now - came[0] <= LIMITS.linger_s + 0.4


def test_a_silent_source_is_waited_for_and_an_end_of_the_rank_ends_the_loop(desk, me):
    mine = opened(desk, me, memory := Memory(a=0))
    assert mine.take(timeout=100.0) is None
    assert me.stopping.now >= 100.0
    assert len(desk.journal) == 1, "silence writes nothing"
    memory.logs["a"].append(b"x")
    assert offsets(mine.take()) == [("a", 0)]
    me.stopping.end = 0
    assert list(mine) == []


def test_batches_share_their_room_among_partitions(desk, me):
    mine = opened(desk, me, Memory(a=9, b=2), BatchLimits(6, 100, 0.0))
    found = [offsets(mine.take()) for _ in range(3)]
    assert sorted(one for batch in found for one in batch) == [("a", n) for n in range(9)] + [("b", 0), ("b", 1)]
    assert found[0][0] == ("b", 0), "each batch begins with another partition"


def test_an_event_larger_than_a_batch_is_one_of_its_own_and_told(desk, me):
    memory = Memory(a=3)
    memory.logs["a"][1] = b"x" * 500
    mine = opened(desk, me, memory)
    assert [offsets(mine.take()) for _ in range(3)] == [[("a", n)] for n in range(3)]
    me.stopping.now += 2
    mine.take(timeout=0)
    assert told(desk) == [
        "a has an event of 500 bytes at offset 1, and a batch has at most 100: it is a batch of its own"
    ]


def test_a_source_that_repeats_offsets_gives_each_event_once(desk, me):
    memory = Memory(a=12)
    mine = opened(desk, me, memory)
    mine.take()
    memory.repeats = 2
    assert [offsets(mine.take()), offsets(mine.take())] == [
        [("a", n) for n in run] for run in ((4, 5, 6, 7), range(8, 12))
    ]
    me.stopping.now += 2
    mine.take(timeout=0)
    assert told(desk) == ["a gave offsets again that were read: they are left out"]


def test_a_source_that_does_not_answer_is_asked_again_and_told_once(desk, me):
    mine = opened(desk, me, memory := Memory(a=8))
    mine.take()
    memory.why = "broker 1 is away"
    assert mine.take(timeout=5) is None
    memory.why = ""
    assert offsets(mine.take()) == [("a", n) for n in range(4, 8)]
    assert told(desk) == [
        "a: broker 1 is away; it is asked again",
        "it does not answer: broker 1 is away; it is asked again",
    ]


def test_a_batch_that_is_filled_across_lost_offsets_is_acknowledged(desk, me):
    mine = opened(desk, me, memory := Memory(a=2), BatchLimits(4, 100, 9.0))

    def deleted(seconds: float) -> bool:
        me.stopping.now += seconds
        if me.stopping.now > 3:
            memory.logs["a"], memory.first["a"] = [b"x"] * 9, 5
        return False

    me.stopping.wait = deleted
    batch = next(mine)
    assert offsets(batch) == [("a", n) for n in (0, 1, 5, 6)]
    assert batch.runs == ((0, 2), (5, 7))
    batch.done()
    mine.close()
    assert desk.state.feeds["s"].leases["w", 0].runs == ((7, module.SPAN),)


@pytest.mark.parametrize("how", ["life", "cut"])
def test_a_batch_that_is_being_filled_when_its_rank_or_job_goes_back_begins_anew(desk, me, how):
    mine = opened(desk, me, memory := Memory(a=2), BatchLimits(4, 100, 9.0))

    def gone_back(seconds: float) -> bool:
        me.stopping.now += seconds
        if me.stopping.now > 3 and len(memory.logs["a"]) == 2:
            memory.logs["a"] += [b"x"] * 9
            if how == "life":
                desk.started_again(0)
                desk.shards(_question_of(desk, mine))
            else:
                desk.state = evolve(desk.state, cuts=evolve(desk.state.cuts, restore_count=3))
            mine._news.append("it asks")
            me.stopping.now = mine._looked_at + module.LOOK_S
        return False

    me.stopping.wait = gone_back
    batch = next(mine)
    assert offsets(batch) == [("a", n) for n in range(4)]
    assert batch.runs == ((0, 4),)


def _question_of(desk: Desk, mine: EventSource) -> dict[str, Any]:
    """The first question of the rank's next process, which takes its leases back."""
    later = desk.places[-1]
    return {
        **mine.unreported_positions(),
        "incarnation": later.incarnation,
        "run": {"attempt": 1, "number": later.number},
    }


def test_partitions_that_are_added_are_read_and_those_gone_are_given_up(desk, me):
    mine = opened(desk, me, memory := Memory(a=1))
    list(mine.take() or ())
    memory.logs["b"], memory.first["b"] = [b"x"], 0
    me.stopping.now += 2
    assert offsets(mine.take()) == [("b", 0)]
    del memory.logs["a"]
    assert mine.take(timeout=source_cursor.MISSING + 1) is None
    assert told(desk) == ["a is gone at offset 1: all of it was read"]
    assert list(mine._cursors) == [1]
    assert desk.state.feeds["s"].partitions == ("a", "b")


def test_ranks_share_partitions_and_a_source_begins_where_it_is_told(desk, me):
    me.world_size = 2
    mine = opened(desk, me, Memory(a=3, b=3), latest=True)
    assert mine.take(timeout=0) is None
    assert desk.state.feeds["s"].leases["w", 0].runs == ((3, module.SPAN),)
    assert mine.lag == 0


def test_offsets_out_of_range_and_a_source_without_partitions_are_told(desk, me):
    memory = Memory()
    mine = opened(desk, me, memory)
    mine.take(timeout=2)
    memory.logs["a"], memory.first["a"] = [], 1 << 50
    mine.take(timeout=2)
    assert told(desk) == [
        "it has no partitions yet",
        "a has offsets that are not whole numbers from 0 to 2^48: it is left out",
    ]


def test_a_process_that_saves_nothing_reports_what_is_done_and_at_its_end(desk, me):
    mine = opened(desk, me, memory := Memory(a=8))
    batch = next(mine)
    batch.done()
    batch.done()
    me.stopping.now += 2
    last = next(mine)
    assert [event.done for event in desk.journal] == [(), ((0, 4, None, 0),)]
    last.done()
    mine.close()
    assert desk.journal[-1].done == ((4, 8, None, 0),)
    assert (memory.closed, desk.closed) == (True, True)


def test_many_done_batches_are_reported_before_a_save(desk, me, monkeypatch):
    monkeypatch.setattr(type(module.checkpoint), "saved", property(lambda _self: (3, 0)), raising=False)
    monkeypatch.setattr(module, "REPORT", 2)
    mine = opened(desk, me, Memory(a=12))
    for count in (0, 0, 2):
        next(mine).done()
        me.stopping.now += 2
        assert sum(len(event.done) for event in desk.journal) == count


def test_a_rank_that_lives_on_begins_where_its_checkpoint_is(desk, me):
    mine = opened(desk, me, Memory(a=12))
    left = next(mine)
    desk.started_again(0)
    mine.close()
    module.checkpoint.feeds.clear()
    mine._news.append("another run")
    again = next(mine)
    assert offsets(again) == offsets(left)
    assert module.checkpoint.feeds == [mine]
    mine.close()
    left.done()
    assert mine.unreported_positions()["done"] == []


def test_a_process_of_the_past_is_told_that_a_later_one_reads(desk, me):
    mine = opened(desk, me, Memory(a=12))
    next(mine)
    desk.started_again(0)
    desk.places = desk.places[:1]
    me.stopping.now += 2
    mine._news.append("x")
    with pytest.raises(CheckpointError, match="a later process of w/0 has begun"):
        next(mine)


def test_what_was_read_before_the_job_went_back_to_a_cut_is_read_again(desk, me):
    mine = opened(desk, me, Memory(a=12))
    left = next(mine)
    desk.state = evolve(desk.state, cuts=evolve(desk.state.cuts, restore_count=3))
    mine._ask_for_leases(1)
    assert offsets(next(mine)) == offsets(left)
    left.done()


def test_a_load_that_goes_back_reads_again_from_the_checkpoint_on(desk, me, monkeypatch):
    monkeypatch.setattr(type(module.checkpoint), "saved", property(lambda _self: (10, 0)), raising=False)
    mine = opened(desk, me, Memory(a=12))
    first = next(mine)
    first.done()
    desk.shards(mine.unreported_positions())
    desk.loaded = CheckpointId(RunId(1, 1), 10)
    mine.went_back(desk)  # type: ignore[arg-type]
    assert offsets(next(mine)) == offsets(first)


def saved(desk: Desk, mine: EventSource, step: int) -> None:
    """A checkpoint of the rank's present life is committed."""
    desk.shards(mine.unreported_positions())
    _send(desk, ev.CheckpointCommitted("w/0", CheckpointId(desk.places[0].run_id, step)))


def restarted(desk: Desk, me: Any, memory: Memory, step: int, **more: Any) -> EventSource:
    """The rank's next process, which restores a step of the one before."""
    before = desk.places[0].run_id
    again(desk, before.number + 1)
    _send(desk, ev.CheckpointDecided("w/0", desk.places[0].run_id, CheckpointId(before, step)))
    return opened(desk, me, memory, **more)


class OtherRank(Desk):
    """The client of rank 1, on the state of rank 0's."""

    def __init__(self, first: Desk) -> None:
        self._first = first
        self.places = [Place()]
        self.places[0].of = "w/1"
        self.closed, self.loaded = False, None

    @property
    def state(self) -> Any:
        return self._first.state

    @state.setter
    def state(self, state: Any) -> None:
        self._first.state = state

    def shards(self, question: Any) -> dict[str, Any]:
        return self._first.shards(question)


def opened_as(desk: Desk, me: Any, memory: Memory) -> EventSource:
    """The source of the rank whose client it is."""
    me.rank = rank_of(desk)
    made = opened(desk, me, memory)
    me.rank = 0
    return made


def rank_of(desk: Desk) -> int:
    return int(desk.places[0].of.removeprefix("w/"))


def holed(desk: Desk, me: Any, memory: Memory, monkeypatch: pytest.MonkeyPatch, **more: Any) -> EventSource:
    """The second life of a rank whose checkpoint has offsets 4 to 7 of `a`, and not those before."""
    monkeypatch.setattr(type(module.checkpoint), "saved", property(lambda _self: (-1, 0)), raising=False)
    mine = opened(desk, me, memory)
    assert offsets(mine.take()) == [("a", n) for n in range(4)]
    assert len(list(mine.take() or ())) == 4
    saved(desk, mine, 1)
    return restarted(desk, me, memory, 1, **more)


@pytest.mark.parametrize("ranks", [1, 2])
def test_events_of_the_checkpoint_are_not_read_again_though_some_before_them_are(desk, me, monkeypatch, ranks):
    later = holed(desk, me, Memory(a=16), monkeypatch)
    me.world_size = ranks
    for first, end in ((0, 4), (8, 12), (12, 16)):
        batch = later.take()
        assert offsets(batch) == [("a", n) for n in range(first, end)]
        assert later.lag == {4: 8, 12: 4, 16: 0}[end]
        list(batch or ())
        me.stopping.now += 2
    saved(desk, later, 2)
    assert desk.state.feeds["s"].leases["w", 0].runs == ((16, module.SPAN),)
    last = restarted(desk, me, Memory(a=17), 2)
    assert offsets(last.take()) == [("a", 16)]
    assert told(desk) == []


def test_a_batch_has_events_of_several_intervals_of_a_partition(desk, me, monkeypatch):
    memory = Memory(a=12)
    later = holed(desk, me, memory, monkeypatch, limits=BatchLimits(20, 100, 1.0))
    memory.logs["b"], memory.first["b"] = [b"x"] * 3, 0
    batch = next(later)
    assert sorted(offsets(batch)) == [("a", n) for n in (0, 1, 2, 3, 8, 9, 10, 11)] + [("b", n) for n in range(3)]
    batch.done()
    saved(desk, later, 2)
    assert desk.state.feeds["s"].leases["w", 0].runs == ((12, module.SPAN), (module.SPAN + 3, 2 * module.SPAN))


def test_a_large_event_that_is_done_ends_the_interval_before_it_and_is_not_told(desk, me, monkeypatch):
    memory = Memory(a=12)
    later = holed(desk, me, memory, monkeypatch)
    memory.logs["a"][4] = b"x" * 500
    list(next(later))
    me.stopping.now += 2
    assert offsets(later.take()) == [("a", n) for n in range(8, 12)]
    assert told(desk) == []


@pytest.mark.parametrize("gone", [(2, 3), (0, 1, 2, 3)])
def test_an_interval_without_its_last_events_ends_where_a_later_event_is(desk, me, monkeypatch, gone):
    class Compacted(Memory):
        def read(self, partition: str, offset: int, most: int) -> Sequence[SourceEvent]:
            found = super().read(partition, offset, 99)
            return [event for event in found if event.offset not in gone][:most]

    later = holed(desk, me, Memory(a=12), monkeypatch)
    later._reader = Compacted(a=12)
    found = list[tuple[str, int]]()
    while batch := later.take(timeout=1):
        found += offsets(batch)
        batch.done()
    assert found == [("a", n) for n in (0, 1, 8, 9, 10, 11) if n not in gone]
    saved(desk, later, 2)
    assert desk.state.feeds["s"].leases["w", 0].runs == ((12, module.SPAN),), "also the offsets without an event"


def test_what_another_rank_went_back_on_is_read_by_the_rank_that_has_its_partition(desk, me, monkeypatch):
    monkeypatch.setattr(type(module.checkpoint), "saved", property(lambda _self: (-1, 0)), raising=False)
    memory = Memory(a=24)
    first, second = opened(desk, me, memory), opened_as(OtherRank(desk), me, memory)
    for _ in range(2):
        list(first.take() or ())
    desk.shards({**first.unreported_positions(), "undone": []})
    batch = next(second)
    assert offsets(batch) == [("a", n) for n in range(8, 12)]
    desk.shards({**first.unreported_positions(), "undone": [(4, 8)]})
    me.stopping.now += 2
    second._news.append("it asks")
    lower = second.take()
    assert offsets(lower) == [("a", n) for n in range(4, 8)]
    batch.done()
    assert offsets(second.take()) == [("a", n) for n in range(12, 16)]
    list(lower or ())
    desk.shards(second.unreported_positions())
    assert desk.state.feeds["s"].leases["w", 1].runs == ((12, module.SPAN),)


def test_a_rank_that_has_read_all_its_leases_asks_for_more(desk, me, monkeypatch):
    monkeypatch.setattr(type(module.checkpoint), "saved", property(lambda _self: (-1, 0)), raising=False)
    me.world_size = 2
    memory = Memory(a=8, b=2)
    mine, other = opened(desk, me, memory), opened_as(OtherRank(desk), me, memory)
    for _ in range(2):
        list(mine.take() or ())
    desk.shards({**mine.unreported_positions(), "undone": []})
    list(other.take(timeout=0) or ())  # it has the rest of a
    desk.shards({**mine.unreported_positions(), "undone": [(4, 8)]})
    mine.close()
    left = mine.take()
    assert offsets(left) == [("a", n) for n in range(4, 8)]
    me.stopping.now += 2
    assert offsets(mine.take()) == [("b", 0), ("b", 1)], "though nothing of the first batch is done"
    runs = [desk.state.feeds["s"].leases["w", rank].runs for rank in (0, 1)]
    assert runs == [((4, 8), (module.SPAN, 2 * module.SPAN)), ((8, module.SPAN),)]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"batch": 0}, "batch=0"), ({"batch": True}, "batch=True"), ({"most_bytes": 1.5}, "most_bytes=1.5"),
        ({"linger": -1}, "linger=-1"), ({"idle": float("nan")}, "idle=nan"), ({"begin": "now"}, "begin='now'"),
    ],
)  # fmt: skip
def test_wrong_arguments_of_a_source_are_named(arguments, why):
    with pytest.raises(UsageError, match=why):
        source("s", "file:/x", **arguments)


def test_an_unknown_scheme_names_those_that_are_installed(me, desk, monkeypatch):
    del me
    with pytest.raises(UsageError, match=r"source\('s'\): the scheme 'pulsar' is not installed; installed: .*file"):
        source("s", "pulsar://x/y")
    monkeypatch.setattr(module, "new_client", lambda: desk)
    made = source("s", "file:/x")
    assert module.checkpoint.feeds == [made]


def test_what_an_entry_point_returns_must_be_a_reader(monkeypatch):
    monkeypatch.setattr(module.extensions, "load", lambda *_: lambda uri, options: {uri: options})
    words = r"source\('s'\): what reads the scheme 'my' returned \{'my:x': \{'a': 1\}\}, which has no partitions\(\)"
    with pytest.raises(UsageError, match=words):
        source("s", "my:x", a=1)


# -- the law


class Trainer:
    """A rank whose state counts its events; each checkpoint keeps a copy of them."""

    def __init__(self, desk: Desk, me: Any, memory: Memory, seed: int) -> None:
        self.desk, self.me, self.memory = desk, me, memory
        self.world = desk.places[0].of
        self.draw = random.Random(seed)  # noqa: S311 - a schedule
        self.state: dict[tuple[str, int], int] = {}
        self.step, self.saved, self.run_id = 0, -1, RunId(1, 1)
        self.kept: list[tuple[CheckpointId, int, dict[tuple[str, int], int]]] = []
        self.source = opened_as(desk, me, memory)

    def skip(self) -> None:
        """Take a batch, and use nothing of it."""
        self.source.take(timeout=0)

    def train(self) -> None:
        batch = self.source.take(timeout=0)
        for event in batch or ():
            key = event.partition, event.offset
            self.state[key] = self.state.get(key, 0) + 1

    def save(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Save: the positions go with the copy, and the commit comes, or never."""
        self.step += 1
        self.desk.shards(self.source.unreported_positions())
        mark = CheckpointId(self.run_id, self.step)
        self.saved = self.step
        monkeypatch.setattr(type(module.checkpoint), "saved", property(lambda _self: (self.saved, 0)), raising=False)
        if self.draw.random() < 0.7:
            _send(self.desk, ev.CheckpointCommitted(self.world, mark, self.kept[0][0] if self.kept else None))
            self.kept = [*self.kept[-1:], (mark, self.step, dict(self.state))]

    def die(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Die and restore one of the checkpoints that are left, perhaps not the newest."""
        number = self.run_id.number + 1
        self.run_id, self.saved = RunId(1, number), -1
        mark, self.step, state = self.draw.choice(self.kept) if self.kept else (None, 0, {})
        self.kept = [one for one in self.kept if mark is not None and one[0].step <= mark.step]
        self.state = dict(state)
        again(self.desk, number)
        _send(self.desk, ev.CheckpointDecided(self.world, self.run_id, mark))
        monkeypatch.setattr(type(module.checkpoint), "saved", property(lambda _self: (-1, 0)), raising=False)
        self.source = opened_as(self.desk, self.me, self.memory)


def _send(desk: Desk, event: Any) -> None:
    from dljob.master.transition import transition

    desk.state = transition(desk.state, event, 1.0).state


def again(desk: Desk, number: int) -> None:
    """The rank has the next incarnation and life."""
    ranks, key = desk.state.ranks, ("w", rank_of(desk))
    desk.state = evolve(desk.state, ranks=ranks.set(key, evolve(ranks[key], incarnation=number)))
    later = type(desk.places[0])()
    later.of = desk.places[0].of
    later.incarnation, later.run_id, later.number = number, RunId(1, number), number
    desk.places = [later]


@pytest.mark.parametrize("seed", range(40))
def test_each_checkpoint_has_each_event_up_to_its_position_once(seed, me, monkeypatch):
    monkeypatch.setattr(type(module.checkpoint), "saved", property(lambda _self: (-1, 0)), raising=False)
    desk, memory = Desk(), Memory(a=5, b=0)
    draw = random.Random(seed)  # noqa: S311 - a schedule
    trainer = Trainer(desk, me, memory, seed)
    for _ in range(120):
        me.stopping.now += draw.choice((0.0, 0.4, 1.5))
        match draw.choice(("train", "train", "train", "grow", "save", "save", "die", "add", "repeat", "away")):
            case "train":
                trainer.train()
            case "save":
                trainer.save(monkeypatch)
            case "die" if draw.random() < 0.5:
                trainer.die(monkeypatch)
            case "grow":
                name = draw.choice(sorted(memory.logs))
                memory.logs[name] += [b"x"] * draw.randrange(9)
            case "add" if len(memory.logs) < 5:
                memory.logs[f"p{len(memory.logs)}"] = [b"x"] * draw.randrange(5)
                memory.first = {**dict.fromkeys(memory.logs, 0), **memory.first}
            case "repeat":
                memory.repeats = draw.randrange(4)
            case _:
                memory.why = draw.choice(("", "away"))
        for _, _, state in trainer.kept:
            whole(state)
    memory.why = ""
    while sum(trainer.state.values()) < sum(len(log) for log in memory.logs.values()):
        me.stopping.now += 2
        before = len(trainer.state)
        trainer.train()
        trainer.train()
        assert len(trainer.state) > before or trainer.source.lag, "an event is never read"
    whole(trainer.state)


def whole(state: Mapping[tuple[str, int], int]) -> None:
    """Each partition's events from its first on, without a gap, and each once."""
    assert set(state.values()) <= {1}
    for name in {name for name, _ in state}:
        found = sorted(offset for one, offset in state if one == name)
        assert found == list(range(len(found)))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("seed", range(30))
def test_events_that_were_skipped_are_read_after_a_restart_and_no_others_again(seed, ranks, me, monkeypatch):
    desk, memory, me.world_size = Desk(), Memory(a=5, b=0), ranks
    draw = random.Random(seed)  # noqa: S311 - a schedule
    clients = [desk, OtherRank(desk)][:ranks]
    trainers = [Trainer(client, me, memory, seed + rank) for rank, client in enumerate(clients)]

    def turn(trainer: Trainer, what: str) -> None:
        monkeypatch.setattr(type(module.checkpoint), "saved", property(lambda _self: (trainer.saved, 0)), raising=False)
        me.stopping.now += draw.choice((0.0, 0.4, 1.5))
        {"train": trainer.train, "skip": trainer.skip, "save": lambda: trainer.save(monkeypatch),
         "die": lambda: trainer.die(monkeypatch)}[what]()  # fmt: skip
        seen = [key for one in trainers for key in one.state]
        assert len(seen) == len(set(seen)), "an event is in two states"
        assert {count for one in trainers for count in one.state.values()} <= {1}

    for _ in range(120):
        turn(draw.choice(trainers), draw.choice(("train", "train", "train", "skip", "save", "save", "die")))
        memory.logs[draw.choice("ab")] += [b"x"] * draw.randrange(3)
    for trainer in trainers:
        turn(trainer, "die")
    for _ in range(400):
        turn(draw.choice(trainers), "train")
    assert sum(len(one.state) for one in trainers) == sum(len(log) for log in memory.logs.values())


def test_shards_and_sources_are_saved_alike(desk, me, monkeypatch):
    monkeypatch.setattr("dljob.runtime.data.shards.new_client", lambda: desk)
    opened(desk, me, Memory(a=1)).take(timeout=0)
    next(shards("d", 4, shard=2))
    assert len(module.checkpoint.feeds) == 2


def test_two_objects_of_a_source_in_use_hand_out_no_event_twice_in_silence(desk, me):
    memory = Memory(a=12)
    first, second = opened(desk, me, memory), opened(desk, me, memory)
    done, in_hand = next(first), next(first)
    done.done()
    assert offsets(next(second)) == [("a", n) for n in range(4, 8)], "what was done is not given again"
    for use in (lambda: next(first), in_hand.done):
        with pytest.raises(UsageError, match=r"source\('s'\) was opened again in this process"):
            use()
    assert second.unreported_positions()["done"] == []


def test_source_is_refused_in_a_child_of_the_rank(desk, me, monkeypatch):
    monkeypatch.setattr(leases, "is_forked_child", lambda: True)
    for use in (lambda: source("s", "file:/nowhere"), lambda: next(opened(desk, me, Memory(a=1)))):
        with pytest.raises(UsageError, match=r"source\('s'\) was used in process \d+, a child of the rank"):
            use()
