"""Events and states survive JSON exactly; journals fold to the state that wrote them."""

from __future__ import annotations

import json
import os
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map
from master_kit import UID, World, job, nodes

from dljob.errors import JournalError
from dljob.master.persistence import codec
from dljob.master.persistence.changes import Written, changes
from dljob.master.state import events as ev
from dljob.master.state.checkpoint_ids import CheckpointId, Committed, RunId
from dljob.master.state.cuts import Cut, CutQueue
from dljob.master.state.evolve import evolve
from dljob.master.state.stalls import RootState, Stall
from dljob.master.state.state import BudgetMark as Failure
from dljob.master.state.state import JobState, RankPhase
from dljob.master.state.views import Clue, HostId, NodeView, Outcome, PeerSample, Reason
from dljob.master.transition import _HANDLERS, initial
from dljob.telemetry.records import VERSION

FIELDS = Path(__file__).parents[3] / "golden/journal-fields.txt"

text = st.text(max_size=12)
small = st.integers(0, 10**6)
clues = st.lists(st.builds(Clue, text, text), max_size=2).map(tuple)
outcomes = st.builds(
    Outcome,
    ok=st.booleans(),
    reason=st.none() | st.sampled_from(Reason),
    code=st.none() | small,
    error_type=text,
    frame=text,
    message=text,
    detail=text,
    fatal=st.booleans(),
    step=st.none() | small,
    result=text,
    clues=clues,
)
hosts = st.builds(HostId, text, st.integers(-1, 99))
pairs = st.tuples(text, small)
devices = st.lists(st.tuples(text, st.lists(text, max_size=3).map(tuple)), max_size=2).map(tuple)
amounts = st.lists(pairs, max_size=3).map(tuple)
views = st.builds(
    NodeView,
    id=text,
    total=amounts,
    free=amounts,
    labels=st.lists(st.tuples(text, text)).map(tuple),
    ip=text,
    head=st.booleans(),
)
lives = st.builds(RunId, st.integers(1, 3), st.integers(1, 3))
saved = st.builds(CheckpointId, lives, small)
files = st.builds(CutQueue, text, text, small, small, small)
made_cuts = st.builds(
    Cut,
    small,
    st.floats(0, 2e9),
    st.lists(st.tuples(text, saved), max_size=2).map(tuple),
    st.lists(files, max_size=2).map(tuple),
)
committed = st.builds(Committed, saved, st.floats(0, 2e9))
pairs = st.lists(st.tuples(text, text), max_size=2).map(tuple)
publishers = st.lists(st.tuples(text, small), max_size=2).map(tuple)
members = st.lists(st.tuples(st.sampled_from(["w", "t", "x"]), st.integers(0, 2)), max_size=3).map(tuple)
stalls = st.builds(Stall, text, st.floats(0, 2e9), text, text, members, st.sampled_from(RootState), st.booleans())
EVENTS = st.one_of(
    st.builds(ev.MasterStarted, small, text, text, st.booleans(), pairs),
    st.builds(
        ev.Carried,
        small,
        amounts,
        amounts,
        st.lists(st.tuples(text, st.lists(st.floats(0, 2e9), max_size=3).map(tuple))).map(tuple),
        st.none() | small,
        text,
        st.lists(st.tuples(text, committed), max_size=2).map(tuple),
    ),
    st.builds(ev.QueueOpened, text, text),
    st.builds(
        ev.DeliveriesFailed, text, text, small, small, st.lists(st.tuples(text, small, st.booleans())).map(tuple), small
    ),
    st.builds(ev.CutAsked, text),
    st.builds(ev.CutsFound, st.lists(made_cuts, max_size=2).map(tuple), st.just(((3, "torn"),)), st.just(("t",))),
    st.builds(ev.CutBegun, small, st.lists(text, max_size=2).map(tuple)),
    st.builds(ev.CutTaken, small, text, small, small, saved),
    st.builds(ev.CutSealed, small, st.lists(files, max_size=2).map(tuple)),
    st.builds(ev.CutGivenUp, small, text),
    st.builds(ev.CutDamaged, small, text),
    st.builds(ev.ProblemReported, st.sampled_from(["VolumeFull", "CheckpointNotSaved"]), text, text),
    st.builds(ev.CheckpointCommitted, st.sampled_from(["t", "w/1", "x"]), saved, st.none() | saved),
    st.builds(
        ev.ShardsTold,
        st.sampled_from(["d", "e"]),
        st.just(9),
        st.just(2),
        st.just(1),
        st.just("w/1"),
        st.just("w"),
        st.integers(0, 4),
        st.integers(0, 3),
        lives,
        st.booleans(),
        st.lists(st.tuples(small, small, st.none() | small, small), max_size=2).map(tuple),
        st.integers(0, 3),
    ),
    st.builds(
        ev.CheckpointDecided,
        st.sampled_from(["t", "w/1", "x"]),
        lives,
        st.none() | saved,
        st.none() | small,
        st.just(("x",)),
    ),
    st.builds(ev.NodeFrozen, text, st.floats(0, 1e6), text),
    st.builds(ev.PartSilent, text, st.floats(0, 1e6), text),
    st.builds(ev.PartAnswers, text),
    st.builds(ev.NodeThawed, text),
    st.builds(ev.CopiesSaved, text, text),
    st.builds(ev.RelaunchTold, text, text),
    st.builds(ev.GroupAsked, text, text, text, st.booleans()),
    st.builds(ev.NoteReported, text, text),
    st.builds(ev.StallsFound, st.lists(stalls, max_size=2).map(tuple)),
    st.builds(
        ev.NodesSeen,
        st.lists(views, max_size=3).map(tuple),
        st.lists(st.tuples(text, st.floats(0, 1e9)), max_size=2).map(tuple),
    ),
    st.builds(ev.UnitReserved, text, small, text),
    st.builds(ev.UnitRefused, text, small, text),
    st.builds(ev.HostReady, hosts, small, text, small, text, devices, text),
    st.builds(ev.HostLost, hosts, small, outcomes, st.none() | st.floats(0, 1e9)),
    st.builds(ev.SpareReady, text, text, small, small, text, small),
    st.builds(ev.SpareLost, text, text, small, small),
    st.builds(ev.RankReady, text, small, small, small, st.none() | small),
    st.builds(ev.RankServes, text, small, small, pairs, st.booleans(), text, text),
    st.builds(ev.WeightsPublished, text, small, st.floats(0, 2e9), st.floats(0, 2e9), small, publishers),
    st.builds(ev.WeightsLoaded, text, small, small, small, st.floats(0, 2e9), text, st.booleans()),
    st.builds(ev.Stepped, text, small, small, small),
    st.builds(ev.WorkBegan, st.lists(st.tuples(text, small, small, st.floats(0, 2e9)), max_size=2).map(tuple)),
    st.builds(ev.RankEnded, text, small, small, outcomes),
    st.builds(ev.CauseLearned, text, clues, small, st.none() | outcomes),
    st.builds(
        ev.PeersSeen, text, st.lists(st.builds(PeerSample, small, small, text, text, st.none() | outcomes)).map(tuple)
    ),
    st.builds(ev.Commanded, text, text, text, text, small),
    st.builds(ev.Tick),
    st.builds(ev.Released),
)


def test_each_event_has_a_handler():
    assert set(_HANDLERS) == set(codec.EVENTS.values())


@given(EVENTS)
def test_an_event_is_the_same_after_json(event):
    assert codec.decode_event(json.loads(json.dumps(codec.encode_event(event)))) == event


@given(EVENTS)
def test_any_event_at_any_time_gives_a_state_that_is_the_same_after_json(event):
    world = WORLDS[0]
    step = codec.transition(world.state, event, 2000.5)
    data = json.loads(json.dumps(codec.encode_state(step.state)))
    assert codec.decode_state(data, world.state.job) == step.state


LOST_PEER = Outcome(ok=False, reason=Reason.USER_ERROR, error_type="RuntimeError", message="Connection closed by peer")


def a_busy_job():
    made = job(
        {"name": "t", "type": "Elastic", "replicas": 2, "minReplicas": 1, "comm": {"preCheck": True}},
        {"name": "w", "driver": False, "replicas": 3},
        faultTolerance={"spares": {"processesPerNode": 1}},
    )
    world = World(made, views=nodes(3, cpus=2)).boot()
    world.now += 0.125
    world.kill("w", 1)
    world.settle()
    world.now += 20
    world.kill("w", 1)
    world.end("t", 0, Outcome(ok=False, reason=Reason.USER_ERROR, error_type="E", frame="f", step=3))
    world.settle()
    world.send(ev.Commanded("c", "restart", "w/0"))
    world.send(ev.CauseLearned("node/n0", (Clue("notice", "it is taken back"),)))
    world.send(ev.Carried(1, restarts=(("Job", 2),)))
    world.send(ev.CheckpointCommitted("t", CheckpointId(RunId(1, 1), 3)))
    world.send(ev.CheckpointDecided("t", RunId(1, 2), CheckpointId(RunId(1, 1), 3), 5))
    world.send(ev.QueueOpened("samples"))
    world.settle()
    for number in (1, 2):
        world.send(ev.CutAsked("t/0"))
        world.send(ev.CutBegun(number))
    for done in (), ((0, 2, 1, 0),):
        world.send(ev.ShardsTold("d", 9, 2, 1, "w/0", "w", 0, 1, RunId(1, 1), saves=True, done=done, want=2))
    world.send(ev.GroupAsked("abc", "w/0", "it needs more than there is"))
    world.freeze_node(world.state.units["w/1"].node)
    world.settle()
    ready = tuple(key for key, rank in sorted(world.state.ranks.items()) if rank.phase is RankPhase.READY)
    world.send(ev.RankEnded("t", 0, world.state.ranks["t", 0].incarnation, LOST_PEER))
    world.send(ev.ProblemReported("VolumeFull", "job", "the volume of /jobs/a is full"))
    world.send(ev.StallsFound((Stall("t/0@1", world.now - 60, "w/0 has waited {} for t/0", "t/0", ready),)))
    return world


WORLDS = [a_busy_job()]


def test_a_busy_state_uses_every_table():
    state = WORLDS[0].state
    empty = {f.name for f in fields(JobState) if not getattr(state, f.name)}
    # No server finishes before its unit goes to another topology domain.
    assert empty == {"verdict", "ended_at", "result", "domain_move"}


def test_a_journal_folds_to_the_state_that_wrote_it():
    world = a_busy_job()
    rebuilt = codec.replay(world.plan, world.spec, UID, world.journal, start=world.start)
    assert rebuilt == world.state
    assert rebuilt.wake == world.state.wake


def test_a_snapshot_stands_for_what_was_before_it(monkeypatch):
    monkeypatch.setattr(codec, "CHUNK", 500)
    world = a_busy_job()
    chunks = codec.snapshot_records(world.state, world.now)
    assert len(chunks) > 3
    assert all(len(chunk["d"]) <= 500 for chunk in chunks)
    known = len(world.journal)
    world.settle()
    records = [*chunks, {"k": "note", "text": "of no concern here"}, *world.journal[known:]]
    assert codec.replay(world.plan, world.spec, UID, json.loads(json.dumps(records)), start=0.0) == world.state


def test_a_snapshot_that_was_cut_short_counts_for_nothing(monkeypatch):
    monkeypatch.setattr(codec, "CHUNK", 500)
    world = a_busy_job()
    chunks = codec.snapshot_records(world.state, world.now)
    whole = [*world.journal, *chunks[:-1], *chunks]
    assert codec.replay(world.plan, world.spec, UID, whole, start=world.start) == world.state
    cut = [*world.journal, *chunks[:-1]]
    assert codec.replay(world.plan, world.spec, UID, cut, start=world.start) == world.state


def test_another_version_of_a_snapshot_is_refused_with_both_named():
    plan, spec = job({"name": "w"})
    state = initial(plan, spec, UID, 0.0)
    with pytest.raises(JournalError, match="version 7; this dljob reads version 3"):
        codec.decode_state({**codec.encode_state(state), "v": 7}, state.job)


def test_an_event_of_another_version_is_refused():
    with pytest.raises(JournalError, match="unknown event 'Earthquake'"):
        codec.decode_event({"t": "Earthquake"})


def laid(before, after):
    """A state as somebody reads it who knows the one before it, and what changed."""
    written = Written(json.loads(json.dumps(codec.encode_state(before))))
    written.lay(json.loads(json.dumps(changes(before, after))))
    return codec.decode_state(written.data(), after.job)


@given(EVENTS)
def test_the_change_of_any_event_leads_from_the_old_state_to_the_new_one(event):
    state = WORLDS[0].state
    after = codec.transition(state, event, 2000.5).state
    assert laid(state, after) == after
    assert laid(after, state) == state


def test_changes_one_after_another_make_the_state_of_a_busy_job():
    world = a_busy_job()
    state = initial(world.plan, world.spec, UID, world.start)
    written = Written(codec.encode_state(state))
    for record in world.journal:
        after = codec.transition(state, codec.decode_event(record["e"]), record["at"]).state
        written.lay(json.loads(json.dumps(changes(state, after))))
        state = after
    read = codec.decode_state(json.loads(json.dumps(written.data())), state.job)
    assert (read, read.wake) == (world.state, world.state.wake)
    assert changes(state, state) is None


def test_a_change_is_small_where_little_changes():
    """A job of 100 ranks tells of the one that ended, and not of the others."""
    world = World(job({"name": "w", "replicas": 100}, name="big"), views=nodes(4)).boot()
    before = world.state
    after = codec.transition(before, ev.RankEnded("w", 7, 1, Outcome(ok=True)), world.now).state
    assert len(json.dumps(changes(before, after))) < 1500


def test_items_in_the_middle_of_an_array_change_alone():
    state = WORLDS[0].state
    marks = {"w": tuple(Failure(float(at)) for at in range(9))}
    before = evolve(state, marks=Map(marks))
    after = evolve(state, marks=Map({"w": (*marks["w"][:4], Failure(44.0), *marks["w"][5:])}))
    assert changes(before, after) == ["d", {"marks": ["m", [["w", ["s", 4, 4, [{"at": 44.0, "node": ""}]]]], []]}]
    assert laid(before, after) == after


NO_CHANGES = (
    ["w", 1],
    [],
    ["d", {"marks": ["s", 1, 2, []]}],
    ["d", 7],
    ["m", [], []],
    ["m", 7],
    ["d", {"attempt": ["d", {"a": ["v", 1]}]}],
)


@pytest.mark.parametrize("change", [*({"search": one} for one in NO_CHANGES), {"hosts": ["m", [7], []]}])
def test_a_change_that_is_malformed_is_refused(change):
    with pytest.raises(JournalError, match="a change does not fit"):
        Written(codec.encode_state(WORLDS[0].state)).lay(["d", change])


def test_no_field_of_a_journal_is_renamed_or_removed_while_its_version_stays():
    """Another build of dljob takes a running job over by these names: one that is gone would be lost in silence."""
    kinds, fields_now = [JobState, *codec.EVENTS.values()], set()
    while kinds:
        kind = kinds.pop()
        if is_dataclass(kind):
            names = {f"{kind.__name__}.{name}" for name in codec.parts(kind)}
            kinds += () if names <= fields_now else codec.parts(kind).values()
            fields_now |= names
        kinds += get_args(kind)
    version, *fields_before = FIELDS.read_text().splitlines()
    if os.environ.get("UPDATE_GOLDEN"):
        FIELDS.write_text("\n".join([f"version {VERSION}", *sorted(fields_now)]) + "\n")
    if version == f"version {VERSION}":
        assert set(fields_before) <= fields_now, "raise VERSION in telemetry/records.py, then UPDATE_GOLDEN=1"
    assert FIELDS.read_text().splitlines() == [f"version {VERSION}", *sorted(fields_now)], "UPDATE_GOLDEN=1 lists them"
