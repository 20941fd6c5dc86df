"""Nodes that somebody announces to take away: what is saved, who leaves and who stays, and what is said of it."""

from __future__ import annotations

import json

import pytest
from master_kit import World, job, nodes

from dljob.master import status
from dljob.master.persistence.codec import replay
from dljob.master.placement.reissue import reissue
from dljob.master.start.standby import standby_nodes
from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state import limits
from dljob.master.state.evolve import evolve
from dljob.master.state.state import Phase, UnitPhase
from dljob.master.state.views import Clue, Level, Outcome, Reason
from dljob.master.transition import next_wake
from dljob.telemetry import reasons

EVICTED = "EvictionByEvictionAPI: Eviction API: evicting (pod j-w0)"


def boot(count=3, role=None, **more):
    made = job({"name": "w", "replicas": 2, **(role or {})}, **more)
    world = World(made, views=nodes(count, cpus=1)).boot()
    world.send(ev.NodesSeen(world.seen()))
    return world


def where(world, unit="w/0"):
    return world.state.units[unit].node


def evict(world, node, words=EVICTED, source="pod"):
    return world.send(ev.CauseLearned(f"node/{node}", (Clue(source, words),)))


def test_checkpoints_in_memory_are_saved_before_the_ranks_of_a_drained_node_leave():
    world = boot()
    victim = where(world)
    world.drain_node(victim, world.now + 30)
    actions = world.deliver()
    assert [a for a in actions if not isinstance(a, act.Note)] == [act.SaveCopies(victim, 25.0)]
    assert where(world) == victim
    assert world.state.live_rank_count == 2, "ranks go on while their copies come to disk"
    world.settle()
    assert where(world) not in ("", victim)
    assert world.state.ranks["w", 0].incarnation == 2
    assert world.state.ranks["w", 1].incarnation == 1
    assert world.state.phase is Phase.RUNNING
    first, *more = world.notes(reasons.NODE_LEAVING)
    assert first.target == f"node/{victim}"
    assert first.message == (
        "it is about to be taken away: Ray drains it, it is gone by 00:17:10 UTC; "
        "its ranks leave once their checkpoint copies are on disk"
    )
    assert not more


def test_the_announced_departure_is_the_first_cause_of_the_ends_on_that_node():
    world = boot()
    victim = where(world)
    evict(world, victim)
    world.settle()
    (fault,) = world.state.faults
    assert (fault.reason, fault.rank) == ("Preempted", "w/0")
    assert fault.cause == f"w/0: Preempted: node {victim} is taken away: {EVICTED}"
    assert world.state.ranks["w", 0].restart_reason == "Preempted"


@pytest.mark.parametrize("ray", [True, False], ids=["of Ray", "of the pod"])
def test_an_end_before_anybody_could_leave_is_put_down_to_the_announcement(ray):
    world = boot(2)
    victim = where(world)
    if ray:
        world.drain_node(victim, world.now + 600)
        world.settle()
    else:
        evict(world, victim)
        world.settle()
    assert where(world) == victim
    world.send(ev.Tick(), after=limits.ANNOUNCED_END_WINDOW_S - 10)
    world.lose_node(victim)
    world.settle()
    assert world.state.faults[-1].reason == "Preempted"
    assert ("Ray drains it" if ray else EVICTED) in str(world.state.faults[-1].outcome.clues)


def test_a_long_notice_holds_as_long_as_the_node_does():
    world = boot(2)
    victim = where(world)
    world.drain_node(victim, world.now + 600)
    world.settle()
    world.send(ev.Tick(), after=500)
    world.lose_node(victim)
    world.settle()
    assert world.state.faults[-1].reason == "Preempted"


def test_ranks_stay_to_the_end_where_no_other_node_can_hold_them_and_leave_when_one_can():
    world = boot(2)
    victim = where(world)
    evict(world, victim)
    world.settle()
    assert where(world) == victim
    assert world.state.phase is Phase.RUNNING
    (stays,) = [n for n in world.notes(reasons.NODE_LEAVING) if "stay until it is gone" in n.message]
    assert stays.target == f"node/{victim}"
    world.send(ev.NodesSeen(world.seen()))
    assert len([n for n in world.notes(reasons.NODE_LEAVING) if "stay" in n.message]) == 1, "it is said once"
    world.add_node(nodes(4, cpus=1)[3])
    world.settle()
    assert where(world) == "n3"
    assert world.state.ranks["w", 0].incarnation == 2


def test_ranks_leave_for_a_node_whose_exclusion_is_over():
    world = boot(3, faultTolerance={"node": {"excludeSeconds": 100}})
    frozen, victim = where(world, "w/1"), where(world)
    world.freeze_node(frozen)
    world.settle()
    world.thaw_node(frozen)
    world.settle()
    world.drain_node(victim, world.now + 600)
    world.settle()
    assert where(world) == victim
    while where(world) == victim:
        world.tick()
    world.settle()
    assert where(world) == frozen
    assert world.now == world.start + 100


def test_nothing_goes_to_a_node_that_is_to_go():
    world = boot(4)
    idle = [node.id for node in world.views if node.id not in (where(world), where(world, "w/1"))]
    world.drain_node(idle[0])
    world.settle()
    assert not world.of(act.SaveCopies), "nobody lives there"
    world.lose_node(where(world))
    world.settle()
    assert where(world) == idle[1]
    world.lose_node(where(world))
    world.settle()
    assert world.state.units["w/0"].phase is UnitPhase.LOST, "not even as the last one that is left"
    world.now = world.state.search.deadline
    world.send(ev.Tick())
    assert not world.of(act.Reserve, len(world.all_actions) - 3)
    assert world.state.verdict is not None


def test_no_unit_is_placed_at_the_start_on_a_node_that_is_to_go():
    world = World(job({"name": "w", "replicas": 2}), views=nodes(3, cpus=1))
    world.drain_node("n0")
    world.boot()
    assert {where(world), where(world, "w/1")} == {"n1", "n2"}


def test_a_reservation_in_progress_on_a_node_that_is_to_go_is_given_back():
    world = World(job({"name": "w", "replicas": 2}), views=nodes(3, cpus=1))
    world.send(ev.MasterStarted(1))
    world.send(ev.NodesSeen(world.seen()))
    victim = where(world)
    evict(world, victim)
    assert not world.of(act.SaveCopies)
    assert {own.phase for own in world.state.units.values()} == {UnitPhase.UNPLACED}
    world.settle()
    world.tick()
    world.settle()
    assert world.state.phase is Phase.RUNNING
    assert victim not in (where(world), where(world, "w/1"))


def test_a_reservation_under_way_is_cancelled_where_the_node_is_announced_to_go():
    """Orders of one batch are carried out together: a unit that was to go there must not."""
    world = boot(4)
    first = where(world)
    evict(world, first)
    world.send(ev.CopiesSaved(first))
    second, token = where(world), world.state.units["w/0"].token
    assert world.state.units["w/0"].phase is UnitPhase.RESERVING
    actions = world.send(
        ev.NodesSeen(
            tuple(evolve(node, leaving=world.now + 9) if node.id == second else node for node in world.state.nodes)
        )
    )
    assert act.Unreserve("w/0", token) in actions
    assert world.state.units["w/0"].phase is UnitPhase.RESERVING
    assert where(world) not in (first, second)


def test_a_preemption_that_was_announced_costs_no_budget_and_others_do():
    world = boot(4, {"restartPolicy": {"maxRestarts": 1}})
    for _ in range(2):
        evict(world, where(world))
        world.settle()
        while world.state.incidents:
            world.tick()
            world.settle()
    assert world.state.phase is Phase.RUNNING
    assert world.state.restarts[Level.PROCESS.value] == 2
    killed = Outcome(ok=False, reason=Reason.UNKNOWN)
    world.kill("w", 0, killed)
    world.settle()
    assert len(world.state.marks["w"]) == 1


def test_nodes_that_are_announced_together_cost_one_restart_and_no_backoff():
    world = boot(12, {"replicas": 6, "restartPolicy": {"level": "Role"}})
    victims = [where(world, f"w/{rank}") for rank in range(5)]
    for victim in victims:
        evict(world, victim)
    world.settle()
    assert world.state.phase is Phase.RUNNING, "no backoff is waited for"
    assert not {where(world, f"w/{rank}") for rank in range(6)} & set(victims)
    assert dict(world.state.restarts) == {Level.NODE.value: 1, Level.ROLE.value: 1}
    assert not world.state.marks
    (fault,) = world.state.faults
    assert all(f"node {victim} is taken away: {EVICTED}" in fault.cause for victim in victims)


def test_announced_departures_one_after_the_other_cost_no_backoff():
    world = boot(6)
    for _ in range(4):
        evict(world, where(world))
        world.settle()
        assert world.state.phase is Phase.RUNNING
    assert not world.state.marks


def test_a_process_that_dies_again_and_again_on_a_node_that_is_to_go_waits_longer_each_time():
    world = boot(2)
    evict(world, where(world))
    world.settle()
    waits = []
    for _ in range(3):
        world.now += limits.SAME_FAILURE_WINDOW_S + 1
        world.kill("w", 0)
        world.settle()
        waits.append(max((own.backoff_until - world.now for own in world.state.incidents.values()), default=0.0))
        while world.state.incidents:
            world.tick()
            world.settle()
    assert waits == [0.0, 1.0, 2.0]
    assert "w" not in world.state.marks, "it is still no failure of the job's"


def test_of_two_nodes_that_are_to_go_one_is_left_where_there_is_room_for_one():
    world = boot(3)
    for victim in (where(world, "w/0"), where(world, "w/1")):
        evict(world, victim)
    world.settle()
    left, stays = (own.stays for _, own in sorted(world.state.departures.items()))
    assert not left
    assert stays
    assert (where(world, "w/0"), where(world, "w/1")) == ("n2", "n1")


def test_a_failure_by_itself_on_a_node_that_is_to_go_still_counts():
    world = boot(2, {"restartPolicy": {"maxRestarts": 1}})
    evict(world, where(world))
    world.settle()
    world.end("w", 0, Outcome(ok=False, reason=Reason.USER_ERROR, error_type="ValueError", message="boom"))
    world.settle()
    assert world.state.faults[-1].reason == "UserError"
    assert len(world.state.marks["w"]) == 1


def test_ranks_whose_copies_take_too_long_leave_without_them():
    world = boot(3, checkpoint={"path": "/ckpt", "gracePeriodSeconds": 7})
    victim = where(world)
    world.hold = True
    evict(world, victim)
    (order,) = world.of(act.SaveCopies)
    assert order.within_s == 7.0
    world.pending.clear()
    world.tick()
    assert world.now == 1007.0
    assert "the flush took longer than 7 s" in world.notes(reasons.NODE_LEAVING)[1].message
    world.settle()
    assert where(world) != victim
    before = world.state
    world.send(ev.CopiesSaved(victim, "late"))
    assert world.state is before


def test_copies_that_could_not_be_saved_are_noted():
    world = boot()
    victim = where(world)
    evict(world, victim)
    world.pending.clear()
    world.send(ev.CopiesSaved(victim, "the disk is full"))
    message = "some checkpoint copies of its ranks are not on disk: the disk is full"
    assert message in [note.message for note in world.notes(reasons.NODE_LEAVING)]
    world.send(ev.CopiesSaved("nobody"))


def test_a_second_announcement_of_a_departure_is_added_and_acted_upon_once():
    world = boot(2)
    victim = where(world)
    evict(world, victim)
    evict(world, victim)
    world.drain_node(victim, world.now + 20)
    world.settle()
    assert world.state.departures[victim].announcement == EVICTED
    evict(world, victim, "PreemptionByScheduler: for a higher priority pod")
    assert world.state.departures[victim].announcement == f"{EVICTED}; PreemptionByScheduler: for a higher priority pod"
    assert len(world.of(act.SaveCopies)) == 1


def test_copies_of_all_nodes_that_go_at_once_are_saved_once():
    world = boot(6, {"replicas": 3})
    victims = [where(world, f"w/{rank}") for rank in range(3)]
    world.hold = True
    for victim in victims:
        evict(world, victim)
    assert [order.node for order in world.of(act.SaveCopies)] == [victims[0]]
    assert [order.node for order in reissue(world.state, world.now) if isinstance(order, act.SaveCopies)] == victims[:1]
    world.settle()
    assert not {where(world, f"w/{rank}") for rank in range(3)} & set(victims)
    assert all(own.saved for own in world.state.departures.values())


def test_words_that_announce_nothing_and_unknown_nodes_start_no_departure():
    world = boot()
    evict(world, where(world), "OOMKilled: container ray-worker ended with exit code 137 (OOMKilled)")
    evict(world, "nobody")
    world.send(ev.CauseLearned("w/0", (Clue("pod", EVICTED),)))
    assert not world.state.departures


def test_the_status_says_who_takes_a_node_away_and_when():
    world = boot(3)
    victim = where(world)
    evict(world, victim)
    told = status.nodes(world.state)
    assert told["ready"] == 2
    (out,) = told["excluded"]
    assert out == {
        "name": victim,
        "reason": "Preempted",
        "since": "1970-01-01T00:16:40.000Z",
        "until": "1970-01-01T00:17:10.000Z",
        "why": EVICTED,
    }


def test_a_node_that_stays_is_used_again():
    world = boot(2)
    victim = where(world)
    evict(world, victim)
    world.settle()
    while world.state.departures:
        world.tick()
    assert world.now == 1000.0 + limits.DEPART_S + limits.ANNOUNCED_END_WINDOW_S
    (note,) = world.notes(reasons.NODE_DRAIN_CANCELLED)
    assert note.message == "still there 180 s after its departure was announced: it is used again"
    assert next_wake(world.state) is None


def test_a_node_that_ray_still_drains_is_not_used_again():
    world = boot(2)
    victim = where(world)
    world.drain_node(victim)
    world.settle()
    while world.now < 1000 + 3 * limits.ANNOUNCED_END_WINDOW_S:
        world.tick()
    assert victim in world.state.departures
    assert not world.notes(reasons.NODE_DRAIN_CANCELLED)


def test_a_node_that_went_is_forgotten():
    world = boot()
    victim = where(world)
    evict(world, victim)
    world.settle()
    world.lose_node(victim)
    world.settle()
    assert not world.state.departures
    assert world.state.restarts[Level.NODE.value] == 1


def test_ended_ranks_do_not_leave_a_node_that_is_to_go():
    world = boot(3, {"driver": False})
    world = World(job({"name": "w"}, {"name": "d", "driver": False}), views=nodes(3, cpus=1)).boot()
    victim = where(world, "d/0")
    world.end("d", 0)
    world.settle()
    evict(world, victim)
    world.settle()
    assert where(world, "d/0") == victim
    assert not world.of(act.SaveCopies)


def test_a_job_that_ends_ignores_departures():
    world = boot()
    victim = where(world)
    world.hold = True
    world.send(ev.Commanded("c1", "stop"))
    evict(world, victim)
    world.drain_node(victim)
    world.deliver(-1)
    assert not world.state.departures


def test_a_job_that_ends_while_copies_come_to_disk_lets_nobody_leave():
    world = boot()
    victim = where(world)
    world.hold = True
    evict(world, victim)
    world.send(ev.Commanded("c1", "stop"))
    world.send(ev.CopiesSaved(victim))
    assert where(world) == victim


def test_a_master_that_takes_over_asks_for_the_copies_again():
    world = boot()
    victim = where(world)
    evict(world, victim)
    state = replay(*_made(world), json.loads(json.dumps(world.journal)), start=world.start)
    assert state == world.state
    assert act.SaveCopies(victim, 20.0) in reissue(state, world.now + 5)
    assert act.SaveCopies(victim, 1.0) in reissue(state, world.now + 500)
    world.settle()
    assert not [a for a in reissue(world.state, world.now) if isinstance(a, act.SaveCopies)]


def _made(world):
    return world.plan, world.spec, world.state.job.uid


def test_a_spare_node_that_is_to_go_stands_by_no_more():
    group = {"name": "any", "replicas": 4, "cpu": "1"}
    world = World(
        job({"name": "w", "replicas": 2}, nodeGroups=[group], faultTolerance={"spares": {"nodes": 1}}),
        views=nodes(4, cpus=1),
    ).boot()
    world.send(ev.NodesSeen(world.seen()))
    ((before,),) = standby_nodes(world.state).values()
    evict(world, before)
    world.settle()
    ((after,),) = standby_nodes(world.state).values()
    assert after != before
    assert not [key for key in world.state.spares if key[1] == before and world.state.spares[key].phase.alive]
