"""Consistent cuts in the core: who takes part, when one counts, when it is given up, and what goes back to it."""

from __future__ import annotations

import pytest
from master_kit import UID, World, job

from dljob.master import status
from dljob.master.failure import cuts
from dljob.master.persistence.codec import encode_state
from dljob.master.persistence.migration import take as take_over
from dljob.master.state import events as ev
from dljob.master.state.checkpoint_ids import CheckpointId, Committed, RunId
from dljob.master.state.cuts import (
    MAX_QUEUES,
    Cut,
    CutQueue,
    checkpoints_allowed_by_cuts,
    checkpoints_in_cuts,
    worlds_restored_together,
)
from dljob.master.state.evolve import evolve
from dljob.master.state.shard_table import new_table
from dljob.master.state.state import Phase, RankPhase
from dljob.master.transition import initial, transition
from dljob.telemetry import reasons

FILE = CutQueue("samples", "/cuts/cut-1/samples.queue", 3, 1 << 20, 7)
TRAINER = {"name": "t", "type": "Elastic", "replicas": 2}
DRIVERS = {"name": "w", "replicas": 2}
ROLLOUT = {"name": "rollout", "driver": False, "replicas": 2}


@pytest.fixture
def world():
    new_world = World(job(TRAINER, DRIVERS, ROLLOUT)).boot()
    new_world.send(ev.QueueOpened("samples"))
    new_world.send(ev.CheckpointDecided("t", RunId(1, 1), None))
    new_world.send(ev.CheckpointDecided("w/0", RunId(1, 1), None))
    return new_world


def mark(step, number=1):
    return CheckpointId(RunId(1, number), step)


def take(world, number, step, *, life=1, incarnation=1, commit=True):
    for role, rank in (("t", 0), ("t", 1), ("w", 0)):
        world.send(ev.CutTaken(number, role, rank, incarnation, mark(step, life)))
    for name in ("t", "w/0") if commit else ():
        world.send(ev.CheckpointCommitted(name, mark(step, life)))


def cut(world, step, *, life=1, incarnation=1):
    world.send(ev.CutAsked("t/0"))
    number = world.state.cuts.last_number
    world.send(ev.CutBegun(number))
    take(world, number, step, life=life, incarnation=incarnation)
    world.send(ev.CutSealed(number, (FILE,)))
    assert world.state.cuts.open_cut is None
    return number


def messages_of(world, reason):
    return [note.message for note in world.notes(reason)]


def test_a_command_takes_a_cut_as_a_rank_does(world):
    world.send(ev.Commanded("1", "checkpoint", by="annotation"), after=1)
    assert (world.state.cuts.open_cut.number, world.state.cuts.open_cut.requested_by) == (1, "annotation")
    world.send(ev.Commanded("1", "checkpoint", by="annotation"), after=1)
    world.send(ev.Commanded("2", "checkpoint", "t"), after=1)
    assert world.state.cuts.last_number == 1
    assert messages_of(world, reasons.COMMAND_REFUSED) == [
        "checkpoint refused: a checkpoint is of the whole job, not of t"
    ]


def test_a_cut_counts_once_states_and_queues_are_on_disk(world):
    world.send(ev.CutAsked("t/0"), after=1)
    begun = world.state.cuts.open_cut
    assert sorted(begun.members_by_key) == [("t", 0), ("t", 1), ("w", 0)]
    assert begun.members_to_save == ()
    world.send(ev.CutAsked("w/0"))  # two at once are one
    assert world.state.cuts.open_cut is begun
    world.send(ev.CutBegun(1, ("t/0", "t/1")))
    assert [entry.role for entry in world.state.cuts.open_cut.members_to_save] == ["t", "t"]
    world.send(ev.CutBegun(1))
    world.send(ev.CutTaken(1, "t", 0, 1, mark(5)))
    world.send(ev.CutTaken(1, "t", 1, 1, mark(5)))
    assert [entry.role for entry in world.state.cuts.open_cut.members_to_save] == ["w"]
    assert checkpoints_in_cuts(world.state.cuts, "t") == (mark(5),)
    world.send(ev.CutTaken(1, "w", 0, 1, mark(9)))
    world.send(ev.CutSealed(1, (FILE,), "/ckpt/j"))
    world.send(ev.CheckpointCommitted("t", mark(5)))
    assert world.state.cuts.kept_cuts == ()
    world.send(ev.CheckpointCommitted("w/0", mark(9)), after=2)
    (cut,) = world.state.cuts.kept_cuts
    assert (cut.number, cut.checkpoints, cut.queues) == (1, (("t", mark(5)), ("w/0", mark(9))), (FILE,))
    assert messages_of(world, reasons.CUT_COMMITTED) == [
        "cut 1: steps t 5, w/0 9; 3 items (1.0 MiB) of 1 queue; in 2.0 s, in /ckpt/j",
    ]
    assert checkpoints_allowed_by_cuts(world.state.cuts, "t") == (mark(5),)
    assert checkpoints_allowed_by_cuts(world.state.cuts, "w/1") is None


def test_the_status_counts_cuts_and_names_the_one_that_the_job_went_back_to(world):
    assert "cuts" not in status.brief(world.state, world.now, {})
    for step in (1, 2):
        cut(world, step)
    world.send(ev.CutAsked("t/0"))
    world.send(ev.CutGivenUp(3, "the disk is full"))
    world.send(ev.CheckpointDecided("t", RunId(1, 2), mark(2)))
    last_cut = world.state.cuts.kept_cuts[-1]
    assert status.status(world.state, world.now, {})["cuts"] == {
        "committed": 2,
        "givenUp": 1,
        "why": "cut 3: the disk is full",
        "last": 2,
        "lastTime": status.rfc3339(last_cut.at),
        "restored": 1,
        "restoredCut": 2,
    }
    world.send(ev.CutDamaged(2, "gone"))
    world.send(ev.CutDamaged(1, "gone"))
    cut_status = status.brief(world.state, world.now, {})["cuts"]
    assert (cut_status["committed"], cut_status["last"], cut_status["lastTime"]) == (2, None, None)


def test_a_queue_that_is_opened_during_a_cut_ends_it(world):
    """A rank may put there before it saves: its state would have put what the cut does not hold."""
    world.send(ev.CutAsked("t/0"))
    world.send(ev.QueueOpened("samples"))  # again, by another process of it
    assert world.state.cuts.open_cut is not None
    world.send(ev.QueueOpened("other"))
    assert world.state.cuts.open_cut is None
    assert messages_of(world, reasons.CUT_GIVEN_UP) == [
        "cut 1 is given up: queue other was opened during it; there is no earlier one",
    ]
    assert cut(world, 5) == 2


def test_each_event_of_a_large_cut_looks_at_its_own_ranks_alone(monkeypatch):
    count = 64
    world = World(job({**TRAINER, "replicas": count}, {"name": "w", "driver": False})).boot()
    world.send(ev.CheckpointDecided("t", RunId(1, 1), None))
    world.send(ev.CutAsked("t/0"))
    world.send(ev.CutBegun(1))
    members, looked = [], []
    monkeypatch.setattr(cuts, "evolve", lambda old, **new: members.append(old) or evolve(old, **new))
    is_lost = cuts._is_member_lost
    monkeypatch.setattr(cuts, "_is_member_lost", lambda d, entry: looked.append(entry.rank) or is_lost(d, entry))
    for rank in range(count):
        world.send(ev.CutTaken(1, "t", rank, 1, mark(5)))
    assert world.state.cuts.open_cut.unsaved_count == 0
    sends = 2  # the kit folds each event twice, to compare
    assert (len(members), looked) == (3 * count * sends, []), "the rank, the cut and all cuts"
    world.kill("w", 0)
    world.settle()
    assert looked == [], "a rank without a part in it"
    world.kill("t", 7)
    world.deliver()
    assert looked
    assert messages_of(world, reasons.CUT_GIVEN_UP)[0].startswith("cut 1 is given up: t/0 was lost, or ended,")


def test_a_mark_of_another_process_or_rank_is_not_that_of_the_cut(world):
    world.send(ev.CutAsked("t/0"))
    world.send(ev.CutBegun(1))
    before = world.state.cuts.open_cut
    world.send(ev.CutTaken(1, "t", 0, 9, mark(5)))
    world.send(ev.CutTaken(1, "rollout", 0, 1, mark(5)))
    assert world.state.cuts.open_cut is before
    for _ in range(2):  # again, as its answer was lost
        world.send(ev.CutTaken(1, "t", 0, 1, mark(5)))
    assert [(entry.role, entry.rank) for entry in world.state.cuts.open_cut.unsaved_members] == [("t", 1), ("w", 0)]
    assert world.state.cuts.open_cut.unsaved_count == 2


def test_a_cut_of_a_state_that_another_version_wrote_is_given_up(world):
    world.send(ev.CutAsked("t/0"))
    written = encode_state(world.state)
    for name in ("members_by_key", "unsaved_count"):
        del written["cuts"]["open_cut"][name]
    written["cuts"]["open_cut"]["members"] = []
    new_state = take_over(written, initial(world.plan, world.spec, UID, world.start), world.plan.digest, world.now)
    assert (new_state.left_out, new_state.anew) == (("cuts.open_cut.members",), "")
    world.state = new_state.state
    world.send(ev.Tick())
    assert world.state.cuts.open_cut is None
    assert messages_of(world, reasons.CUT_GIVEN_UP)[0].startswith(
        "cut 1 is given up: the version of dljob has changed;"
    )


def test_the_checkpoints_of_the_last_two_cuts_stay_however_many_come_after(world):
    for step in (1, 2, 3):
        cut(world, step)
    for step in (4, 5, 6):
        world.send(ev.CheckpointCommitted("t", mark(step)))
    assert [entry.number for entry in world.state.cuts.kept_cuts] == [2, 3]
    assert [entry.mark.step for entry in world.state.saves["t"].committed] == [2, 3, 5, 6]
    assert checkpoints_allowed_by_cuts(world.state.cuts, "t") == (mark(3), mark(2))


def test_a_queue_that_lost_its_items_takes_the_ranks_of_the_last_cut_back_to_it(world):
    cut(world, 1)
    world.send(ev.QueueOpened("samples", "first"))
    world.send(ev.QueueOpened("samples", "first"))
    world.send(ev.QueueOpened("samples"))  # of a queue's process that knows of no token
    world.send(ev.CutAsked("t/0"))
    assert messages_of(world, reasons.RESTARTING) == []
    world.send(ev.QueueOpened("samples", "second"))
    cause = "queue samples lost its items with the machine that held them"
    assert messages_of(world, reasons.CUT_GIVEN_UP) == [f"cut 2 is given up: {cause}; cut 1 stays the last one"]
    (restart,) = messages_of(world, reasons.RESTARTING)
    assert restart.startswith(f"{cause}; restarting ")
    (incident,) = world.state.incidents.values()
    assert {*incident.members} == {("t", 0), ("t", 1), ("w", 0)}
    # Another queue of that machine opens meanwhile: they restart already.
    world.send(ev.QueueOpened("other", "first"))
    world.send(ev.QueueOpened("other", "second"))
    assert len(messages_of(world, reasons.RESTARTING)) == 1
    world.settle()
    world.send(ev.CheckpointDecided("t", RunId(1, 2), mark(1)))
    assert world.state.cuts.folder_tokens == ()
    # It was opened before the others went back, or goes back itself when it is opened.
    world.send(ev.QueueOpened("samples", "third"))
    assert len(messages_of(world, reasons.RESTARTING)) == 1


def test_no_cut_is_begun_before_all_worlds_of_the_last_one_have_gone_back(world):
    files = (FILE, evolve(FILE, name="unopened"))
    worlds = (("gone", mark(1)), ("t", mark(1)), ("w/0", mark(1)), ("w/7", mark(1)))
    later = World(job(TRAINER, DRIVERS, ROLLOUT)).boot()
    later.send(ev.CutsFound((Cut(4, 1.0, worlds, files),)))
    later.send(ev.CheckpointDecided("t", RunId(1, 1), mark(1)))
    later.send(ev.QueueOpened("samples", "first"))
    later.send(ev.CutAsked("t/0"))
    assert (later.state.cuts.open_cut, later.state.cuts.refusal) == (None, "w/0 has yet to go back to cut 4")
    assert [entry.name for entry in later.state.cuts.unopened] == ["unopened"]
    later.send(ev.CheckpointDecided("w/0", RunId(1, 1), mark(1)))
    later.send(ev.CutAsked("t/0"))
    # An earlier attempt may have had other roles, or more ranks.
    assert later.state.cuts.pending_worlds == ("gone", "w/7")
    assert later.state.cuts.open_cut is not None
    assert later.state.cuts.opened == ("samples",)


def test_without_a_cut_or_at_the_end_of_the_job_a_lost_queue_restarts_nobody(world):
    world.send(ev.QueueOpened("samples", "first"))
    world.send(ev.QueueOpened("samples", "second"))
    assert messages_of(world, reasons.RESTARTING) == []
    cut(world, 1)
    ending = evolve(world.state, phase=Phase.STOPPING)
    assert not transition(ending, ev.QueueOpened("samples", "third"), world.now).state.incidents


def test_a_lost_rank_gives_the_cut_up_and_the_one_before_stays(world):
    cut(world, 1)
    world.send(ev.CutAsked("t/0"))
    world.kill("w", 0)
    world.settle()
    assert world.state.cuts.open_cut is None
    assert messages_of(world, reasons.CUT_GIVEN_UP) == [
        "cut 2 is given up: t/0 was lost, or ended, before it was complete; cut 1 stays the last one"
    ]
    ending = evolve(world.state, phase=Phase.STOPPING)
    assert transition(ending, ev.CutAsked("t/0"), world.now).state.cuts.refusal == "the job ends"
    for event in (ev.CutBegun(2), ev.CutTaken(2, "t", 0, 1, mark(1)), ev.CutSealed(2), ev.CutGivenUp(2, "late")):
        before = world.state.cuts
        world.send(event)
        assert world.state.cuts is before


def test_ranks_of_a_world_that_saved_different_steps_give_the_cut_up(world):
    world.send(ev.CutAsked("t/0"))
    world.send(ev.CutBegun(1))
    take(world, 1, 5, commit=False)
    world.send(ev.CutTaken(1, "t", 1, 1, mark(6)))
    world.send(ev.CutSealed(1))
    assert "ranks of t saved different steps; there is no earlier one" in messages_of(world, reasons.CUT_GIVEN_UP)[0]


def test_a_cut_is_given_up_by_order_and_refused_without_a_rank_that_saves(world):
    world.send(ev.CutAsked("t/0"))
    world.send(ev.CutGivenUp(1, "queue samples cannot be written"))
    assert world.state.cuts.refusal == "cut 1: queue samples cannot be written"
    bare = World(job(ROLLOUT, TRAINER)).boot()
    bare.send(ev.CutAsked("t/0"))
    assert bare.state.cuts.refusal == "no rank of the job uses dljob.checkpoint"


def test_a_rank_that_has_ended_well_takes_no_part_unless_it_has_saved(world):
    world.send(ev.CutAsked("t/0"))
    world.send(ev.CutBegun(1))
    world.send(ev.CutTaken(1, "w", 0, 1, mark(9)))
    world.end("w", 0)
    world.settle()
    assert world.state.cuts.open_cut is not None
    world.send(ev.CutGivenUp(1, "x"))
    world.send(ev.CutAsked("t/0"))
    assert sorted(world.state.cuts.open_cut.members_by_key) == [("t", 0), ("t", 1)]


def test_all_worlds_of_a_cut_go_back_together_and_only_to_that_cut(world):
    cut(world, 1)
    cut(world, 2)
    world.send(ev.CutAsked("t/0"))
    world.kill("w", 0)
    world.settle()
    assert [world.state.ranks["t", rank].incarnation for rank in (0, 1)] == [2, 2]
    assert world.state.ranks["w", 1].incarnation == 1
    assert world.state.ranks["rollout", 0].incarnation == 1
    assert "they go back to the last cut together" in messages_of(world, reasons.RESTARTED_WITH)[0]
    world.send(ev.CheckpointDecided("w/0", RunId(1, 2), mark(1)))
    cuts = world.state.cuts
    numbers = [entry.number for entry in cuts.kept_cuts]
    assert (cuts.restore_count, cuts.last_restored_number, cuts.pending_worlds, numbers) == (1, 1, ("t",), [1])
    assert checkpoints_allowed_by_cuts(cuts, "t") == (mark(1),)
    world.send(ev.CheckpointDecided("w/0", RunId(1, 2), mark(1)))  # another rank's word on the same life
    world.send(ev.CheckpointDecided("t", RunId(1, 2), mark(1)))
    assert (world.state.cuts.restore_count, world.state.cuts.pending_worlds) == (1, ())
    assert messages_of(world, reasons.CUT_RESTORED) == ["w/0 takes the job back to cut 1, with 3 items of samples"]


def test_a_job_without_a_readable_cut_begins_anew_with_empty_queues(world):
    cut(world, 1)
    world.send(ev.CutAsked("t/0"))
    world.send(ev.CheckpointDecided("t", RunId(1, 2), None))
    cuts = world.state.cuts
    assert (cuts.restore_count, cuts.last_restored_number, cuts.restored_cut, cuts.kept_cuts, cuts.open_cut) == (
        1,
        0,
        None,
        (),
        None,
    )
    assert "the beginning, with empty queues" in messages_of(world, reasons.CUT_RESTORED)[0]
    assert "t restores a checkpoint" in messages_of(world, reasons.CUT_GIVEN_UP)[0]


def test_the_next_attempt_goes_back_to_a_cut_that_it_finds(world):
    number = cut(world, 3)
    kept_cuts = world.state.cuts.kept_cuts
    later = World(job(TRAINER, DRIVERS, ROLLOUT)).boot()
    later.send(ev.CutsFound(()))
    assert later.state.cuts.last_number == 0
    later.send(ev.CutsFound(kept_cuts))
    later.send(ev.CutsFound(()))
    assert (later.state.cuts.last_number, checkpoints_allowed_by_cuts(later.state.cuts, "t")) == (number, (mark(3),))
    later.send(ev.CheckpointDecided("t", RunId(2, 1), mark(3)))
    later_cuts = later.state.cuts
    assert (later_cuts.restore_count, later_cuts.last_restored_number, later_cuts.pending_worlds) == (
        1,
        number,
        ("w/0",),
    )
    later.send(ev.CheckpointDecided("w/0", RunId(2, 1), mark(3)))
    assert later.state.cuts.restore_count == 1


def test_a_world_that_took_no_part_restores_as_it_always_did(world):
    cut(world, 1)
    world.kill("w", 1)
    world.settle()
    world.send(ev.CheckpointDecided("w/1", RunId(1, 2), None))
    assert world.state.cuts.restore_count == 0
    assert world.state.ranks["t", 0].phase is RankPhase.READY


def test_a_rank_that_is_not_ready_refuses_a_cut(world):
    failed = evolve(world.state.ranks["w", 0], phase=RankPhase.STARTING)
    begins = evolve(world.state, ranks=world.state.ranks.set(("w", 0), failed))
    assert transition(begins, ev.CutAsked("t/0"), world.now).state.cuts.refusal == "w/0 is Starting"


def test_a_rank_without_a_state_that_restarts_is_no_reason_against_a_cut(world):
    world.kill("rollout", 0)
    world.send(ev.CutAsked("t/0"))
    world.settle()
    assert world.state.cuts.open_cut is not None
    assert world.state.ranks["rollout", 0].incarnation == 2


def test_a_job_counts_only_so_many_queues(world):
    for number in range(MAX_QUEUES + 1):
        world.send(ev.QueueOpened(str(number)))
    assert len(world.state.cuts.queue_names) == MAX_QUEUES


def test_a_cut_with_a_damaged_queue_file_is_passed_over_whole(world):
    cut(world, 1)
    cut(world, 2)
    world.send(ev.CutDamaged(2, "queue samples: x is damaged"))
    world.send(ev.CutDamaged(2, "again"))
    assert messages_of(world, reasons.CUT_DAMAGED) == [
        "cut 2 is passed over: queue samples: x is damaged; ranks and queues go back to cut 1"
    ]
    assert [checkpoints_allowed_by_cuts(world.state.cuts, name) for name in ("t", "w/0")] == [(mark(1),), (mark(1),)]


def test_without_a_whole_cut_all_worlds_begin_anew_though_they_have_checkpoints(world):
    cut(world, 1)
    world.send(ev.CheckpointCommitted("t", mark(7)))
    world.kill("t", 0)
    world.settle()
    world.send(ev.CutDamaged(1, "queue samples: x cannot be read"))
    (words,) = messages_of(world, reasons.CUT_DAMAGED)
    assert "cut 1 is passed over: queue samples: x cannot be read; no cut is left: 3 items of samples" in words
    assert "the steps up to t 1, w/0 1 are lost, and all begin anew with empty queues" in words
    assert worlds_restored_together(world.state.cuts, frozenset({"t"})) == ("w/0",)
    assert (
        checkpoints_allowed_by_cuts(world.state.cuts, "t") == checkpoints_allowed_by_cuts(world.state.cuts, "w/0") == ()
    )
    world.send(ev.CheckpointDecided("t", RunId(1, 2), mark(7)))  # it searched before the damage was known
    assert world.state.cuts.restore_count == 0
    assert world.state.saves["t"].decision(RunId(1, 2)) is None
    world.send(ev.CheckpointDecided("t", RunId(1, 2), None))
    cuts = world.state.cuts
    assert (cuts.restore_count, cuts.last_restored_number, cuts.worlds_beginning_anew, cuts.pending_worlds) == (
        1,
        0,
        (),
        ("w/0",),
    )
    assert checkpoints_allowed_by_cuts(cuts, "w/0") == ()
    world.send(ev.CheckpointDecided("w/0", RunId(1, 2), None))
    assert (world.state.cuts.restore_count, checkpoints_allowed_by_cuts(world.state.cuts, "w/0")) == (1, None)


def test_a_world_that_cannot_follow_takes_all_back_to_the_earlier_cut(world):
    cut(world, 1)
    cut(world, 2)
    world.kill("w", 0)
    world.settle()
    world.send(ev.CheckpointDecided("w/0", RunId(1, 2), mark(2)))
    world.send(ev.CheckpointDecided("t", RunId(1, 2), None, damaged=("step 2 is passed over",)))
    cuts = world.state.cuts
    assert (cuts.is_last_restored_cut_damaged, cuts.pending_worlds, [entry.number for entry in cuts.kept_cuts]) == (
        True,
        (),
        [1],
    )
    assert world.state.saves["t"].decision(RunId(1, 2)) is None
    assert messages_of(world, reasons.CHECKPOINT_DAMAGED) == ["step 2 is passed over"]
    assert "cut 2 is passed over: t cannot read its checkpoint;" in messages_of(world, reasons.CUT_DAMAGED)[0]
    world.kill("t", 0)  # the rank is told that it cannot load, and ends
    world.settle()
    world.send(ev.CheckpointDecided("t", RunId(1, 3), mark(1)))
    world.send(ev.CheckpointDecided("w/0", RunId(1, 3), mark(1)))
    cuts = world.state.cuts
    assert (cuts.restore_count, cuts.last_restored_number, cuts.pending_worlds, cuts.is_last_restored_cut_damaged) == (
        2,
        1,
        (),
        False,
    )


def test_a_world_that_skips_a_cut_takes_the_others_along(world):
    cut(world, 1)
    cut(world, 2)
    world.kill("w", 0)
    world.settle()
    world.send(ev.CheckpointDecided("w/0", RunId(1, 2), mark(1)))
    assert "cut 2 is passed over: w/0 cannot read its checkpoint" in messages_of(world, reasons.CUT_DAMAGED)[0]
    assert checkpoints_allowed_by_cuts(world.state.cuts, "t") == (mark(1),)


def test_a_world_without_a_part_in_the_earlier_cut_begins_anew(world):
    cut(world, 1)
    world.send(ev.CheckpointDecided("w/1", RunId(1, 1), None))
    world.send(ev.CutAsked("t/0"))
    world.send(ev.CutBegun(2))
    take(world, 2, 2)
    world.send(ev.CutTaken(2, "w", 1, 1, mark(2)))
    world.send(ev.CheckpointCommitted("w/1", mark(2)))
    world.send(ev.CutSealed(2, (FILE,)))
    world.send(ev.CutDamaged(2, "x"))
    assert [checkpoints_allowed_by_cuts(world.state.cuts, name) for name in ("w/1", "t")] == [(), (mark(1),)]
    assert messages_of(world, reasons.CUT_DAMAGED) == [
        "cut 2 is passed over: x; ranks and queues go back to cut 1, but these begin anew and lose their steps: w/1"
    ]
    world.kill("w", 1)
    world.settle()
    assert world.state.ranks["t", 0].incarnation == 2
    world.send(ev.CheckpointDecided("w/1", RunId(1, 2), None))
    cuts = world.state.cuts
    assert (cuts.last_restored_number, cuts.pending_worlds) == (1, ("t", "w/0"))
    assert checkpoints_allowed_by_cuts(cuts, "t") == (mark(1),)


def test_the_only_world_of_a_job_without_queues_restores_any_checkpoint_of_its_own():
    world = World(job(TRAINER)).boot()
    world.send(ev.CheckpointDecided("t", RunId(1, 1), None))
    world.send(ev.CutAsked("t/0"))
    world.send(ev.CutBegun(1))
    for rank in (0, 1):
        world.send(ev.CutTaken(1, "t", rank, 1, mark(3)))
    world.send(ev.CheckpointCommitted("t", mark(3)))
    world.send(ev.CutSealed(1))
    world.kill("t", 0)
    world.settle()
    world.send(ev.CheckpointDecided("t", RunId(1, 2), None))
    assert (
        "t restores its last checkpoint, for there is no queue it must fit"
        in messages_of(world, reasons.CUT_DAMAGED)[0]
    )
    assert (checkpoints_allowed_by_cuts(world.state.cuts, "t"), world.state.saves["t"].decision(RunId(1, 2))) == (
        None,
        None,
    )


@pytest.mark.parametrize("steps", [(3,), (3, 4)])
def test_the_only_world_goes_on_where_the_cut_it_went_back_to_can_no_longer_be_read(steps):
    world = World(job(TRAINER)).boot()
    world.send(ev.CheckpointDecided("t", RunId(1, 1), None))
    for number, step in enumerate(steps, 1):
        world.send(ev.CutAsked("t/0"))
        world.send(ev.CutBegun(number))
        for rank in (0, 1):
            world.send(ev.CutTaken(number, "t", rank, 1, mark(step)))
        world.send(ev.CheckpointCommitted("t", mark(step)))
        world.send(ev.CutSealed(number))
    for run_number, chosen in ((2, mark(steps[-1])), (3, None)):
        world.kill("t", 0)
        world.settle()
        world.send(ev.CheckpointDecided("t", RunId(1, run_number), chosen))
    assert (world.state.cuts.kept_cuts, world.state.cuts.last_restored_number) == ((), len(steps))
    assert not world.state.cuts.is_last_restored_cut_damaged


def test_the_next_attempt_is_told_of_manifests_that_cannot_be_read(world):
    cut(world, 3)
    kept_cuts = world.state.cuts.kept_cuts
    later = World(job(TRAINER, DRIVERS, ROLLOUT)).boot()
    later.send(ev.CutsFound(kept_cuts, ((2, "torn"),)))
    assert messages_of(later, reasons.CUT_DAMAGED) == ["cut 2 is passed over: torn; ranks and queues go back to cut 1"]
    assert later.state.cuts.last_number == 2
    none = World(job(TRAINER, DRIVERS, ROLLOUT)).boot()
    none.send(ev.CutsFound((), ((2, "torn"),), ("gone", "t", "w/0", "w/7")))
    assert (
        "its items are lost, and gone, t, w/0, w/7 begin anew with empty queues"
        in messages_of(none, reasons.CUT_DAMAGED)[0]
    )
    assert checkpoints_allowed_by_cuts(none.state.cuts, "t") == ()
    none.kill("t", 0)  # roles and ranks of the earlier attempt that this one has not are nobody's partners
    none.settle()
    assert none.state.ranks["w", 0].incarnation == 2
    none.send(ev.CheckpointDecided("t", RunId(2, 1), None))
    assert (none.state.cuts.restore_count, none.state.cuts.last_restored_number) == (1, 0)
    sole_world = World(job(TRAINER)).boot()
    sole_world.send(ev.CutsFound((), ((2, "torn"),)))
    assert "its items are lost, and queues begin empty" in messages_of(sole_world, reasons.CUT_DAMAGED)[0]


def test_shards_of_ranks_without_a_state_go_back_with_the_cut(world):
    def tell(*done, rank=0, data="d"):
        run = [(start, end, None, 0) for start, end in done]
        shards_event = ev.ShardsTold(
            data, 12, 2, 1, f"rollout/{rank}", "rollout", rank, 1, RunId(1, 1), False, tuple(run), 1
        )
        world.send(shards_event)
        return world.state.feeds["d"]

    tell()
    tell(data="of which nothing is done")
    cut(world, 1)
    tell((0, 2))  # after the cut was begun: what came of it may not be in the queue's part
    cut(world, 2)
    tell((2, 4))
    assert tell().leases["rollout", 0].runs == ((4, 6),)
    world.kill("w", 0)
    world.settle()
    world.send(ev.CheckpointDecided("w/0", RunId(1, 2), mark(2)))
    table = world.state.feeds["d"]
    assert (table.todo, world.state.ranks["rollout", 0].incarnation) == (((2, 12),), 1)
    assert messages_of(world, reasons.DATA_RETURNED) == ["2 samples of d are handed out again, as of the cut"]
    world.send(ev.CutDamaged(2, "torn"))
    world.send(ev.CutDamaged(1, "torn"))
    world.send(ev.CheckpointDecided("w/0", RunId(1, 3), None))
    assert world.state.feeds["d"].todo == ((0, 12),)


def test_the_positions_beside_the_newest_cut_replace_those_of_the_last_status():
    world = World(job(TRAINER)).boot()
    newer = evolve(new_table(12, 2, 1), todo=((6, 12),))
    world.send(ev.CutsFound((Cut(4, 1.0, (("t", mark(5)),)),), feeds=(("d", newer),)))
    assert world.state.feeds["d"] is newer


def test_checkpoints_of_an_attempt_with_other_types_of_roles_take_no_part_in_a_cut():
    """Else a rank would stand in it twice, and the cut would wait for a state that nobody saves."""
    world = World(job(TRAINER, DRIVERS, ROLLOUT)).boot()
    saves = tuple((name, Committed(mark(9), 0.0)) for name in ("t/0", "t/5", "w", "w/7"))
    world.send(ev.Carried(1, saves=saves))
    assert {"t/0", "w", "w/7"} <= set(world.state.saves)
    world.send(ev.CheckpointDecided("t", RunId(1, 1), None))
    world.send(ev.CheckpointDecided("w/0", RunId(1, 1), None))
    world.send(ev.QueueOpened("samples"))
    cut(world, 12)
    assert len(world.state.cuts.kept_cuts) == 1
