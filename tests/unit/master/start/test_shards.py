"""Data positions: every position once, whoever dies, as far as the checkpoints tell that are left."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map
from master_kit import KILLED, UID, World, job

from dljob.master.persistence.changes import changes
from dljob.master.placement.previous_attempt import carried, carry
from dljob.master.start import shards
from dljob.master.state import events as ev
from dljob.master.state import shard_table
from dljob.master.state.checkpoint_ids import CheckpointId, RunId
from dljob.master.state.shard_table import Acked, ShardLeases, ShardTable
from dljob.master.state.state import RankPhase
from dljob.master.state.views import Outcome
from dljob.telemetry import reasons

A, B, C = RunId(1, 1), RunId(1, 2), RunId(1, 3)
LONE = job({"name": "w", "replicas": 2})
WORLD = job({"name": "t", "type": "Elastic", "replicas": 2})


@pytest.fixture
def world():
    return World(LONE).boot()


def tell(world, rank=0, *, done=(), want=2, role="w", life=A, incarnation=None, saves=False, undone=None, **sizes):
    spec = {"name": "d", "size": 10, "shard": 4, "epochs": 1, "order": "by seed 7", **sizes}
    own = world.state.ranks[role, rank].incarnation if incarnation is None else incarnation
    name = role if role == "t" else f"{role}/{rank}"
    event = ev.ShardsTold(
        **spec, world=name, role=role, rank=rank, incarnation=own, run_id=life, saves=saves, want=want,
        done=tuple((*run, 0) if len(run) == 3 else run for run in done), undone=undone,
    )  # fmt: skip
    world.send(event)
    return shards.runs_of(world.state, spec["name"], (role, rank), own)


def feed(world) -> ShardTable:
    return world.state.feeds["d"]


def acked(world):
    return [(one.start, one.end) for one in feed(world).acked]


def test_shards_are_leased_in_order_and_end_with_the_epoch(world):
    assert tell(world, 0, want=2, epochs=2) == ((0, 4), (4, 8))
    assert tell(world, 0, want=2, epochs=2) == ((0, 4), (4, 8))
    assert tell(world, 1, want=9, epochs=2) == ((8, 10), (10, 14), (14, 18), (18, 20))
    assert not feed(world).todo
    assert tell(world, 1, want=9, epochs=2, done=[(8, 10, None), (8, 10, None), (0, 4, None)]) == (
        (10, 14), (14, 18), (18, 20),
    )  # fmt: skip
    assert not feed(world).over
    tell(world, 0, want=0, epochs=2, done=[(0, 4, None), (4, 8, None)])
    tell(world, 1, want=0, epochs=2, done=[(10, 14, None), (14, 18, None), (18, 20, None)])
    assert feed(world).over
    assert acked(world) == []


def test_shards_of_a_dead_process_are_leased_to_the_next_that_asks(world):
    tell(world, 0, want=2)
    world.kill("w", 0)
    world.settle()
    assert tell(world, 1, want=9) == ((0, 4), (4, 8), (8, 10))
    assert tell(world, 0, want=9) == ()
    assert tell(world, 0, want=9, incarnation=1, done=[(0, 4, None)]) == ()


def test_shards_of_a_dead_process_that_saves_are_settled_when_its_successor_decides(world):
    tell(world, 0, want=2, saves=True)
    tell(world, 0, want=0, saves=True, done=[(0, 4, -1)])
    world.kill("w", 0)
    world.settle()
    assert tell(world, 1, want=1) == ((8, 10),)
    tell(world, 0, want=0, incarnation=1, done=[(4, 8, 3)])  # its saver tells it after its death
    world.send(ev.CheckpointDecided("w/0", B, CheckpointId(A, 3)))
    assert [n.message for n in world.notes(reasons.DATA_RETURNED)] == ["4 samples of d are handed out again"]
    assert acked(world) == [(0, 4)]
    assert tell(world, 0, want=9, life=B, saves=True) == ((4, 8),)


def test_without_a_decision_the_next_processs_first_question_settles_its_shards(world):
    tell(world, 0, want=2, saves=True)
    world.kill("w", 0)
    world.settle()
    assert feed(world).leases["w", 0].runs == ((0, 4), (4, 8))
    assert tell(world, 0, want=1, life=B) == ((0, 4),)
    assert feed(world).todo == ((4, 10),)


def test_a_rank_that_ends_for_good_gives_back_what_it_held(world):
    tell(world, 0, want=2, saves=True)
    world.end("w", 0, Outcome(ok=True))
    world.settle()
    assert feed(world).todo == ((0, 10),)
    assert tell(world, 0, want=2) == ()


def test_what_a_last_save_contains_is_not_handed_out_by_the_next_attempt(world):
    tell(world, 0, want=2, saves=True)
    world.send(ev.Commanded("c", "stop", "job"))
    while world.state.ranks["w", 0].phase is not RankPhase.STOPPED:
        world.deliver()
    assert not world.state.phase.final
    tell(world, 0, want=0, done=[(0, 4, 5)])  # its saver reports it after its end
    assert acked(world) == [(0, 4)]
    assert shards.carry_positions(world.state)["d"][3] == [[4, 10]]


@pytest.mark.parametrize("saves", [True, False])
def test_a_rank_that_leaves_by_scaling_down_gives_back_what_it_held_and_gets_no_more(saves):
    role = {"name": "w", "replicas": 2, "minReplicas": 1, "maxReplicas": 2, "driver": False}
    world = World(job({"name": "driver"}, role)).boot()
    assert tell(world, 1, want=2, saves=saves) == ((0, 4), (4, 8))
    world.send(ev.Commanded("c", "scale", "w", "somebody", 1))
    while world.state.sizes["w"].move_at is not None:
        world.tick()
    world.settle()
    assert world.state.ranks["w", 1].phase is RankPhase.ABSENT
    assert (feed(world).todo, dict(feed(world).leases)) == (((0, 10),), {})
    assert tell(world, 1, want=2, saves=saves) == (), "a question that was under way"
    assert tell(world, 0, want=9) == ((0, 4), (4, 8), (8, 10))


def test_a_life_that_was_followed_gets_nothing(world):
    world.send(ev.CheckpointDecided("w/0", B, None))
    assert tell(world, 0, want=2, life=A) == ()
    assert tell(world, 0, want=2, life=B) == ((0, 4), (4, 8))


def test_shards_of_the_oldest_checkpoint_are_settled_and_come_back_only_if_no_checkpoint_is_left():
    world = World(WORLD).boot()
    one = {"role": "t", "saves": True}
    tell(world, 0, want=1, **one)
    tell(world, 1, want=1, **one)
    tell(world, 0, want=0, done=[(0, 4, -1)], **one)
    world.send(ev.CheckpointCommitted("t", CheckpointId(A, 1)))
    assert acked(world) == [(0, 4)], "its manifest may never be written"
    tell(world, 1, want=0, done=[(4, 8, 1)], **one)
    world.send(ev.CheckpointCommitted("t", CheckpointId(A, 2), CheckpointId(A, 1)))
    assert (acked(world), dict(feed(world).settled)) == ([(4, 8)], {"t": ((0, 4),)})
    world.send(ev.CheckpointDecided("t", B, CheckpointId(A, 2)))
    assert feed(world).todo == ((8, 10),)
    world.send(ev.CheckpointDecided("t", C, None))
    assert feed(world).todo == ((0, 10),)
    assert not feed(world).settled


def test_of_ranks_that_save_alone_what_is_settled_is_not_remembered(world):
    tell(world, 0, want=1, saves=True)
    tell(world, 0, want=0, saves=True, done=[(0, 4, -1)])
    world.send(ev.CheckpointCommitted("w/1", CheckpointId(A, 2), CheckpointId(A, 1)))
    assert acked(world) == [(0, 4)]
    world.send(ev.CheckpointCommitted("w/0", CheckpointId(A, 2), CheckpointId(A, 1)))
    assert (acked(world), dict(feed(world).settled)) == ([], {})


def test_of_a_fenced_checkpoint_on_disk_nothing_is_settled(world):
    tell(world, 0, want=1, saves=True)
    tell(world, 0, want=0, saves=True, done=[(0, 4, -1)])
    world.send(ev.CheckpointDecided("w/0", B, CheckpointId(A, 3)))
    world.send(ev.CheckpointCommitted("w/0", CheckpointId(B, 1), CheckpointId(A, 4)))
    assert (acked(world), world.state.saves["w/0"].oldest) == ([(0, 4)], None)
    for oldest in (CheckpointId(A, 3), CheckpointId(A, 2)):  # savers of two nodes may be heard in any order
        world.send(ev.CheckpointCommitted("w/0", CheckpointId(B, oldest.step), oldest))
    assert (acked(world), world.state.saves["w/0"].oldest) == ([], CheckpointId(A, 3))


def test_an_elastic_role_that_goes_back_behind_what_is_settled_does_all_of_it_again():
    world, one = World(WORLD).boot(), {"role": "t", "saves": True}
    tell(world, 0, want=2, **one)
    tell(world, 0, want=0, done=[(0, 4, -1), (4, 8, 1)], **one)
    world.send(ev.CheckpointCommitted("t", CheckpointId(A, 3), CheckpointId(A, 2)))
    assert dict(feed(world).settled) == {"t": ((0, 8),)}
    world.send(ev.CheckpointDecided("t", B, CheckpointId(A, 2)))
    assert feed(world).todo == ((8, 10),)
    world.send(ev.CheckpointDecided("t", C, CheckpointId(A, 1)))
    assert (feed(world).todo, dict(feed(world).settled)) == (((0, 10),), {})
    assert world.state.saves["t"].oldest is None


def test_a_process_that_loads_again_gives_back_its_leases_and_what_it_did_since(world):
    one = {"saves": True, "size": 40}
    tell(world, 0, want=6, **one)
    tell(world, 1, want=1, **one)
    tell(world, 0, want=0, done=[(0, 4, 1), (4, 8, 1), (8, 12, 1), (12, 16, 1), (16, 20, 2)], **one)
    tell(world, 1, want=0, done=[(24, 28, 1)], **one)
    for _ in range(2):  # its answer may be lost
        tell(world, 0, want=0, undone=((2, 6), (8, 10), (16, 28)), **one)
        assert feed(world).todo == ((2, 6), (8, 10), (16, 24), (28, 40))
        assert acked(world) == [(0, 2), (6, 8), (10, 16), (24, 28)]
    assert [n.message for n in world.notes(reasons.DATA_RETURNED)] == ["10 samples of d are handed out again"]
    world.send(ev.CheckpointDecided("w/0", B, CheckpointId(A, 2)))
    tell(world, 0, want=0, undone=((0, 2),), **one)
    assert acked(world)[0] == (0, 2), "a process of the past undoes nothing"


DATA_SET = "it is 10 samples in shards of 4, 1 time by seed 7"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"size": 11},
            f"{DATA_SET}, and not 11 samples in shards of 4, 1 time by seed 7; under another name it begins anew",
        ),
        (
            {"order": "by seed 8"},
            f"{DATA_SET}, and not 10 samples in shards of 4, 1 time by seed 8; under another name it begins anew",
        ),
        ({"name": "e", "shard": 0}, "its size, shard size and epochs are whole numbers from 1"),
        ({"rank": 7}, "there is no rank w/7"),
        ({"name": "f"}, "there are 1 data sets already; all ranks that share one give it the same name"),
    ],
)
def test_a_malformed_shard_request_is_refused(world, monkeypatch, change, why):
    tell(world, 0, want=1)
    if change == {"name": "f"}:
        monkeypatch.setattr(shards, "FEEDS", 1)
    event = replace(world.told[-1], **change)
    before = world.state
    assert shards.refusal_reason(before, event) == why
    world.send(event)
    assert world.state == before


def test_one_sample_that_is_handed_out_again_is_told_in_the_singular(world):
    tell(world, 0, want=1, saves=True, size=1)
    tell(world, 0, want=0, saves=True, size=1, done=[(0, 1, 5)])
    world.send(ev.CheckpointDecided("w/0", B, None))
    assert [n.message for n in world.notes(reasons.DATA_RETURNED)] == ["1 sample of d is handed out again"]


def test_the_next_attempt_goes_on_from_there(world):
    tell(world, 0, want=2, saves=True)
    tell(world, 0, want=0, saves=True, done=[(0, 4, 5)])
    told = carry(world.state)
    assert told["data"] == {"d": [10, 4, 1, [[4, 10]], [["w/0", 1, 1, 5, 0, 4]], {}, [], "by seed 7"]}
    text = json.dumps({"job": UID, "attempt": 1, "state": told})
    after = World(LONE).boot()
    after.send(carried(text, UID, 2))
    assert feed(after).todo == ((4, 10),)
    after.send(ev.CheckpointDecided("w/0", RunId(2, 1), CheckpointId(A, 5)))
    assert feed(after).todo == ((0, 10),)
    tell(after, 1, name="d", want=1, life=RunId(2, 1))
    assert shards.refusal_reason(after.state, replace(after.told[-1], order="by seed 8"))
    again = replace(after.state, carried=False)
    assert shards.carry_positions(again)["d"][3] == [[0, 10]]
    late = World(LONE).boot()
    tell(late, 0, want=1)
    late.send(carried(text, UID, 2))
    assert feed(late).todo == ((4, 10),)


def test_an_attempt_says_which_data_it_repeats_if_the_state_handed_on_is_older_than_the_checkpoint(world):
    tell(world, 0, want=2, saves=True)
    old_state = carry(world.state)
    tell(world, 0, want=0, saves=True, done=[(0, 4, 4)])
    world.send(ev.CheckpointCommitted("w/0", CheckpointId(A, 5)))
    for state, repeated, todo in (
        (old_state, "attempt 1 handed on had seen no checkpoint: data that it used since", ((0, 10),)),
        (carry(world.state), "", ((4, 10),)),
    ):
        after = World(LONE).boot()
        after.send(carried(json.dumps({"job": UID, "attempt": 1, "state": state}), UID, 2))
        after.send(ev.CheckpointDecided("w/0", RunId(2, 1), CheckpointId(A, 5)))
        (message,) = [note.message for note in after.notes(reasons.CHECKPOINT_RESTORED)]
        assert repeated in message
        assert ("handed out again" in message) == bool(repeated)
        assert feed(after).todo == todo
        after.send(ev.CheckpointDecided("w/0", RunId(2, 2), CheckpointId(A, 5)))
        assert "handed out again" not in after.notes(reasons.CHECKPOINT_RESTORED)[-1].message


def test_an_attempt_says_since_which_checkpoint_data_are_repeated(world):
    tell(world, 0, want=2, saves=True)
    world.send(ev.CheckpointCommitted("w/0", CheckpointId(A, 5)))
    text = json.dumps({"job": UID, "attempt": 1, "state": carry(world.state)})
    for step, seen in ((6, "handed on had last seen step 5 of run 1.1: data"), (5, "")):
        after = World(LONE).boot()
        after.send(carried(text, UID, 2))
        after.send(ev.CheckpointDecided("w/0", RunId(2, 1), CheckpointId(A, step)))
        (message,) = [note.message for note in after.notes(reasons.CHECKPOINT_RESTORED)]
        assert seen in message
        assert ("handed out again" in message) == bool(seen)


def test_of_ranks_that_a_smaller_attempt_lacks_only_what_no_checkpoint_has_is_handed_out_again(world):
    tell(world, 1, want=2, saves=True)
    tell(world, 1, want=0, done=[(0, 4, 5), (4, 8, 6)])
    world.send(ev.CheckpointCommitted("w/1", CheckpointId(A, 6)))
    text = json.dumps({"job": UID, "attempt": 1, "state": carry(world.state)})
    after = World(job({"name": "w", "replicas": 1})).boot()
    after.send(carried(text, UID, 2))
    assert (feed(after).todo, acked(after)) == (((4, 10),), [(0, 4)])
    (message,) = [note.message for note in after.notes(reasons.RESTART_COUNTS_RESTORED)]
    assert "nobody restores the checkpoints of w/1, and shards in them are not handed out again" in message
    assert "An attempt with 2 ranks of w restores them" in message
    same_size = World(LONE).boot()
    same_size.send(carried(text, UID, 2))
    assert (feed(same_size).todo, acked(same_size)) == (((8, 10),), [(0, 4), (4, 8)])
    handover = json.dumps({"job": UID, "attempt": 2, "state": carry(after.state)})
    as_many_again = World(LONE).boot()
    as_many_again.send(carried(handover, UID, 3))
    as_many_again.send(ev.CheckpointDecided("w/1", RunId(3, 1), CheckpointId(A, 6)))
    assert (feed(as_many_again).todo, acked(as_many_again)) == (((4, 10),), [(0, 4)])
    assert "nobody" not in same_size.notes(reasons.RESTART_COUNTS_RESTORED)[0].message


def test_a_step_that_is_saved_again_has_what_was_done_since_its_first_save(world):
    tell(world, 0, want=2, saves=True)
    tell(world, 0, want=0, saves=True, done=[(0, 4, 5), (4, 8, 5, 2)])
    told = carry(world.state)
    assert told["data"]["d"][4] == [["w/0", 1, 1, 5, 0, 4], ["w/0", 1, 1, 5, 4, 8, 2]]
    after = World(LONE).boot()
    after.send(carried(json.dumps({"job": UID, "attempt": 1, "state": told}), UID, 2))
    assert feed(after).acked == feed(world).acked
    world.send(ev.CheckpointDecided("w/0", B, CheckpointId(A, 5, 2)))
    assert acked(world) == [(0, 4)]
    world.send(ev.CheckpointDecided("w/0", C, CheckpointId(A, 5)))
    assert feed(world).todo == ((0, 10),)


def test_an_attempt_that_finds_no_checkpoint_does_all_again_that_the_last_one_had_in_them():
    world, one = World(WORLD).boot(), {"role": "t", "saves": True}
    tell(world, 0, want=1, **one)
    tell(world, 0, want=0, done=[(0, 4, -1)], **one)
    world.send(ev.CheckpointCommitted("t", CheckpointId(A, 2), CheckpointId(A, 1)))
    text = json.dumps({"job": UID, "attempt": 1, "state": carry(world.state)})
    for chosen, todo in ((None, ((0, 10),)), (CheckpointId(A, 1), ((4, 10),))):
        after = World(WORLD).boot()
        after.send(carried(text, UID, 2))
        after.send(ev.CheckpointDecided("t", RunId(2, 1), chosen))
        assert feed(after).todo == todo


def test_positions_dropped_from_a_short_handover_come_back_once(monkeypatch):
    """Joining neighbours took in what was not done: it is still to be done once."""
    monkeypatch.setattr(shards, "ROWS", 1)
    full = ShardTable(10, 1, 1, ((2, 3), (8, 10)), settled=Map({"t": ((0, 2), (3, 8))}))
    told = json.loads(json.dumps({"d": shards._carry(full)}))
    ((_, after),) = shards.read_carried_positions(told)
    again, count = shard_table.restore_checkpoint(after, "t", RunId(2, 1), None)
    assert (again.todo, count) == (((0, 10),), 8)


def test_a_long_list_of_shards_is_handed_on_shortened_and_partly_done_again(monkeypatch):
    monkeypatch.setattr(shards, "ROWS", 2)
    many = tuple(Acked("w/0", CheckpointId(A, n), n, n + 1) for n in (1, 3, 20, 30))
    full = ShardTable(100, 1, 1, ((0, 1), (5, 10), (40, 50)), acked=many)
    (_, _, _, todo, rows, *_) = shards._carry(full)
    assert todo == [[0, 10], [40, 50]]
    assert [row[4:] for row in rows] == [[20, 21], [30, 31]]
    inside = replace(full, acked=(*many, Acked("w/0", CheckpointId(A, 9), 4, 5)), todo=((0, 1), (5, 6), (50, 51)))
    assert [row[4:] for row in shards._carry(inside)[4]] == [[30, 31]]


# -- the law


@st.composite
def stories(draw):
    return [
        draw(
            st.tuples(
                st.sampled_from(["ask", "ask", "ask", "do", "do", "save", "again", "commit", "die", "reload"]),
                st.integers(0, 1),
                st.integers(0, 3),
            )
        )
        for _ in range(draw(st.integers(0, 40)))
    ]


NONE = (-1, 0)


def mark_of(life, step, revision):
    return CheckpointId(RunId(1, life), step, revision)


def order_of(saved):
    return mark_of(*saved)


class Trainers:
    """Two ranks that save each by itself; what each has in its hands, its memory and its checkpoints."""

    def __init__(self):
        self.feed = shard_table.new_table(7, 2, 2)
        self.life = [1, 1]
        self.last = [NONE, NONE]
        """(step, revision) of the last save of the present life."""
        self.seen = [[], []]
        """What the model of a rank has been trained on, in the lineage that it is in."""
        self.saved = [{}, {}]
        """(life, step, revision) -> what the model had seen."""
        self.did = [[], []]
        """(last save before, interval), of the present life."""
        self.began = [None, None]
        """The checkpoint with which the present life began."""

    def held(self, rank):
        found = self.feed.leases.get(("w", rank))
        return found.runs if found else ()

    def ask(self, rank, many):
        who = self.feed.leases.get(("w", rank)) or ShardLeases(
            f"w/{rank}", self.life[rank], RunId(1, self.life[rank]), saves=True
        )
        self.feed = shard_table.lease_shards(self.feed, ("w", rank), who, many)

    def do(self, rank, which):
        runs = self.held(rank)
        if runs:
            run = runs[which % len(runs)]
            self.seen[rank] = [*self.seen[rank], *range(*run)]
            self.feed = shard_table.finish_shard(self.feed, ("w", rank), self.life[rank], run, self.last[rank])
            self.did[rank].append((self.last[rank], run))

    def reload(self, rank, which):
        """Load again in the same life: its newest checkpoint that is not damaged, else the one with which it began."""
        own = sorted((mark for mark in self.saved[rank] if mark[0] == self.life[rank]), key=order_of)
        chosen = own[-1 - which % len(own)] if own else self.began[rank]
        self.saved[rank] = {
            mark: seen for mark, seen in self.saved[rank].items() if not own or order_of(mark) <= order_of(chosen)
        }
        mark = chosen and mark_of(*chosen)
        undone = [
            run for last, run in self.did[rank] if not shard_table.is_covered(mark_of(self.life[rank], *last), mark)
        ]
        self.did[rank] = [one for one in self.did[rank] if one[1] not in undone]
        self.seen[rank] = self.saved[rank][chosen] if chosen else []
        self.feed = shard_table.take_back_leases(self.feed, ("w", rank))
        self.feed, _ = shard_table.undo_runs(self.feed, f"w/{rank}", undone)

    def save(self, rank, _):
        self.last[rank] = (self.last[rank][0] + 1, self.last[rank][1])
        self.saved[rank][self.life[rank], *self.last[rank]] = self.seen[rank]

    def again(self, rank, which):
        """Save the last step once more, or a lower one."""
        step, revision = self.last[rank]
        if step >= 0:
            self.last[rank] = (max(0, step - which), revision + 1)
            self.saved[rank][self.life[rank], *self.last[rank]] = self.seen[rank]

    def commit(self, rank, _):
        if self.saved[rank]:
            newest = sorted(self.saved[rank], key=order_of)[-2:]
            self.saved[rank] = {mark: self.saved[rank][mark] for mark in newest}
            self.feed = shard_table.settle_until(self.feed, f"w/{rank}", mark_of(*newest[0]), remember=True)

    def die(self, rank, which):
        """Its next life goes on from any checkpoint that is left, or from none."""
        left = [None, *sorted(self.saved[rank], key=order_of)]
        chosen = left[-1 - which % len(left)]
        self.life[rank] += 1
        self.last[rank], self.did[rank], self.began[rank] = NONE, [], chosen
        self.seen[rank] = self.saved[rank][chosen] if chosen else []
        self.saved[rank] = {
            mark: seen for mark, seen in self.saved[rank].items() if chosen and order_of(mark) <= order_of(chosen)
        }
        mark = chosen and mark_of(*chosen)
        self.feed, _ = shard_table.restore_checkpoint(self.feed, f"w/{rank}", RunId(1, self.life[rank]), mark)

    def check(self):
        todo = [p for run in self.feed.todo for p in range(*run)]
        held = [p for rank in (0, 1) for run in self.held(rank) for p in range(*run)]
        assert sorted([*todo, *held, *self.seen[0], *self.seen[1]]) == list(range(14))
        assert list(self.feed.todo) == sorted(self.feed.todo)


@pytest.mark.parametrize("rows", [0, shard_table.ROWS])
@given(story=stories())
def test_each_position_is_leased_once_whoever_dies_and_wherever_it_resumes(rows, story):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_table, "ROWS", rows)
        live(story)


def live(story):
    them = Trainers()
    for what, rank, how in story:
        getattr(them, what)(rank, how)
        them.check()
    while not them.feed.over:
        for rank in (0, 1):
            them.ask(rank, 1)
            them.do(rank, 0)
    assert sorted(them.seen[0] + them.seen[1]) == list(range(14))


class Savers:
    """An Elastic rank and an Actor rank on the real core, and a disk that refuses some manifests."""

    roles = ("t", "w")
    names = ("t", "w/0")

    def __init__(self):
        self.world = World(job({"name": "t", "type": "Elastic", "replicas": 1}, {"name": "w", "replicas": 1})).boot()
        self.life, self.last, self.seen = [1, 1], [NONE, NONE], [[], []]
        self.disk = [{}, {}]
        """Checkpoint with a manifest -> what the model had seen."""
        self.once = True
        """Whether nothing may be done again yet."""

    def work(self, own, _=0):
        who = {"rank": 0, "role": self.roles[own], "life": RunId(1, self.life[own]), "saves": True, "shard": 1}
        for run in tell(self.world, want=1, **who):
            self.seen[own] = [*self.seen[own], *range(*run)]
            tell(self.world, want=0, done=[(*run, *self.last[own])], **who)

    def save(self, own, how, *, refused=False):
        """Save the next step, or the last one again. The journal has it, and the disk may refuse its manifest."""
        step, revision = self.last[own]
        self.last[own] = (0, revision + 1) if how == 0 and step >= 0 else (step + 1, revision)
        mark, whole = mark_of(self.life[own], *self.last[own]), sorted(self.disk[own])[-2:]
        self.world.send(ev.CheckpointCommitted(self.names[own], mark, whole[0] if whole else None))
        if not refused:
            self.disk[own][mark] = self.seen[own]
            if self.roles[own] == "w":  # the disk of the other one does not delete either
                self.disk[own] = dict(sorted(self.disk[own].items())[-2:])

    def refuse(self, own, how):
        self.save(own, how, refused=True)

    def die(self, own, how):
        """Restore any checkpoint on disk: the Elastic rank may find all of them damaged, the Actor rank one of two."""
        left = sorted(self.disk[own])
        among = [None, *left] if self.roles[own] == "t" else left or [None]
        chosen = among[-1 - how % len(among)]
        self.once &= chosen in (None, *left[-2:])
        self.life[own], self.last[own] = self.life[own] + 1, NONE
        self.seen[own] = self.disk[own][chosen] if chosen else []
        self.disk[own] = {mark: seen for mark, seen in self.disk[own].items() if chosen and mark <= chosen}
        self.world.send(ev.CheckpointDecided(self.names[own], RunId(1, self.life[own]), chosen))

    def check(self):
        if "d" not in self.world.state.feeds:
            return
        now = feed(self.world)
        left = [*now.todo, *(run for held in now.leases.values() for run in held.runs)]
        spots = sorted([*(p for run in left for p in range(*run)), *self.seen[0], *self.seen[1]])
        assert sorted(set(spots)) == list(range(10)), "a position is lost"
        assert spots == list(range(10)) or not self.once, "a position is done twice"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["work", "work", "save", "refuse", "refuse", "die"]), st.integers(0, 1), st.integers(0, 3)
        ),
        min_size=8,
        max_size=30,
    )
)
def test_no_position_is_lost_though_the_disk_refuses_manifests_and_whatever_is_restored(story):
    them = Savers()
    for what, own, how in story:
        getattr(them, what)(own, how)
        them.check()


def turns(feed, worlds, shards):
    """Worlds that never save take turns, a shard each."""
    for number in range(shards):
        rank = number % worlds
        who = feed.leases.get(("w", rank)) or ShardLeases(f"w/{rank}", 1, A, saves=True)
        feed = shard_table.lease_shards(feed, ("w", rank), who, 1)
        (run,) = feed.leases["w", rank].runs
        feed = shard_table.finish_shard(feed, ("w", rank), 1, run, NONE)
    return feed


def test_the_state_of_a_data_set_does_not_grow_with_its_size():
    epochs, worlds = 3, 7
    feed = turns(shard_table.new_table(1000, 1, epochs), worlds, 3000)
    assert feed.over
    assert sum(one.end - one.start for one in feed.acked) == 3000
    assert len(feed.acked) < shard_table.ROWS + 2 * worlds * 10 * epochs
    assert feed.acked[:1023] == turns(shard_table.new_table(1000, 1, epochs), worlds, 1023).acked


def test_a_shard_that_is_done_changes_one_row_of_the_journal():
    feed = turns(shard_table.new_table(1000, 1, 1), 7, 600)
    after = shard_table.finish_shard(
        shard_table.lease_shards(feed, ("w", 0), feed.leases["w", 0], 1), ("w", 0), 1, (600, 601), NONE
    )
    state = World(LONE).state
    before, now = (replace(state, feeds=Map({"d": one})) for one in (feed, after))
    assert len(json.dumps(changes(before, now))) < 1000


def test_a_world_stays_in_a_stretch_of_its_own_and_in_its_epoch(monkeypatch):
    monkeypatch.setattr(shard_table, "ROWS", 1)
    first = turns(shard_table.new_table(100, 10, 2), 1, 1)
    other = shard_table.lease_shards(first, ("w", 1), ShardLeases("w/1", 1, A, saves=True), 3)
    assert other.leases["w", 1].runs == ((50, 60), (60, 70), (70, 80))
    assert shard_table.lease_shards(other, ("w", 0), other.leases["w", 0], 2).leases["w", 0].runs == (
        (10, 20),
        (20, 30),
    )
    rest = shard_table.lease_shards(other, ("w", 1), other.leases["w", 1], 99)
    assert rest.todo == ()
    assert sorted(rest.leases["w", 1].runs) == [(n, n + 10) for n in range(10, 200, 10)]
    assert rest.leases["w", 1].runs.index((190, 200)) > rest.leases["w", 1].runs.index((10, 20))


def test_rows_of_a_journal_of_before_were_in_no_order():
    before = ShardTable(
        10, 1, 1, ((5, 10),), acked=(Acked("w/0", CheckpointId(A, -1), 3, 5), Acked("w/1", CheckpointId(A, -1), 0, 3))
    )
    ((_, read),) = shards.read_carried_positions(json.loads(json.dumps({"d": shards._carry(before)})))
    feed = turns(read, 2, 5)
    assert sorted(p for one in feed.acked for p in range(one.start, one.end)) == list(range(10))
    again, count = shard_table.restore_checkpoint(feed, "w/1", B, None)
    assert count == sum(one.end - one.start for one in feed.acked if one.world == "w/1")
    assert not [one for one in again.acked if one.world == "w/1"]


@given(st.lists(st.tuples(st.sampled_from(["ask", "done", "kill", "master"]), st.integers(0, 1)), max_size=25))
def test_in_a_whole_job_every_position_is_leased_once_until_it_is_done(story):
    world = World(LONE).boot()
    out = set()
    for what, rank in story:
        own = world.state.ranks["w", rank]
        if what == "ask":
            out |= set(tell(world, rank, want=1))
        elif what == "done":
            held = shards.runs_of(world.state, "d", ("w", rank), own.incarnation) if "d" in world.state.feeds else ()
            tell(world, rank, want=0, done=[(*run, None) for run in held])
        elif what == "kill" and own.phase.live:
            world.kill("w", rank)
            world.settle()
        else:
            world.send(ev.MasterStarted(world.state.epoch + 1))
        if world.state.verdict is not None or "d" not in world.state.feeds:
            continue
        now = feed(world)
        pieces = [*now.todo, *(run for held in now.leases.values() for run in held.runs)]
        spots = [p for run in pieces for p in range(*run)]
        assert len(spots) == len(set(spots))


def test_a_holder_that_is_not_there_has_nothing_to_give_back():
    one = shard_table.new_table(4, 2, 1)
    assert shard_table.take_back_leases(one, ("w", 0)) is one
    assert shard_table.lease_shards(
        replace(one, todo=()), ("w", 0), ShardLeases("w/0", 1, A, saves=False), 2
    ).leases == Map({("w", 0): ShardLeases("w/0", 1, A, saves=False)})
    assert KILLED.ok is False
