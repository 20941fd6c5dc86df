"""Positions of sources in the core: partitions that come and go, and offsets of which none is handed out twice."""

from __future__ import annotations

import json

import pytest
from master_kit import World, job

from dljob.master.start import shards
from dljob.master.state import events as ev
from dljob.master.state import shard_table
from dljob.master.state.checkpoint_ids import CheckpointId, RunId
from dljob.master.state.shard_table import SPAN, ShardTable
from dljob.telemetry import reasons

A, B, C = RunId(1, 1), RunId(1, 2), RunId(1, 3)


@pytest.fixture
def world():
    return World(job({"name": "w", "replicas": 2})).boot()


def tell(world, rank=0, *, done=(), want=1, life=A, saves=True, **more):
    own = more.pop("incarnation", world.state.ranks["w", rank].incarnation)
    sizes = {"size": SPAN, "shard": SPAN, "epochs": 1, **more.pop("sizes", {})}
    world.send(
        ev.ShardsTold(
            "s", world=f"w/{rank}", role="w", rank=rank, incarnation=own, run_id=life, saves=saves,
            done=tuple((*run, 0) for run in done),
            want=want, **sizes, **more,
        )
    )  # fmt: skip
    return shards.runs_of(world.state, "s", ("w", rank), own)


def feed(world) -> ShardTable:
    return world.state.feeds["s"]


def told(world, reason):
    return [note.message for note in world.notes(reason)]


def test_each_rank_holds_the_rest_of_partitions_of_its_own(world):
    assert tell(world, partitions=(("a", 5), ("b", 0))) == ((5, SPAN),)
    assert tell(world, rank=1, want=2, partitions=(("a", 5), ("b", 0))) == ((SPAN, 2 * SPAN),)
    assert feed(world).partitions == ("a", "b")
    assert not feed(world).over
    assert shard_table.open_partitions(feed(world)) == 2
    assert told(world, reasons.SOURCE_CHANGED) == ["new partitions: a, b"]


def test_a_partition_that_is_added_is_leased_to_who_wants_more(world):
    tell(world, partitions=(("a", 0),))
    assert tell(world, want=2, partitions=(("b", 7),)) == ((0, SPAN), (SPAN + 7, 2 * SPAN))


def test_what_is_done_moves_the_lease_and_a_repeated_report_changes_nothing(world):
    tell(world, partitions=(("a", 0),))
    assert tell(world, done=[(0, 10, -1)]) == ((10, SPAN),)
    before = feed(world)
    assert tell(world, done=[(0, 10, -1)]) == ((10, SPAN),)
    assert tell(world, done=[(5, 12, -1)]) == ((10, SPAN),)
    assert feed(world) is before


def test_a_restore_hands_out_again_what_its_checkpoint_lacks(world):
    tell(world, partitions=(("a", 0),))
    tell(world, done=[(0, 10, -1)])
    world.send(ev.CheckpointCommitted("w/0", CheckpointId(A, 2), CheckpointId(A, 1)))
    tell(world, done=[(10, 30, 1)])
    world.kill("w", 0)
    world.settle()
    world.send(ev.CheckpointDecided("w/0", B, CheckpointId(A, 1)))
    assert tell(world, life=B) == ((10, SPAN),)
    assert told(world, reasons.DATA_RETURNED) == ["20 offsets of s are handed out again"]


def test_lost_offsets_are_told_with_their_range_and_no_restore_brings_them_back(world):
    tell(world, partitions=(("a", 0),))
    tell(world, done=[(0, 10, -1)])
    assert tell(world, lost=((10, 50),)) == ((50, SPAN),)
    assert tell(world, lost=((10, 50),)) == ((50, SPAN),)
    assert tell(world, lost=((50, SPAN),)) == ()
    assert shard_table.open_partitions(feed(world)) == 0
    words = ["offsets 10 to 49 of a are lost: the source has them no longer"]
    assert told(world, reasons.SOURCE_LOST) == [*words, "offsets 50 on of a are lost: the source has them no longer"]
    world.kill("w", 0)
    world.settle()
    world.send(ev.CheckpointDecided("w/0", B, None))
    assert tell(world, life=B) == ((0, 10),)


def test_what_a_former_process_lost_changes_nothing(world):
    tell(world, partitions=(("a", 0),))
    tell(world, lost=((0, 9),), incarnation=9)
    assert feed(world).leases["w", 0].runs == ((0, SPAN),)


def test_news_of_a_source_stand_in_the_timeline(world):
    tell(world, news=("a went back",))
    assert told(world, reasons.SOURCE_CHANGED) == ["a went back"]


def test_partitions_beyond_the_bound_and_wrong_offsets_are_left_out():
    table = shard_table.new_table(SPAN, SPAN, 1)
    many = [(str(n), 0) for n in range(shard_table.PARTITIONS + 1)]
    assert len(shard_table.add_partitions(table, many).partitions) == shard_table.PARTITIONS
    assert shard_table.add_partitions(table, [("a", -1), ("b", SPAN)]).partitions == ()


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [({}, {"size": 9}, "it is a source already"), ({"size": 9}, {}, "it is a data set already")],
)
def test_a_source_and_a_data_set_have_names_of_their_own(world, first, second, why):
    tell(world, sizes=first)
    event = ev.ShardsTold("s", **{"size": SPAN, "shard": SPAN, "epochs": 1, **second}, world="w/0", role="w", rank=0,
                          incarnation=1, run_id=A)  # fmt: skip
    assert why in shards.refusal_reason(world.state, event)


def test_the_next_attempt_begins_where_this_one_was(world):
    tell(world, partitions=tuple((str(n), 3) for n in range(60)), want=60)
    tell(world, want=60, done=[(n * SPAN + 3, n * SPAN + 3 + n, -1) for n in range(1, 60)])
    again = dict(shards.read_carried_positions(json.loads(json.dumps(shards.carry_positions(world.state)))))["s"]
    assert again.partitions == feed(world).partitions
    assert [start - n * SPAN for n, (start, _) in enumerate(again.todo)] == [3, *(3 + n for n in range(1, 60))]
    assert again.unbounded


def test_a_source_is_read_in_order_however_many_intervals_there_are():
    mark = CheckpointId(A, 1)
    rows = tuple(shard_table.Acked("x", mark, 2 * n, 2 * n + 1) for n in range(shard_table.ROWS))
    who = shard_table.ShardLeases("w/0", 1, A, saves=True)
    table = ShardTable(SPAN, SPAN, 1, ((5000, SPAN),), acked=rows, partitions=("a",))
    assert shard_table.lease_shards(table, ("w", 0), who, 1).leases["w", 0].runs == ((5000, SPAN),)


def holed(world):
    """A partition of which a restore left two intervals, and another one."""
    tell(world, partitions=(("a", 0), ("b", 0)))
    tell(world, done=[(4, 8, -1)])
    world.send(ev.CheckpointCommitted("w/0", CheckpointId(A, 1)))
    world.kill("w", 0)
    world.settle()
    world.send(ev.CheckpointDecided("w/0", B, CheckpointId(A, 1)))
    assert feed(world).todo == ((0, 4), (8, 2 * SPAN))


def test_a_rank_gets_all_that_is_left_of_a_partition_and_another_rank_reads_none_of_it(world):
    holed(world)
    assert tell(world, rank=1) == ((0, 4), (8, SPAN))
    assert tell(world, rank=0, life=B) == ((SPAN, 2 * SPAN),)
    assert feed(world).todo == ()


def test_several_intervals_of_a_partition_count_as_one_partition(world):
    holed(world)
    assert tell(world, life=B, want=2) == ((0, 4), (8, SPAN), (SPAN, 2 * SPAN))
    assert tell(world, life=B, done=[(0, 4, -1), (8, 12, -1)], want=2) == ((12, SPAN), (SPAN, 2 * SPAN))


def test_a_rank_that_wants_no_partition_is_leased_none(world):
    assert tell(world, partitions=(("a", 0),), want=0) == ()
    assert feed(world).todo == ((0, SPAN),)
    assert tell(world, rank=1, want=1) == ((0, SPAN),)
    before = feed(world)
    tell(world, want=0)
    assert feed(world) is before


def test_what_another_rank_had_done_is_joined_with_the_lease_of_who_reads_on(world):
    tell(world, partitions=(("a", 0), ("b", 0)))
    tell(world, done=[(0, 8, -1)])
    tell(world, want=0, undone=())
    assert tell(world, rank=1, want=2) == ((8, SPAN), (SPAN, 2 * SPAN))
    tell(world, want=0, undone=((4, 8),))
    assert feed(world).todo == ((4, 8),)
    assert shard_table.wants_more(feed(world), ("w", 1), 1), "it holds enough partitions, and this one is its own"
    assert tell(world, rank=1) == ((4, SPAN), (SPAN, 2 * SPAN))
    assert tell(world, rank=1, done=[(4, 12, -1)]) == ((12, SPAN), (SPAN, 2 * SPAN))


def test_a_question_that_leases_nothing_is_known_before(world):
    tell(world, partitions=(("a", 0), ("b", 0)))
    assert not shard_table.wants_more(feed(world), ("w", 0), 1), "b is for another rank"
    assert not shard_table.wants_more(feed(world), ("w", 0), 0)
    assert shard_table.wants_more(feed(world), ("w", 0), 2)
    assert shard_table.wants_more(feed(world), ("w", 1), 1)
    tell(world, want=2)
    assert not shard_table.wants_more(feed(world), ("w", 0), 3), "nothing is left"
