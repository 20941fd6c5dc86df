"""Where the time of each rank goes: from which event to which, to the microsecond."""

from __future__ import annotations

import json
from typing import Any

import pytest
from elastic_kit import boot as elastic_world
from elastic_kit import fleet
from hypothesis import given
from hypothesis import strategies as st
from ledger_kit import check_ledger
from master_kit import KILLED, UID, World, job, nodes

from dljob.master.ledger.rules import account_of, micros
from dljob.master.ledger.view import permille, shown
from dljob.master.persistence.codec import decode_state, encode_state, replay
from dljob.master.state import events as ev
from dljob.master.state import ledger
from dljob.master.state.ledger import (
    WINDOW_US,
    Account,
    Ledger,
    Move,
    book_moves,
    counter_shortfalls,
    goodput,
    new_ledger,
    totals,
)
from dljob.master.state.stalls import Stall
from dljob.master.state.state import RankPhase
from dljob.master.state.views import HostId, Outcome, Reason
from dljob.master.status import status

SECOND = 10**6


def spent(world, role="w"):
    """Account -> seconds of a role until now."""
    return {a.value: t / SECOND for a, t in totals(world.state.ledger, role, micros(world.state, world.now)).items()}


def counters(world, role="w"):
    """What the metrics show."""
    at = micros(world.state, world.now)
    lacking = counter_shortfalls(world.state.ledger, role, at)
    sums = totals(world.state.ledger, role, at)
    return {account: total for account in Account if (total := sums.get(account, 0) + lacking.get(account, 0))}


def pending(world, kind):
    """The answer of a kind that has not arrived yet."""
    return next(event for event in world.pending if isinstance(event, kind))


def deliver(world, kind, after=0.0):
    """Let the first answer of a kind arrive."""
    event = pending(world, kind)
    world.pending.remove(event)
    world.send(event, after=after)


def ready_with_goal(world, goal, after=0.0):
    """The rank is ready, and told steps before."""
    event = pending(world, ev.RankReady)
    world.pending.remove(event)
    world.send(ev.RankReady(event.role, event.rank, event.incarnation, event.pid, goal), after=after)


def test_a_job_queues_is_scheduled_begins_and_works_and_then_nothing_counts_any_more():
    world = World(job({"name": "w"}), views=nodes(1))
    world.send(ev.MasterStarted(1))
    world.send(ev.NodesSeen(world.seen()), after=3)
    deliver(world, ev.UnitReserved, after=0.5)
    deliver(world, ev.HostReady, after=2)
    deliver(world, ev.RankReady, after=1)
    world.end("w", 0)
    deliver(world, ev.RankEnded, after=10)
    deliver(world, ev.Released, after=0.25)
    world.now += 1000
    assert spent(world)["productive"] == 10
    seen = shown(world.state, world.now)
    assert seen["accounts"] == {"queue": 3, "schedule": 0.5, "init": 3, "productive": 10, "idle": 0.25}
    assert seen["roles"] == [{"name": "w", "accounts": seen["accounts"]}]
    assert (seen["seconds"], seen["processes"], seen["goodput"]) == (16.75, 1, 0.597)
    assert status(world.state, world.now, {})["ledger"] == seen
    assert status(world.state, world.now, {})["progress"]["goodputPermille"] == 597


def test_before_any_time_has_passed_there_is_no_goodput():
    world = World(job({"name": "w"}))
    assert shown(world.state, world.now) == {
        "seconds": 0.0,
        "processes": 1,
        "goodput": None,
        "recentGoodput": None,
        "accounts": {},
        "roles": [{"name": "w", "accounts": {}}],
    }
    assert permille(world.state, world.now) is None


def test_a_death_is_booked_from_the_last_sign_of_life_and_its_steps_until_they_are_made_again():
    world = World(job({"name": "w", "replicas": 2}), views=nodes(1)).boot()
    world.kill("w", 1)
    lost = world.pending.pop()
    world.now += 10
    before = counters(world)
    world.send(ev.HostLost(lost.host, lost.incarnation, KILLED, seen=world.now - 0.5))
    assert counters(world) == before | {Account.DETECT: SECOND // 2}
    assert shown(world.state, world.now)["roles"][0]["owed"] == {"productive": 0.5}
    deliver(world, ev.HostReady, after=2)
    ready_with_goal(world, 17, after=1)
    world.send(ev.Stepped("w", 1, 2, 12), after=4)
    world.send(ev.Stepped("w", 1, 2, 13), after=1)
    world.send(ev.Stepped("w", 1, 2, 17), after=2)
    world.now += 1
    assert spent(world) == {
        "productive": 21 + 9.5 + 1,
        "detect": 0.5,
        "replace": 2,
        "init": 1 + 4,
        "recompute": 3,
    }
    assert "owed" not in shown(world.state, world.now)["roles"][0]


def test_a_rank_that_goes_on_after_its_last_step_repeats_nothing():
    world = World(job({"name": "w"}), views=nodes(1)).boot()
    world.kill("w", 0)
    deliver(world, ev.HostLost, after=1)
    deliver(world, ev.HostReady)
    ready_with_goal(world, 17)
    world.send(ev.Stepped("w", 0, 2, 18), after=4)
    world.now += 1
    assert spent(world) == {"productive": 2, "init": 4}


@pytest.mark.parametrize(
    "event",
    [ev.Stepped("w", 0, 1, 20), ev.Stepped("w", 7, 1, 20), ev.Stepped("x", 0, 1, 20), ev.Stepped("w", 0, 2, 20)],
    ids=["an older process", "no such rank", "no such role", "not ready yet"],
)
def test_steps_of_somebody_else_end_no_repetition(event):
    world = World(job({"name": "w"}), views=nodes(1)).boot()
    world.kill("w", 0)
    deliver(world, ev.HostLost)
    deliver(world, ev.HostReady)
    if event.incarnation == 1:
        ready_with_goal(world, 17)
    before = world.state
    world.send(event)
    assert world.state is before


def test_a_step_of_a_rank_that_is_being_stopped_again_ends_no_repetition():
    made = job({"name": "t", "type": "Elastic", "replicas": 2, "replicasPerGroup": 2, "entrypoint": {"module": "m"}})
    world = World(made, views=nodes(1)).boot()
    world.end("t", 0, KILLED)
    world.settle()
    if world.state.incidents:
        world.tick()
        world.settle()
    state = world.state
    key = ("t", 1)
    first = state.ranks[key].incarnation
    world.end("t", 0, KILLED)
    world.deliver()
    assert world.state.ranks[key].phase.value == "Stopping"
    before = world.state
    world.send(ev.Stepped("t", 1, first, 99))
    assert world.state is before


@pytest.mark.parametrize(("ago", "account"), [(900, "detect"), (-900, "productive")])
def test_a_sign_from_another_time_takes_no_more_than_there_is(ago: int, account: str):
    """From before the account began, and from the future."""
    world = World(job({"name": "w"}), views=nodes(1)).boot()
    world.kill("w", 0)
    lost = world.pending.pop()
    world.now += 2
    world.send(ev.HostLost(lost.host, lost.incarnation, KILLED, seen=world.now - ago))
    assert spent(world) == {account: 2}


def test_a_backoff_is_a_decision_that_takes_its_time():
    world = World(job({"name": "w"}), views=nodes(1)).boot()
    world.kill("w", 0)
    world.settle()
    world.kill("w", 0)
    world.settle()
    begin = world.now
    assert account_of(world.state, ("w", 0)) is Account.DECIDE
    world.tick()
    assert account_of(world.state, ("w", 0)) is Account.REPLACE
    assert spent(world) == {"decide": world.now - begin}


def reserved(made: Any, views: Any = None) -> World:
    """A job on one node, or these, whose hosts are about to start."""
    world = World(made, views=views or nodes(1))
    world.send(ev.MasterStarted(1))
    world.send(ev.NodesSeen(world.seen()))
    while any(isinstance(event, ev.UnitReserved) for event in world.pending):
        deliver(world, ev.UnitReserved)
    return world


def test_ranks_of_a_world_wait_for_each_other():
    made = job({"name": "t", "type": "Elastic", "replicas": 2})
    world = reserved(made)
    hosts = [event for event in world.pending if isinstance(event, ev.HostReady) and event.host.index >= 0]
    for event in hosts:
        world.pending.remove(event)
        world.send(event, after=1)
    deliver(world, ev.HostReady, after=1)  # the store
    deliver(world, ev.RankReady, after=2)
    deliver(world, ev.RankReady, after=5)
    world.now += 1
    # One host came at 1 s, the other at 2, the store at 3; one rank at 5, the other at 10.
    assert spent(world, "t") == {"init": 3 + 2 + 7, "rendezvous": 2 + 1 + 5, "productive": 2}


def test_a_role_waits_for_another():
    made = job(
        {"name": "prep", "driver": False},
        {"name": "late", "driver": False, "dependsOn": [{"role": "prep", "condition": "Complete"}]},
        {"name": "main", "dependsOn": [{"role": "prep"}]},
    )
    world = reserved(made)
    for event in [event for event in world.pending if isinstance(event, ev.HostReady)]:
        world.pending.remove(event)
        world.send(event, after=1)
    assert account_of(world.state, ("main", 0)) is Account.WAIT
    deliver(world, ev.RankReady, after=3)
    assert account_of(world.state, ("main", 0)) is Account.INIT
    assert account_of(world.state, ("late", 0)) is Account.WAIT
    world.end("prep", 0)
    deliver(world, ev.RankEnded, after=4)
    assert account_of(world.state, ("prep", 0)) is Account.IDLE
    assert spent(world, "late") == {"wait": world.now - world.start}


def test_a_world_that_may_start_no_longer_waits_for_another_role_but_for_itself():
    made = job(
        {"name": "prep", "driver": False},
        {"name": "t", "type": "Elastic", "replicas": 2, "dependsOn": [{"role": "prep"}]},
    )
    world = reserved(made)
    for event in [
        e for e in world.pending if isinstance(e, ev.HostReady) and e.host in (HostId("prep", 0), HostId("t", 0))
    ]:
        world.pending.remove(event)
        world.send(event)
    assert account_of(world.state, ("t", 0)) is Account.WAIT
    deliver(world, ev.RankReady, after=3)
    assert world.state.ledger.clocks["t", 0][0] is Account.RENDEZVOUS
    assert spent(world, "t") == {"wait": 3, "init": 3}


def test_a_lost_node_is_booked_from_when_it_was_last_heard_and_its_units_look_for_a_place():
    world = World(job({"name": "w", "replicas": 2}), views=nodes(2, cpus=1)).boot()
    gone = world.state.units["w/1"].node
    world.lose_node(gone)
    world.pending.clear()
    world.send(ev.NodesSeen(world.seen(), silent=((gone, world.now + 3),)), after=5)
    assert account_of(world.state, ("w", 1)) is Account.SCHEDULE
    world.now += 2
    assert spent(world) == {"productive": 7 + 3, "detect": 2, "schedule": 2}


def test_a_host_that_nobody_knows_of_is_nobodys_loss():
    world = World(job({"name": "w"}), views=nodes(1)).boot()
    before = world.state
    for host in (HostId("w", 7), HostId("another", 0)):
        world.send(ev.HostLost(host, 1, Outcome(ok=False, reason=Reason.NODE_LOST), seen=world.now - 3))
    assert (world.state.phase, world.state.ranks, world.state.faults) == (before.phase, before.ranks, ())


def test_a_frozen_node_was_silent_for_as_long_as_is_said():
    world = World(job({"name": "w", "replicas": 2}), views=nodes(2, cpus=1)).boot()
    frozen = world.state.units["w/1"].node
    world.send(ev.NodeFrozen(frozen, 4.0), after=5)
    assert spent(world) == {"productive": 6, "detect": 4}


def test_process_spares_come_on_top_of_the_ranks_time():
    made = job({"name": "w"}, faultTolerance={"spares": {"processesPerNode": 1}})
    world = World(made, views=nodes(1)).boot()
    world.now += 10
    assert spent(world) == {"productive": 10, "spare": 10}
    assert shown(world.state, world.now)["goodput"] == 1
    world.kill("w", 0)
    world.settle()
    world.now += 1
    assert spent(world) == {"productive": 11, "spare": 11}, "the one that was taken made place for the next"


def test_no_booking_goes_back_in_time():
    world = World(job({"name": "w"}), views=nodes(1)).boot()
    world.now += 10
    world.kill("w", 0)
    world.settle()
    world.now -= 5
    world.kill("w", 0)
    world.settle()
    check_ledger(world.state, world.now)
    assert spent(world)["productive"] == 10


def test_a_job_that_ends_is_idle_until_it_is_gone():
    world = World(job({"name": "w", "replicas": 2}), views=nodes(1)).boot()
    world.send(ev.Commanded("s", "stop"), after=1)
    assert account_of(world.state, ("w", 0)) is Account.IDLE
    world.now += 4
    assert spent(world) == {"productive": 2, "idle": 8}


def test_a_state_of_a_version_without_ledger_is_on_the_books_from_its_next_change():
    world = World(job({"name": "w"}), views=nodes(1)).boot()
    data = {key: value for key, value in json.loads(json.dumps(encode_state(world.state))).items() if key != "ledger"}
    world.state = decode_state(data, world.state.job)
    assert world.state.ledger == Ledger()
    world.hold = True
    world.kill("w", 0)
    deliver(world, ev.HostLost, after=100)
    world.now += 2
    assert spent(world) == {"replace": 2}


def test_a_replayed_journal_leads_to_the_same_ledger():
    world = World(job({"name": "w", "replicas": 3}), views=nodes(1)).boot()
    for rank in (0, 2, 1):
        world.now += 7.123456
        world.kill("w", rank)
        world.settle()
    world.crash_master()
    rebuilt = replay(world.plan, world.spec, UID, json.loads(json.dumps(world.journal)), start=world.start)
    assert rebuilt.ledger == world.state.ledger


# -- ranks that end as ordered

SERVER = {"driver": False, "entrypoint": {"module": "serve.py"}, "ports": [{"name": "http"}], "drain": {}}


def account(world: World, role: str, rank: int) -> str:
    """The account that a rank is booked to; each event has compared it with the rank's state."""
    return world.state.ledger.clocks[role, rank][0].value


def end_rank(world: World, role: str, rank: int, after: float = 0.0) -> None:
    """A rank that was asked to end does so."""
    incarnation = world.state.ranks[role, rank].incarnation
    world.send(ev.RankEnded(role, rank, incarnation, Outcome(ok=True, code=0)), after=after)


def scale(world: World, size: int) -> None:
    """Order a size of role e; those who have to leave user code for it are asked to."""
    world.hold = True
    world.send(ev.Commanded(f"s{world.now}", "scale", "e", "somebody", size))
    while not world.state.roles["e"].stopping_count:
        if world.pending:
            world.deliver()
        else:
            world.tick()


def test_a_rank_that_its_role_gives_up_works_until_it_has_ended_and_then_waits_for_the_others():
    world = fleet()
    scale(world, 1)
    world.pending.clear()
    assert (account(world, "e", 1), account(world, "e", 2)) == ("productive", "productive")
    end_rank(world, "e", 1, after=4)
    assert (account(world, "e", 1), account(world, "e", 2)) == ("idle", "productive")
    end_rank(world, "e", 2, after=2)
    assert set(world.state.ledger.clocks) == {("e", 0), ("d", 0)}
    assert spent(world, "e") == {"productive": 3 * 4 + 2 * 2, "idle": 2}


def test_a_rank_that_a_restart_was_to_bring_back_is_idle_once_its_role_gives_it_up():
    world = fleet(role=SERVER)
    world.hold = True
    world.send(ev.Commanded("again", "restart", "e/2"))
    world.pending.clear()
    assert account(world, "e", 2) == "replace"
    world.send(ev.Commanded("less", "scale", "e", "somebody", 2))
    world.tick()
    assert world.state.sizes["e"].leaving == (2,)
    assert account(world, "e", 2) == "idle"


def test_a_smaller_world_is_no_restart_of_the_ranks_that_it_drops():
    in_process = {"restartPolicy": {"level": "InProcess"}, "replicas": 4, "minReplicas": 2, "maxReplicas": 4}
    world = elastic_world(4, in_process)
    scale(world, 2)
    assert [account(world, "e", rank) for rank in range(4)] == ["decide", "decide", "idle", "idle"]
    while world.state.roles["e"].stopping_count:
        world.deliver()
    assert set(world.state.ledger.clocks) == {("e", 0), ("e", 1)}
    assert "replace" not in [account(world, "e", rank) for rank in (0, 1)], "they keep their processes"


def leave_node(made: Any, views: Any = None) -> tuple[World, str]:
    """A node with a server goes, and others have room."""
    world = World(made, views=views or nodes(3, cpus=1)).boot()
    victim = world.state.units["s/0"].node
    world.drain_node(victim, world.now + 300)
    world.deliver()
    world.send(ev.CopiesSaved(victim))
    assert world.state.ranks["s", 0].phase is RankPhase.STOPPING
    return world, victim


def test_a_server_of_a_departing_node_works_until_it_has_ended_and_then_its_move_is_a_restart():
    world, victim = leave_node(job({"name": "s", **SERVER}, {"name": "w"}))
    assert account(world, "s", 0) == "productive"
    end_rank(world, "s", 0, after=7)
    assert world.state.units["s/0"].node != victim
    assert account(world, "s", 0) == "schedule"
    assert spent(world, "s") == {"productive": 7}
    deliver(world, ev.UnitReserved, after=1)
    assert account(world, "s", 0) == "replace"
    deliver(world, ev.HostReady, after=3)
    assert account(world, "s", 0) == "init"
    assert spent(world, "s") == {"productive": 7, "schedule": 1, "replace": 3}


def test_a_server_that_was_still_starting_when_its_node_goes_has_done_no_work():
    world = reserved(job({"name": "s", **SERVER}, {"name": "w"}), views=nodes(3, cpus=1))
    for event in [event for event in world.pending if isinstance(event, ev.HostReady)]:
        world.pending.remove(event)
        world.send(event, after=1)
    world.drain_node(victim := world.state.units["s/0"].node, world.now + 300)
    world.pending = [event for event in world.pending if not isinstance(event, ev.RankReady)]
    world.deliver()
    world.send(ev.CopiesSaved(victim), after=5)
    assert world.state.ranks["s", 0].phase is RankPhase.STOPPING
    assert account(world, "s", 0) == "init"


def test_a_server_that_finishes_its_requests_in_a_restart_of_the_job_is_being_replaced():
    roles = ({"name": "w"}, {"name": "s", **SERVER, "dependsOn": [{"role": "prep", "condition": "Complete"}]})
    world = World(job(*roles, {"name": "prep", "driver": False}), views=nodes(1)).boot()
    end_rank(world, "prep", 0)
    world.settle()
    world.send(ev.Commanded("again", "restart", "job"))
    assert world.state.ranks["s", 0].phase is RankPhase.STOPPING
    assert account(world, "s", 0) == "replace"


# -- ranks that stand still

TRAINER, REWARD = ("trainer", 0), ("reward", 0)


def a_stalled_job(waited=60):
    """A job that has worked for 100 s, in the last 60 of which its trainer waited for its reward role."""
    roles = {"name": "trainer"}, {"name": "reward", "driver": False}
    world = World(job(*roles), views=nodes(1)).boot()
    world.now += 100
    stall = Stall("reward/0@4", world.now - waited, "{}", "reward/0", (TRAINER, REWARD))
    world.send(ev.StallsFound((stall,)))
    return world, stall


def test_a_stall_is_dated_back_and_no_counter_falls():
    world, _ = a_stalled_job()
    assert account_of(world.state, TRAINER) is account_of(world.state, REWARD) is Account.STALLED
    assert spent(world, "trainer") == spent(world, "reward") == {"productive": 40, "stalled": 60}
    assert counters(world, "trainer")[Account.PRODUCTIVE] == 100 * SECOND
    world.now += 5
    assert spent(world, "reward") == {"productive": 40, "stalled": 65}
    assert shown(world.state, world.now)["goodput"] == shown(world.state, world.now)["recentGoodput"]
    check_ledger(world.state, world.now)


def test_a_stall_that_ends_by_itself_is_given_back():
    world, _ = a_stalled_job()
    world.now += 15
    world.send(ev.StallsFound())
    assert spent(world, "trainer") == spent(world, "reward") == {"productive": 115}
    assert counters(world, "trainer")[Account.STALLED] == 75 * SECOND
    check_ledger(world.state, world.now)
    # What it takes later may begin within the time that was given back.
    later = Stall("reward/0@9", world.now - 30, "{}", "reward/0", (TRAINER, REWARD))
    world.send(ev.StallsFound((later,)))
    assert spent(world, "trainer") == {"productive": 85, "stalled": 30}


@pytest.mark.parametrize("found_hung", [False, True])
def test_a_stall_that_a_restart_ends_is_not_given_back(found_hung):
    world, _ = a_stalled_job()
    world.now += 15
    if found_hung:
        world.send(ev.HangFound("reward", 0, 1, Reason.HANG.value, "no call ends", silent_s=75))
    else:
        world.send(ev.Commanded("c", "restart", "reward/0"))
    world.settle()
    for role in "trainer", "reward":
        assert spent(world, role)["stalled"] == 75
    assert account_of(world.state, TRAINER) is Account.PRODUCTIVE
    check_ledger(world.state, world.now)


def test_a_job_that_ends_in_a_stall_keeps_it():
    world, _ = a_stalled_job()
    world.send(ev.Commanded("c", "stop"), after=1)
    world.settle()
    assert spent(world, "trainer")["stalled"] == 61


def test_a_rank_that_is_lost_in_a_stall_is_booked_to_detect_from_its_last_sign():
    world, _ = a_stalled_job()
    world.kill("reward", 0)
    lost = world.pending.pop()
    world.now += 1
    world.send(ev.HostLost(lost.host, lost.incarnation, KILLED, seen=world.now - 0.5))
    assert spent(world, "reward") == {"productive": 40, "stalled": 60.5, "detect": 0.5}
    check_ledger(world.state, world.now)


def test_a_rank_in_two_stalls_gets_back_what_only_the_ended_one_took():
    world, stall = a_stalled_job()
    world.now += 10
    second = Stall("x@8", world.now - 20, "{}", "", (TRAINER,))
    world.send(ev.StallsFound((stall, second)))
    assert spent(world, "trainer") == {"productive": 40, "stalled": 70}
    world.send(ev.StallsFound((second,)))
    assert spent(world, "trainer") == {"productive": 90, "stalled": 20}
    assert spent(world, "reward") == {"productive": 110}
    # An older wait becomes known: it is dated back, but not to before the rank was ready.
    world.send(ev.StallsFound((Stall("y@0", world.start - 50, "{}", "", (TRAINER,)), second)))
    assert spent(world, "trainer") == {"stalled": 110}
    check_ledger(world.state, world.now)


def test_the_ledger_of_a_stall_survives_prime_master():
    world, _ = a_stalled_job()
    world.now += 5
    world.crash_master()
    assert decode_state(encode_state(world.state), world.state.job).ledger == world.state.ledger
    assert spent(world, "reward") == {"productive": 40, "stalled": 65}
    world.send(ev.StallsFound())
    assert spent(world, "reward") == {"productive": 105}


# -- the first work of a process


def test_a_rank_begins_until_its_first_work_and_each_process_anew():
    world = World(job({"name": "w", "replicas": 2}), views=nodes(1)).boot()
    begun = world.now
    world.now += 30
    unknown, stale = ("x", 0, 1, begun + 20), ("w", 1, 9, begun + 20)
    world.send(ev.WorkBegan((("w", 0, 1, begun + 20), unknown, stale)))
    assert spent(world) == {"init": 20, "productive": 40}
    assert counters(world)[Account.PRODUCTIVE] == 60 * SECOND
    world.send(ev.WorkBegan((("w", 0, 1, begun + 25),)), after=10)
    assert spent(world) == {"init": 20, "productive": 60}
    check_ledger(world.state, world.now)
    world.kill("w", 0)
    world.settle()
    assert spent(world)["init"] == 20
    world.now += 7
    world.send(ev.WorkBegan((("w", 0, 2, world.now),)))
    assert spent(world)["init"] == 27


def test_a_rank_that_stalls_before_its_first_work_begins_only_up_to_the_stall():
    world = World(job({"name": "w"}), views=nodes(1)).boot()
    world.now += 100
    world.send(ev.StallsFound((Stall("x@1", world.now - 60, "{}", "", (("w", 0),)),)))
    world.send(ev.WorkBegan((("w", 0, 1, world.now - 1),)))
    assert spent(world) == {"init": 40, "stalled": 60}
    world.send(ev.StallsFound())
    assert spent(world) == {"init": 40, "productive": 60}
    check_ledger(world.state, world.now)


def test_work_of_a_rank_that_repeats_steps_changes_no_account():
    world = World(job({"name": "w"}), views=nodes(1)).boot()
    world.kill("w", 0)
    deliver(world, ev.HostLost)
    deliver(world, ev.HostReady)
    ready_with_goal(world, 17)
    world.send(ev.WorkBegan((("w", 0, 2, world.now + 3),)), after=3)
    assert account_of(world.state, ("w", 0)) is Account.INIT
    check_ledger(world.state, world.now)


# -- the arithmetic alone

ROLES = {"a": 3, "b": 1}
KEYS = [(role, rank) for role, count in ROLES.items() for rank in range(count)]
TIMES = st.integers(-(10**6), 10**10)


def a_move(key, account, lost, stalled, *flags):
    """A move as the rules make them: a rank in `stalled` has a stall, and is not lost."""
    stands_still = account is Account.STALLED
    return Move(key, account, None if stands_still else lost, stalled if stands_still else None, *flags)


STEPS = st.lists(
    st.tuples(
        st.integers(-(10**7), 10**9),
        st.lists(
            st.builds(
                a_move,
                st.sampled_from(KEYS),
                st.sampled_from([a for a in Account if a is not Account.SPARE]),
                st.none() | TIMES,
                TIMES,
                st.booleans(),
                st.none() | TIMES,
            ),
            max_size=4,
            unique_by=lambda move: move.key,
        ),
        st.dictionaries(st.sampled_from(sorted(ROLES)), st.integers(0, 2)),
    ),
    max_size=30,
)


@given(STEPS)
def test_accounts_add_up_to_the_time_and_no_counter_falls(steps):
    own, now, spares, last = new_ledger(ROLES), 0, dict.fromkeys(ROLES, 0), {}
    spared = dict.fromkeys(ROLES, 0)
    for pause, moves, come in steps:
        at = max(own.at, now + pause)
        for role in ROLES:
            spared[role] += spares[role] * (at - own.at)
            spares[role] += come.get(role, 0)
        for when in (now + pause, None):
            if when is None:
                own = book_moves(own, moves, come, now + pause)
            for role, count in ROLES.items():
                sums = totals(own, role, at)
                assert all(total > 0 for total in sums.values())
                assert sums.pop(Account.SPARE, 0) == spared[role]
                assert sum(sums.values()) == count * at
                lacking = counter_shortfalls(own, role, at)
                for account in Account:
                    value = sums.get(account, 0) + lacking.get(account, 0)
                    assert value >= last.get((role, account), 0) or account is Account.SPARE
                    last[role, account] = value
        now = now + pause
        share = goodput(own, 4, at)
        if at:
            assert share.overall == sum(totals(own, role, at).get(Account.PRODUCTIVE, 0) for role in ROLES) / (4 * at)
            assert 0 <= share.recent <= 1
        assert len(own.marks) <= WINDOW_US // ledger.GRAIN_US + 2


def test_recent_goodput_of_a_job_that_grew_within_the_window_is_that_of_its_whole_time():
    own = book_moves(new_ledger({"a": 1}), [Move(("a", 0), Account.PRODUCTIVE)], {}, 100 * SECOND)
    share = goodput(own, 3, 200 * SECOND, 400 * SECOND)
    assert (share.overall, share.recent) == (0.25, 0.25)


def test_recent_goodput_forgets_what_is_longer_ago():
    own = new_ledger({"a": 1})
    own = book_moves(own, [Move(("a", 0), Account.PRODUCTIVE)], {}, 1000 * SECOND)
    assert goodput(own, 1, 1300 * SECOND).recent == 0.5
    assert goodput(own, 1, 2000 * SECOND) == ledger.Goodput(0.5, 1.0)
    own = book_moves(own, [Move(("a", 0), Account.REPLACE)], {}, 2000 * SECOND)
    assert goodput(own, 1, 2150 * SECOND).recent == 0.75
    for at in range(2150, 2650, 10):
        own = book_moves(own, [Move(("a", 0), Account.PRODUCTIVE)], {}, at * SECOND)
        own = book_moves(own, [Move(("a", 0), Account.REPLACE)], {}, (at + 5) * SECOND)
    # Half of 500 s of the last 600; the beginning of the window is known to half a minute.
    assert goodput(own, 1, 2700 * SECOND).recent == pytest.approx(250 / 600, abs=30 / 600)
    assert goodput(own, 1, 9000 * SECOND).recent == 0


def test_recent_goodput_is_a_share_of_the_ranks_that_there_were():
    own = new_ledger({"a": 1})
    own = book_moves(own, [Move(("a", 0), Account.PRODUCTIVE)], {}, 0)
    own = ledger.resize_role(own, "a", 1, 4, 1000 * SECOND)
    own = book_moves(own, [Move(("a", rank), Account.PRODUCTIVE) for rank in (1, 2, 3)], {}, 1000 * SECOND)
    for at in (1000, 1200, 1599, 1600, 1700):
        spent = ledger.rank_time(own, "a", 4, at * SECOND)
        assert goodput(own, 4, at * SECOND, spent) == ledger.Goodput(1.0, 1.0), at
    # Four ranks less: as many as there were before.
    own = book_moves(own, [Move(("a", rank), None) for rank in (1, 2, 3)], {}, 1300 * SECOND)
    own = ledger.resize_role(own, "a", 4, 1, 1300 * SECOND)
    share = goodput(own, 1, 1600 * SECOND, ledger.rank_time(own, "a", 1, 1600 * SECOND))
    assert share == ledger.Goodput(1.0, 1.0)
    for at in range(2000, 2000 + 2 * ledger.MOST_RESIZES):
        own = ledger.resize_role(own, "a", 1, 2 - at % 2, at * SECOND)
    assert len(own.resizes) == ledger.MOST_RESIZES
    own = ledger.resize_role(own, "a", 1, 1, 4000 * SECOND)
    assert len(own.resizes) == 1


def test_without_ranks_there_is_no_goodput():
    assert goodput(new_ledger({}), 0, SECOND) == ledger.Goodput(None, None)
