"""Gang admission, and units of lost nodes."""

from __future__ import annotations

from dataclasses import replace

from immutables import Map
from master_kit import World, job, nodes

from dljob.master import status
from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state import limits
from dljob.master.state.state import Phase, UnitPhase
from dljob.master.transition import initial, transition
from dljob.telemetry import reasons


def said(world):
    return status.brief(world.state, world.now, {})


def small(count, cpus=2):
    return nodes(count, cpus=cpus)


def test_no_room_now_waits_says_why_once_and_reserves_when_nodes_change():
    world = World(job({"name": "w", "replicas": 4}), views=small(2))
    busy = tuple(replace(view, free=(("CPU", 10_000),)) for view in small(3))
    world.send(ev.NodesSeen(busy[:2]))
    assert world.state.phase is Phase.PENDING
    world.send(ev.NodesSeen(busy))
    world.send(ev.NodesSeen(busy))
    assert not world.of(act.Reserve)
    said = [note.message for note in world.notes(reasons.NO_ROOM)]
    assert said[-1] == world.state.search.no_room_reason
    assert len(said) == len(set(said))
    world.send(ev.NodesSeen(world.views))
    assert len(world.of(act.Reserve)) == 4
    assert world.state.phase is Phase.SCHEDULING


def test_a_job_that_never_fits_fails_at_once_with_the_refusal():
    world = World(job({"name": "w", "resources": {"cpu": "8"}}), views=small(2))
    world.send(ev.NodesSeen(world.views))
    assert world.state.verdict.reason == reasons.NEVER_FITS
    assert "8" in world.state.verdict.message
    world.settle()
    assert world.state.phase is Phase.FAILED


def test_a_job_that_does_not_fit_while_nodes_join_fails_only_after_a_while():
    made = job({"name": "w", "replicas": 4}, nodeGroups=[{"name": "g", "replicas": 2, "cpu": "2"}])
    views = World(made).views
    world = World(made, views=views[:1])
    world.send(ev.NodesSeen(world.views))
    assert world.state.verdict is None
    assert world.send(ev.NodesSeen(views))
    assert world.state.phase is Phase.SCHEDULING
    alone = World(made, views=views[:1])
    alone.send(ev.NodesSeen(alone.views))
    alone.tick()
    assert alone.now == alone.start + limits.NODES_S
    assert alone.state.verdict.reason == reasons.NEVER_FITS


def test_nodes_that_are_made_for_the_job_are_waited_for_however_late_they_come():
    made = job({"name": "w", "replicas": 4}, nodeGroups=[{"name": "g", "replicas": 2, "cpu": "2"}])
    views = World(made).views
    world = World(made, views=views[:1], own_nodes=True)
    world.send(ev.NodesSeen(world.views))
    world.send(ev.Tick(), after=100 * limits.NODES_S)
    world.send(ev.NodesSeen(views[1:]))
    assert world.state.verdict is None
    assert "has room for 2" in world.state.search.no_room_reason
    world.send(ev.NodesSeen(views))
    assert world.state.phase is Phase.SCHEDULING


def test_nodes_that_are_all_there_and_too_small_fail_the_job_at_once():
    made = job({"name": "w", "replicas": 4}, nodeGroups=[{"name": "g", "replicas": 2, "cpu": "2"}])
    smaller = tuple(replace(view, total=(("CPU", 1),), free=(("CPU", 1),)) for view in World(made).views)
    world = World(made, views=smaller, own_nodes=True)
    world.send(ev.NodesSeen(world.views))
    assert world.state.verdict.reason == reasons.NEVER_FITS


def test_on_a_raycluster_of_others_the_operator_knows_whether_nodes_come():
    """The job says that it fits nowhere, and waits: a worker pod that is still Pending may join at any time."""
    made = job({"name": "w", "resources": {"cpu": "8"}}, rayClusterRef={"name": "shared"})
    world = World(made, views=small(2))
    world.send(ev.NodesSeen(world.views))
    assert said(world)["reason"] == reasons.NO_ROOM
    world.tick()
    assert world.now == world.start + limits.NODES_S
    assert said(world)["reason"] == reasons.NEVER_FITS
    (waiting,) = said(world)["placement"]["notReady"]
    assert "needs 8 CPU on one machine" in waiting["why"]
    world.send(ev.Tick(), after=100 * limits.NODES_S)
    world.send(ev.NodesSeen((*world.views, replace(nodes(1, cpus=8)[0], id="n2"))))
    assert world.state.phase is Phase.SCHEDULING
    assert not world.state.search.never


def test_an_elastic_role_starts_smaller_on_the_raycluster_of_others():
    made = job({"name": "w", "replicas": 4, "minReplicas": 2, "type": "Elastic"}, rayClusterRef={"name": "shared"})
    world = World(made, views=small(1))
    world.send(ev.NodesSeen(world.views))
    world.tick()
    assert len(world.of(act.Reserve)) == 2


def test_one_refused_unit_gives_the_whole_gang_back_and_tries_again_later():
    world = World(job({"name": "w", "replicas": 3}))
    world.send(ev.NodesSeen(world.views))
    world.deliver()
    given_back = world.send(ev.UnitRefused("w/1", 1, "no CPU left"))
    assert [a.unit for a in given_back if isinstance(a, act.Unreserve)] == ["w/0", "w/1", "w/2"]
    assert world.state.phase is Phase.PENDING
    assert "no CPU left" in world.notes(reasons.RESERVATION_REFUSED)[0].message
    assert world.send(ev.NodesSeen(world.views)) == ()
    again = world.tick()
    assert [a.token for a in again] == [2, 2, 2]
    world.settle()
    assert world.state.phase is Phase.RUNNING


def test_a_reservation_that_comes_after_it_was_given_up_is_given_back_again():
    world = World(job({"name": "w", "replicas": 2}))
    world.send(ev.NodesSeen(world.views))
    world.send(ev.UnitRefused("w/1", 1, "no"))
    before = world.state
    assert world.deliver() == (act.Unreserve("w/0", 1),)
    assert world.state is before


def test_two_jobs_that_block_each_other_wait_differently_and_each_always_the_same():
    plan, spec = job({"name": "w"})

    def wait(uid):
        state = initial(plan, spec, uid, 0.0)
        state = transition(state, ev.NodesSeen(World((plan, spec)).views), 0.0).state
        return transition(state, ev.UnitRefused("w/0", 1, "no"), 0.0).state.search.retry_at

    assert wait("a" * 32) == wait("a" * 32) != wait("b" * 32)
    assert 0.5 * limits.ADMIT_BACKOFF_S <= wait("a" * 32) <= 1.5 * limits.ADMIT_BACKOFF_S


def test_waits_after_refusals_grow_up_to_a_bound():
    world = World(job({"name": "w"}))
    world.send(ev.NodesSeen(world.views))
    waits = []
    for token in range(1, 13):
        world.pending.clear()
        world.send(ev.UnitRefused("w/0", token, "no"))
        waits.append(world.state.search.retry_at - world.now)
        world.tick()
    assert waits[3] > waits[0]
    assert max(waits) <= 1.5 * limits.ADMIT_BACKOFF_MAX_S


def test_a_node_that_goes_while_the_gang_is_reserved_starts_the_search_anew():
    world = World(job({"name": "w", "replicas": 2}), views=small(2, cpus=1))
    world.send(ev.NodesSeen(world.views))
    world.add_node(nodes(3, cpus=1)[2])
    world.pending.clear()
    world.lose_node("n1")
    world.settle()
    assert world.state.phase is Phase.PENDING
    world.tick()
    world.send(ev.NodesSeen(world.seen()))
    world.settle()
    assert world.state.phase is Phase.RUNNING
    assert {u.node for u in world.state.units.values()} == {"n0", "n2"}


def test_the_pre_running_deadline_names_what_is_missing():
    made = job({"name": "w", "replicas": 4}, preRunningDeadlineSeconds=60)
    world = World(made, views=small(2))
    world.send(ev.NodesSeen(tuple(replace(view, free=()) for view in world.views)))
    world.tick()
    assert world.now == world.start + 60
    assert world.state.verdict.reason == reasons.PRE_RUNNING_DEADLINE
    assert world.state.search.no_room_reason in world.state.verdict.message


def test_the_pre_running_deadline_names_the_roles_that_are_not_ready():
    world = World(job({"name": "w"}, {"name": "x"}, preRunningDeadlineSeconds=60))
    world.send(ev.NodesSeen(world.views))
    world.pending.pop()
    world.settle()
    world.tick()
    assert "not ready: w, x" in world.state.verdict.message


def test_the_pre_running_deadline_is_no_longer_there_once_the_job_runs():
    world = World(job({"name": "w"}, preRunningDeadlineSeconds=60)).boot()
    world.send(ev.Tick(), after=100)
    assert world.state.phase is Phase.RUNNING
    assert world.state.wake is None


def test_losing_a_node_touches_only_the_units_on_it():
    world = World(job({"name": "w", "replicas": 2}), views=nodes(3, cpus=1)).boot()
    victim = world.state.units["w/0"].node
    spare = next(v.id for v in world.views if v.id not in {u.node for u in world.state.units.values()})
    seen = len(world.all_actions)
    world.lose_node(victim)
    world.settle()
    assert world.state.units["w/0"].node == spare
    assert world.state.units["w/0"].token == 2
    assert [a.host.index for a in world.of(act.SpawnHost, seen)] == [0]
    (start,) = world.of(act.StartRanks, seen)
    assert start.ranks[0].restart_reason == "NodeLost"
    assert world.state.ranks["w", 1].incarnation == 1
    assert world.state.restarts == Map({"Node": 1, "Process": 1})
    assert world.state.phase is Phase.RUNNING
    assert [n.reason for n in world.notes() if n.reason in (reasons.NODE_LOST, reasons.UNIT_RESCHEDULED)] == [
        reasons.NODE_LOST,
        reasons.UNIT_RESCHEDULED,
    ]


def test_a_world_that_loses_a_node_restarts_whole_and_its_store_moves_along():
    made = job({"name": "t", "type": "Elastic", "replicas": 2})
    world = World(made, views=nodes(3, cpus=1)).boot()
    victim = world.state.units["t/0"].node
    world.lose_node(victim)
    world.settle()
    assert world.state.phase is Phase.RUNNING
    assert world.state.restarts == Map({"Node": 1, "Role": 1})
    assert {h.node for h in world.state.hosts.values()}.isdisjoint({victim})
    assert world.state.roles["t"].generation == 2


def test_units_without_room_wait_in_recovering_with_the_numbers_and_then_the_job_fails():
    world = World(job({"name": "w", "replicas": 2}), views=nodes(2, cpus=1)).boot()
    world.lose_node("n1")
    world.settle()
    assert world.state.phase is Phase.RECOVERING
    assert world.notes(reasons.NO_ROOM)[-1].message == world.state.search.no_room_reason
    while world.state.verdict is None:
        world.tick()
    assert world.now == world.start + world.spec.fault_tolerance.node.pending_timeout_seconds == world.start + 300
    assert world.state.verdict.reason == reasons.NO_ROOM_FOR_LOST_UNITS


def test_each_lost_unit_may_look_for_a_node_as_long_as_the_first():
    world = World(job({"name": "w", "replicas": 3}), views=nodes(3, cpus=1)).boot()
    begun = world.start
    world.lose_node("n1")
    world.settle()
    world.now += 200
    world.lose_node("n2")
    world.settle()
    first, second = (at for _, at in sorted(world.state.search.until, key=lambda each: each[1]))
    assert (first, second) == (begun + 300, begun + 500)
    assert world.state.search.deadline == begun + 300
    world.add_node(nodes(4, cpus=1)[3])  # for one of them, and both are placed together as long as both may look
    world.settle()
    assert len(world.state.search.until) == 2
    while world.now < first:
        assert world.state.wake is not None
        world.tick()
    world.settle()
    assert (world.now, world.state.verdict) == (first, None), "the first one is placed alone at the end of its search"
    world.send(ev.NodesSeen(world.seen()))
    assert world.state.search.until == (("w/2", second),)
    world.tick()
    assert world.now == second
    assert world.state.verdict.message.startswith("1 unit of lost nodes found no room in time")


def test_a_restart_is_not_overdue_while_its_units_look_for_room():
    patient = {"node": {"pendingTimeoutSeconds": 5000}}
    world = World(job({"name": "w", "replicas": 2}, faultTolerance=patient), views=nodes(2, cpus=1)).boot()
    world.lose_node("n1")
    world.settle()
    world.tick()
    assert world.now == world.start + limits.RESTART_TIME_LIMIT_S
    assert world.state.verdict is None
    world.add_node(nodes(4, cpus=1)[3])
    world.settle()
    assert world.state.phase is Phase.RUNNING


def test_a_moved_unit_that_is_refused_is_tried_again_alone():
    world = World(job({"name": "w", "replicas": 2}), views=nodes(3, cpus=1)).boot()
    victim = world.state.units["w/0"].node
    world.lose_node(victim)
    world.deliver()
    world.pending.clear()
    world.send(ev.UnitRefused("w/0", 2, "taken by another job"))
    assert world.state.units["w/0"].phase is UnitPhase.LOST
    assert world.state.units["w/1"].phase is UnitPhase.HELD
    world.tick()
    world.settle()
    assert world.state.phase is Phase.RUNNING


def test_events_about_units_nobody_knows_or_that_are_held_already_change_nothing():
    world = World(job({"name": "w"})).boot()
    before = world.state
    for event in (
        ev.UnitReserved("x/0", 1, "n0"),
        ev.UnitReserved("w/0", 7, "n0"),
        ev.UnitReserved("w/0", 1, "n0"),
        ev.UnitRefused("x/0", 1, ""),
        ev.UnitRefused("w/0", 1, ""),
    ):
        assert world.send(event) == ()
    assert world.state is before


def test_a_lost_node_leaves_other_roles_and_ended_ranks_alone():
    made = job({"name": "a", "replicas": 2}, {"name": "b"})
    world = World(made, views=nodes(4, cpus=1)).boot()
    world.end("a", 0)
    world.settle()
    world.lose_node(world.state.units["a/0"].node)
    world.settle()
    assert world.state.restarts == Map()
    assert world.state.ranks["a", 0].phase.value == "Succeeded"


def test_units_of_ended_ranks_need_no_room_until_somebody_restarts_them():
    made = job({"name": "a", "driver": False}, {"name": "b"})
    world = World(made, views=nodes(2, cpus=1)).boot()
    world.end("a", 0)
    world.settle()
    world.lose_node(world.state.units["a/0"].node)
    world.settle()
    assert world.state.phase is Phase.RUNNING
    assert world.state.wake is None
    world.send(ev.Commanded("c", "restart", "a"))
    assert world.state.phase is Phase.RECOVERING
    while world.state.verdict is None:
        world.tick()
    assert world.state.verdict.reason == reasons.NO_ROOM_FOR_LOST_UNITS


def test_the_unit_of_a_role_that_has_not_started_moves_without_a_process():
    made = job({"name": "a", "driver": False}, {"name": "b", "dependsOn": [{"role": "a", "condition": "Complete"}]})
    world = World(made, views=nodes(3, cpus=1)).boot()
    world.lose_node(world.state.units["b/0"].node)
    world.settle()
    assert not [a for a in world.of(act.SpawnHost) if a.host.role == "b"]
    world.end("a", 0)
    world.settle()
    assert world.state.roles["b"].ready_count == 1


def test_an_old_reservation_of_a_moved_unit_is_given_back_and_does_not_count():
    world = World(job({"name": "w", "replicas": 2}), views=nodes(3, cpus=1)).boot()
    world.lose_node(world.state.units["w/0"].node)
    world.deliver()
    assert world.state.units["w/0"].phase is UnitPhase.RESERVING
    assert world.send(ev.UnitReserved("w/0", 1, "n0")) == (act.Unreserve("w/0", 1),)
    assert world.state.units["w/0"].phase is UnitPhase.RESERVING
    world.settle()
    assert world.state.phase is Phase.RUNNING


def test_room_that_was_found_ends_the_wait_for_nodes_that_join():
    made = job({"name": "w", "replicas": 4}, nodeGroups=[{"name": "g", "replicas": 2, "cpu": "2"}])
    world = World(made, views=World(made).views[:1])
    world.send(ev.NodesSeen(world.views))
    assert world.state.search.final_at is not None
    world.send(ev.NodesSeen(World(made).views))
    assert (world.state.search.final_at, world.state.search.no_room_reason) == (None, "")
    world.send(ev.UnitRefused("w/0", 1, "no"), after=limits.NODES_S - 0.1)
    world.send(ev.Tick(), after=0.2)
    assert world.state.wake > world.now


def test_answers_to_reservations_change_nothing_once_the_job_is_ending():
    world = World(job({"name": "w", "replicas": 2}))
    world.send(ev.NodesSeen(world.views))
    world.send(ev.Commanded("s", "stop"))
    before = world.state
    assert world.send(ev.UnitRefused("w/0", 1, "no")) == ()
    assert world.send(ev.UnitReserved("w/1", 1, "n0")) == ()
    assert world.state is before


def test_a_quota_is_looked_for_with_the_units_and_never_reserved():
    driver = {"name": "d", "entrypoint": {"module": "main.py"}, "reserve": "Quota", "resources": {"cpu": "3"}}
    world = World(job(driver, {"name": "w"}), views=small(2))
    busy = tuple(replace(view, free=(("CPU", 10_000),)) for view in world.views)
    world.send(ev.NodesSeen((busy[0], world.views[1])))
    assert world.state.phase is Phase.PENDING
    assert "the quota of d" in world.state.search.no_room_reason
    world.send(ev.NodesSeen(world.views))
    assert sorted(reserve.unit for reserve in world.of(act.Reserve)) == ["d/0", "w/0"]
