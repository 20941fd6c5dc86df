"""Weights of steps that a job has left, as it went back to a cut: who holds them gets no requests."""

from __future__ import annotations

import pytest
from master_kit import World, job

from dljob.master import status
from dljob.master.ledger.rules import account_of
from dljob.master.start import weights
from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state.checkpoint_ids import CheckpointId, RunId
from dljob.master.state.evolve import evolve
from dljob.master.state.ledger import Account
from dljob.telemetry import reasons

WEIGHTS = {"channels": ["policy"], "load": {"httpPost": {"port": "http"}}, "maxLag": 9, "minReady": 3}


@pytest.fixture
def world():
    servers = {"name": "s", "replicas": 4, "driver": False, "weights": WEIGHTS, "ports": [{"name": "http"}]}
    made = World(job({"name": "t"}, servers)).boot()
    for rank in range(4):
        made.send(ev.RankServes("s", rank, 1, (("http", f"127.0.0.1:{24000 + rank}"),), ready=True))
    made.send(ev.CheckpointDecided("t/0", RunId(1, 1), None))
    return made


def publish(world, version, *, life=1, at=None):
    event = ev.WeightsPublished("s", version, at or world.now + 1, by=(("t/0", life),))
    world.send(event, after=1.0)
    return event


def cut(world, *, life=1):
    number = world.state.cuts.last_number + 1
    made = CheckpointId(RunId(1, life), number)
    for event in (
        ev.CutAsked("t/0"),
        ev.CutBegun(number),
        ev.CutTaken(number, "t", 0, world.state.ranks["t", 0].incarnation, made),
        ev.CheckpointCommitted("t/0", made),
        ev.CutSealed(number),
    ):
        world.send(event)
    assert world.state.cuts.kept_cuts[-1].number == number
    return made


def restart(world):
    """Kill the trainer, and start it again."""
    world.kill("t", 0)
    while world.state.ranks["t", 0].incarnation < 2 or world.pending:
        if world.pending:
            world.deliver()
        else:
            world.tick()


def go_back(world, made, *, life=2):
    world.send(ev.CheckpointDecided("t/0", RunId(1, life), made))
    assert world.state.cuts.restore_count == life - 1


def ready(world):
    return [row["rank"] for row in status.endpoints(world.state)["s"]]


def shown(world, rank):
    return weights.status_of_weights(world.state, ("s", rank))["weights"]


def loads(world, since=0):
    return [(one.rank, one.version) for one in world.of(act.LoadWeights)[since:]]


def stale(world):
    return [(note.target, note.message) for note in world.notes(reasons.WEIGHTS_STALE)]


def settled(world, version):
    publish(world, version)
    world.settle()


def test_who_holds_a_version_of_after_the_cut_is_stale_until_it_has_loaded_another(world):
    settled(world, 1)
    made = cut(world)
    publish(world, 2)
    world.deliver()  # 0 has loaded it, and 1 is at it
    world.bad_loads = {("s", rank): ("channel policy has version 1 no more", True) for rank in range(4)}
    go_back(world, made)
    where = "the job went back to cut 1"
    assert shown(world, 0) == {"state": "Loading", "version": None, "newest": 1, "why": "it loads version 1"}
    assert shown(world, 2) == {"state": "Fresh", "version": 1, "newest": 1}
    (said,) = stale(world)
    assert said[0] == "s"
    assert said[1].startswith("s/0, s/1 hold or load weights of steps after cut 1: no requests until they have loaded")
    assert said[1].endswith(": publish after checkpoint.load()")
    assert ready(world) == [2, 3]
    world.deliver()  # 1 has loaded version 2 after all, and is at the next one
    assert world.state.ranks["s", 1].weights.problem == f"it loaded version 2, and {where}"
    world.settle()
    assert shown(world, 0)["why"] == "channel policy has version 1 no more"
    assert account_of(world.state, ("s", 0)) is Account.STALE
    assert ready(world) == [2, 3]
    world.bad_loads.clear()
    settled(world, 3)
    assert ready(world) == [0, 1, 2, 3]
    assert {shown(world, rank)["version"] for rank in range(4)} == {3}


def test_the_version_of_the_cut_is_loaded_again_where_its_channel_has_it(world):
    settled(world, 1)
    made = cut(world)
    settled(world, 2)
    seen = len(world.of(act.LoadWeights))
    go_back(world, made)
    assert loads(world, seen) == [(rank, 1) for rank in range(4)]
    assert ready(world) == []
    assert "s/0, s/1, s/2 and 1 more hold" in stale(world)[0][1]
    world.settle()
    assert ready(world) == [0, 1, 2, 3]
    assert shown(world, 0) == {"state": "Fresh", "version": 1, "newest": 1}


def test_a_load_that_is_under_way_at_the_restore_is_awaited_and_left(world):
    made = cut(world)
    event = publish(world, 1)
    go_back(world, made)
    assert world.state.roles["s"].newest is None, "nothing was published at the cut"
    assert shown(world, 0) == {"state": "Loading", "version": None, "newest": None, "why": "it loads version 1"}
    world.pending[1] = ev.WeightsLoaded("s", 1, 1, 1, event.at, "status 500")
    world.settle()
    why = "it loaded version 1, and the job went back to cut 1"
    assert shown(world, 0) == {"state": "Stale", "version": None, "newest": None, "why": why}
    assert shown(world, 1)["why"] == "status 500"
    assert ready(world) == []
    assert world.state.wake is None, "there is no version that could be tried again"
    settled(world, 2)
    assert ready(world) == [0, 1, 2, 3]


def test_a_left_load_that_never_reached_the_rank_leaves_it_with_the_version_of_the_cut(world):
    settled(world, 1)
    made = cut(world)
    world.bad_loads = {("s", 0): ("channel policy lost version 2", True)}
    publish(world, 2)
    go_back(world, made)
    world.settle()
    assert ready(world) == [0, 1, 2, 3]
    assert shown(world, 0) == {"state": "Fresh", "version": 1, "newest": 1}
    assert world.state.wake is None


def test_a_job_that_begins_anew_leaves_all_versions(world):
    world.send(ev.QueueOpened("samples"))
    settled(world, 1)
    cut(world)
    go_back(world, None)
    assert shown(world, 0)["why"] == "it holds version 1, and the job began anew"
    assert stale(world)[0][1].startswith("s/0, s/1, s/2 and 1 more hold or load weights, and the job begins anew: ")
    assert ready(world) == []
    settled(world, 2)
    assert ready(world) == [0, 1, 2, 3]


def test_a_version_that_is_told_late_is_left_too(world):
    settled(world, 1)
    made = cut(world)
    settled(world, 3)
    late = ev.WeightsPublished("s", 2, world.now - 0.5, by=(("t/0", 1),))
    restart(world)
    assert world.state.ranks["t", 0].incarnation == 2
    go_back(world, made)
    world.settle()
    assert ready(world) == [0, 1, 2, 3]
    for event in (late, evolve(late, at=world.now + 5, version=4)):
        world.send(event)
        assert world.state.roles["s"].newest.version == 1
    assert weights.left_reason(world.state, (("t/0", 1),)) == "it is of process 1 of t/0, and 2 has gone back to cut 1"
    assert weights.left_reason(world.state, (("t/0", 2), ("s/0", 0), ("gone/0", 0))) == ""
    publish(world, 2, life=2)
    assert world.state.roles["s"].newest.version == 2


def test_a_publisher_that_has_not_gone_back_yet_publishes_what_is_left(world):
    cut(world)
    pending = evolve(world.state.cuts, restore_count=1, last_restored_number=1, pending_worlds=("t/0",))
    state = evolve(world.state, cuts=pending)
    assert weights.left_reason(state, (("t/0", 1),)) == "t/0 has not gone back to cut 1 yet"


def test_a_trainer_that_goes_back_without_a_cut_leaves_nothing(world):
    settled(world, 1)
    restart(world)
    world.send(ev.CheckpointDecided("t/0", RunId(1, 2), None))
    assert world.state.cuts.restore_count == 0
    assert ready(world) == [0, 1, 2, 3]
    publish(world, 2, life=1)
    assert world.state.roles["s"].newest.version == 2


def test_a_role_that_has_loaded_nothing_is_not_told(world):
    made = cut(world)
    go_back(world, made)
    assert stale(world) == []
    assert ready(world) == [0, 1, 2, 3]
    settled(world, 1)
    world.kill("s", 0)
    made = cut(world, life=2)
    go_back(world, made, life=3)
    assert stale(world) == []


def test_a_rank_that_holds_nothing_leaves_nothing(world):
    settled(world, 1)
    made = cut(world)
    settled(world, 2)
    restart(world)
    world.kill("s", 2)
    while world.state.ranks["s", 2].weights is not None:
        world.deliver() if world.pending else world.tick()
    go_back(world, made)
    assert "s/2" not in stale(world)[-1][1]
