"""Weights of servers: who is stale, who loads when, and what is told of it."""

from __future__ import annotations

import pytest
from master_kit import KILLED, World, host, job

from dljob.master import status
from dljob.master.ledger.rules import account_of
from dljob.master.placement.reissue import reissue
from dljob.master.start import weights
from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state import staleness
from dljob.master.state.ledger import Account
from dljob.master.state.weight_versions import PublishedWeights, RankWeights
from dljob.master.transition import next_wake
from dljob.plan.serving import ProbePlan, WeightsPlan
from dljob.runtime.controller.peers import callees_of
from dljob.telemetry import reasons

PLAN = WeightsPlan(("policy",), 1, 1, ProbePlan("post", port="http"))
WEIGHTS = {"channels": ["policy"], "load": {"httpPost": {"port": "http"}}}


def fleet(replicas=4, *, hold=False, ports=True, **more):
    role = {"name": "s", "replicas": replicas, "weights": {**WEIGHTS, **more}}
    if ports:
        role["ports"] = [{"name": "http"}]
    world = World(job(role, {"name": "w"}), hold=hold).boot()
    for rank in range(replicas if ports else 0):
        serve(world, rank)
    return world


def serve(world, rank, incarnation=1):
    world.send(ev.RankServes("s", rank, incarnation, (("http", f"127.0.0.1:{24000 + rank}"),), ready=True))


def publish(world, version, **more):
    world.send(ev.WeightsPublished("s", version, world.now, **more), after=1.0)


def ready(world):
    return [row["rank"] for row in status.endpoints(world.state)["s"]]


def loads(world, since=0):
    return [(one.rank, one.version) for one in world.of(act.LoadWeights)[since:]]


def shown(world, rank):
    return weights.status_of_weights(world.state, ("s", rank)).get("weights")


def all_hold(world, version):
    return all(world.state.ranks["s", rank].weights == holds(world, version) for rank in range(4))


def holds(world, version):
    newest = world.state.roles["s"].newest
    assert newest.version == version
    return RankWeights(version, newest.at)


def test_before_the_first_version_nobody_is_stale_and_then_all_load_at_once():
    world = fleet()
    assert ready(world) == [0, 1, 2, 3]
    assert shown(world, 0) == {"state": "Fresh", "version": None, "newest": None}
    publish(world, 1)
    assert loads(world) == [(rank, 1) for rank in range(4)], "none of them gets requests anyway"
    assert ready(world) == []
    assert shown(world, 0) == {"state": "Loading", "version": None, "newest": 1, "why": "it loads version 1"}
    world.settle()
    assert all_hold(world, 1)
    assert ready(world) == [0, 1, 2, 3]
    assert not world.notes(reasons.WEIGHTS_LOADED), "a first start is no news"


def test_ranks_load_in_turn_so_that_min_ready_stay():
    world = fleet(minReady=3)
    publish(world, 1)
    world.settle()
    seen = len(world.of(act.LoadWeights))
    publish(world, 2)
    for turn in range(4):
        assert loads(world, seen) == [(rank, 2) for rank in range(turn + 1)]
        assert len(ready(world)) == 3
        world.pending, first = world.pending[1:], world.pending[0]
        world.send(first)
    assert all_hold(world, 2)
    assert len(ready(world)) == 4


def test_who_lags_beyond_max_lag_is_out_and_loads_at_once():
    world = fleet(maxLag=0, minReady=4)
    publish(world, 1)
    world.settle()
    publish(world, 2)
    assert ready(world) == []
    assert len(loads(world)) == 8
    publish(world, 3)
    assert len(loads(world)) == 8, "each is at its load of version 2"
    world.settle()
    assert all_hold(world, 3), "and loads version 3 after it"
    later = fleet(minReady=4)
    for version in (1, 2):
        publish(later, version)
        later.settle()
    assert shown(later, 0) == {"state": "Fresh", "version": 1, "newest": 2}, "minReady lets nobody load"
    publish(later, 3)
    assert loads(later)[4:] == [(rank, 3) for rank in range(4)], "now all are too far behind to serve"


def test_a_failed_load_is_stale_told_and_tried_again_after_growing_pauses():
    world = fleet()
    world.bad_loads["s", 2] = ("status 500, 'no memory'", False)
    publish(world, 1)
    world.settle()
    assert ready(world) == [0, 1, 3]
    assert shown(world, 2) == {"state": "Stale", "version": None, "newest": 1, "why": "status 500, 'no memory'"}
    assert [rank for rank, _, well, _ in callees_of(world.state, "s") if well] == [0, 1, 3]
    assert account_of(world.state, ("s", 2)) is world.state.ledger.clocks["s", 2][0] is Account.STALE
    assert account_of(world.state, ("s", 1)) is world.state.ledger.clocks["s", 1][0] is Account.PRODUCTIVE
    (note,) = world.notes(reasons.WEIGHTS_STALE)
    assert (note.target, note.message) == ("s/2", "version 1 was not loaded, again in 1 s: status 500, 'no memory'")
    assert world.state.wake == world.now + 1.0
    world.send(ev.Tick(), after=0.5)
    assert len(loads(world)) == 4, "it is not time yet"
    world.send(ev.Tick(), after=0.5)
    assert loads(world, 4) == [(2, 1)]
    world.settle()
    assert world.notes(reasons.WEIGHTS_STALE)[-1].message.startswith("version 1 was not loaded, again in 2 s")
    world.bad_loads.clear()
    publish(world, 2)
    assert (2, 2) in loads(world, 5), "another version is tried at once"
    world.settle()
    assert [note.target for note in world.notes(reasons.WEIGHTS_LOADED)] == ["s/2"]
    assert ready(world) == [0, 1, 2, 3]
    assert [weights.retry_s(n) for n in (1, 2, 3, 7, 100)] == [1.0, 2.0, 4.0, 60.0, 60.0]


def test_a_retry_that_has_to_wait_for_its_turn_leaves_no_timer_that_is_always_due():
    world = fleet(2, ports=False, maxLag=9)
    publish(world, 1)
    world.settle()
    world.bad_loads.update({("s", 0): ("the channel has it no more", True), ("s", 1): ("out of memory", False)})
    publish(world, 2)
    world.settle()
    assert shown(world, 0)["version"] == 1, "it serves, and tries again in a second"
    world.bad_loads.clear()
    seen = len(loads(world))
    world.now = world.state.ranks["s", 0].weights.retry_at
    world.send(ev.HostLost(host("s", 1), world.state.hosts[host("s", 1)].incarnation, KILLED))
    world.send(ev.Tick())
    assert len(loads(world)) == seen, "1 serves nothing now, and minReady is 1"
    assert next_wake(world.state) is None or next_wake(world.state) > world.now
    while world.pending or len(loads(world)) < seen + 2:
        world.deliver() if world.pending else world.tick()
    assert loads(world, seen) == [(1, 2), (0, 2)]


def test_a_load_that_never_reached_the_rank_leaves_it_with_what_it_held():
    world = fleet(minReady=3)
    publish(world, 1)
    world.settle()
    world.bad_loads["s", 0] = ("channel policy has version 2 no more", True)
    publish(world, 2)
    world.send(world.pending.pop(0))
    assert shown(world, 0)["version"] == 1
    assert 0 in ready(world)
    assert loads(world)[-1] == (1, 2), "the next one has its turn"


def test_a_restarted_rank_is_stale_until_it_has_loaded():
    world = fleet()
    publish(world, 1)
    world.settle()
    world.send(ev.HostLost(host("s", 1), 1, KILLED))
    assert shown(world, 1) == {"state": "None", "version": None, "newest": 1}, "it has no process"
    while not loads(world, 4):
        assert ready(world) == [0, 2, 3]
        world.deliver()
    assert ready(world) == [0, 2, 3]
    serve(world, 1, 2)
    assert ready(world) == [0, 2, 3]
    world.settle()
    assert loads(world, 4) == [(1, 1)]
    assert ready(world) == [0, 1, 2, 3]
    publish(world, 2)
    world.settle()
    assert ready(world) == [0, 1, 2, 3]
    told = [note.message for note in world.notes(reasons.WEIGHTS_LOADED)]
    assert told == ["holds version 1"], "later loads of a restarted rank are no news"


def test_a_new_prime_master_repeats_loads_without_an_answer():
    world = fleet(hold=True)
    publish(world, 1)
    again = [one for one in reissue(world.state, world.now) if isinstance(one, act.LoadWeights)]
    assert again == world.of(act.LoadWeights)
    assert len(again) == 4
    world.settle()
    assert not [one for one in reissue(world.state, world.now) if isinstance(one, act.LoadWeights)]


def calls_that_wait(world):
    """The ranks whose processes were told last to keep calls waiting, by the orders and starts that they got."""
    told = {}
    for one in world.all_actions:
        if isinstance(one, act.StartRanks):
            for start in one.ranks:
                if one.host.role == "s":
                    told[start.rank] = max(
                        told.get(start.rank, ()), (start.incarnation, start.calls_held, start.hold_reason)
                    )
        elif isinstance(one, act.HoldCalls):
            told[one.rank] = max(told.get(one.rank, ()), (one.incarnation, one.number, one.reason))
    return {rank: why for rank, (_, _, why) in sorted(told.items()) if why}


def test_calls_wait_as_long_as_weights_are_stale_or_load():
    world = fleet(2, ports=False, hold=True)
    assert not world.of(act.HoldCalls), "before the first version nobody is stale"
    publish(world, 1)
    assert calls_that_wait(world) == {0: "it loads version 1", 1: "it loads version 1"}
    world.settle()
    assert calls_that_wait(world) == {}
    publish(world, 2)
    assert calls_that_wait(world) == {0: "it loads version 2"}, "one of two goes on with a version that is 1 behind"
    publish(world, 3)
    assert calls_that_wait(world).keys() == {0, 1}, "2 behind"
    world.settle()
    assert calls_that_wait(world) == {}
    orders = len(world.of(act.HoldCalls))
    world.send(ev.WeightsPublished("w", 9, world.now))
    assert len(world.of(act.HoldCalls)) == orders


def test_calls_that_wait_are_told_why_the_load_of_their_callee_failed():
    world = fleet(2, ports=False)
    world.bad_loads["s", 0] = ("load raised ValueError: shape mismatch", False)
    publish(world, 1)
    world.settle()
    assert calls_that_wait(world) == {0: "load raised ValueError: shape mismatch"}
    world.now += 1.0
    world.send(ev.Tick())
    again = "it loads version 1; its last load failed: load raised ValueError: shape mismatch"
    assert shown(world, 0)["why"] == again
    assert world.state.ranks["s", 0].holds_calls
    world.settle()
    world.bad_loads.clear()
    publish(world, 2)
    world.settle()
    assert calls_that_wait(world) == {}


def test_calls_that_wait_are_told_of_a_load_that_left_the_rank_too_far_behind():
    world = fleet(2, ports=False)
    publish(world, 1)
    world.settle()
    world.bad_loads["s", 0] = ("channel policy has version 3 no more", True)
    publish(world, 2)
    publish(world, 3)
    world.settle()
    assert calls_that_wait(world) == {
        0: "it holds version 1, 2 behind; maxLag is 1; its last load failed: channel policy has version 3 no more"
    }


def test_the_next_process_of_a_rank_serves_no_call_before_it_has_loaded():
    world = fleet(2, ports=False)
    publish(world, 1)
    world.settle()
    for life in range(1, 3):
        world.send(ev.HostLost(host("s", 1), world.state.hosts[host("s", 1)].incarnation, KILLED))
        while sum(one.host == host("s", 1) for one in world.of(act.StartRanks)) == life:
            world.deliver() if world.pending else world.tick()
        # Also where it died while its calls waited, so that nothing about them has changed.
        assert calls_that_wait(world) == {1: "it holds no version, and the newest is 1"}
    world.settle()
    assert calls_that_wait(world) == {}


def test_a_new_prime_master_repeats_which_calls_wait():
    world = fleet(2, ports=False, hold=True)
    publish(world, 1)
    again = [one for one in reissue(world.state, world.now) if isinstance(one, act.HoldCalls)]
    assert again == world.of(act.HoldCalls)[-2:]
    world.settle()
    again = [one for one in reissue(world.state, world.now) if isinstance(one, act.HoldCalls)]
    assert [(one.rank, one.number, one.reason) for one in again] == [(0, 2, ""), (1, 2, "")]


def test_late_and_foreign_news_change_nothing():
    world = fleet()
    publish(world, 3)
    world.settle()
    before = world.state
    world.send(ev.WeightsPublished("s", 2, before.roles["s"].newest.at - 1))
    world.send(ev.WeightsPublished("nobody", 9, world.now))
    world.send(ev.WeightsPublished("w", 9, world.now))
    for rank, incarnation, at in ((0, 1, 5.0), (0, 9, 5.0), (9, 1, 5.0)):
        world.send(ev.WeightsLoaded("s", rank, incarnation, 3, at, "late"))
    world.hold = True
    publish(world, 4)
    before = world.state
    world.send(ev.WeightsLoaded("s", 0, 1, 3, 5.0, "another version"))
    assert world.state.ranks == before.ranks


def test_an_ending_job_loads_nothing():
    world = fleet()
    world.send(ev.Commanded("1", "stop"))
    publish(world, 1)
    assert not loads(world)


def test_a_role_without_ports_is_called_as_long_as_it_is_not_stale():
    world = fleet(2, ports=False, minReady=2)
    publish(world, 1)
    world.settle()
    publish(world, 2)
    assert len(loads(world)) == 2, "both count as ready"


def test_a_rank_that_gets_no_requests_loads_without_a_turn():
    world = fleet(2, minReady=2)
    publish(world, 1)
    world.settle()
    world.send(ev.RankServes("s", 1, 1, (("http", "127.0.0.1:24001"),), ready=False, why="status 503"))
    publish(world, 2)
    assert loads(world, 2) == [(1, 2)]


@pytest.mark.parametrize(
    ("newest", "held", "why"),
    [
        ((5, 10.0), (5, 10.0), ""),
        ((5, 10.0), (4, 8.0), ""),
        ((5, 10.0), (3, 7.0), "it holds version 3, 2 behind; maxLag is 1"),
        ((5, 10.0), (0, 0.0), "it holds no version, and the newest is 5"),
        ((5, 10.0, 9.0, 4), (4, 8.0), ""),
        ((5, 10.0, 9.0, 3), (4, 8.0), "it holds version 4 of a series that was given up; the newest is 5"),
    ],
)
def test_the_lag_is_counted_in_versions_of_the_present_series(newest, held, why):
    assert staleness.stale_reason(PLAN, PublishedWeights(*newest), RankWeights(*held)) == why


def test_a_role_without_weights_tells_nothing_of_them():
    world = fleet()
    assert weights.status_of_weights(world.state, ("w", 0)) == {}
    assert staleness.no_requests_reason(world.state, ("w", 0)) == ""
    assert weights.choose_loading_ranks(world.state.job.plan.roles["w"], PublishedWeights(1, 1.0), {}, 0.0) == ()
    assert [row.get("weights", {}).get("state") for row in status.status(world.state, world.now, {})["ranks"]] == [
        *["Fresh"] * 4,
        None,
    ]


def test_the_status_tells_how_old_an_event_is_when_a_server_has_learned_from_it():
    world = fleet(2)
    publish(world, 1, learned_since=world.now - 5.0)
    publish(world, 2, learned_since=world.now - 1.0)
    publish(world, 3)
    lags = []
    for rank in (0, 1, 0, 1):
        own = world.state.ranks["s", rank].weights.loading
        world.send(ev.WeightsLoaded("s", rank, 1, own.version, own.at), after=1.0)
        lags.append(status.status(world.state, world.now, {})["roles"][0]["servedLagSeconds"])
    assert lags == [9.0, 9.0, 6.0, 6.0], "the first rank that has a version counts, and version 3 has what 2 had"


def test_a_script_serves_no_calls_that_could_wait():
    role = {"name": "s", "replicas": 2, "entrypoint": {"module": "serve.py"}, "ports": [{"name": "http"}]}
    world = World(job({**role, "weights": WEIGHTS}, {"name": "w"})).boot()
    publish(world, 1)
    assert len(loads(world)) == 2
    again = reissue(world.state, world.now)
    assert not [one for one in (*world.all_actions, *again) if isinstance(one, act.HoldCalls)]
