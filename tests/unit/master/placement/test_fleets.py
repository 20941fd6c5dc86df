"""Actor roles with bounds: ranks come and go while the others run on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from elastic_kit import boot, fleet, join, lose, ready, wait_for
from master_kit import KILLED, World, error, job, nodes

from dljob.master.persistence.codec import decode_state, encode_state
from dljob.master.placement import giving, resizing
from dljob.master.placement.reissue import reissue
from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state import limits
from dljob.master.state.evolve import evolve
from dljob.master.state.faults import Departure
from dljob.master.state.state import Phase, RankPhase
from dljob.master.state.transaction import StateTransaction
from dljob.master.status import peers, status
from dljob.master.transition import next_wake
from dljob.telemetry import reasons

SMALL = {"resources": {"cpu": "1"}}


def scale(world, count):
    world.send(ev.Commanded(f"c{world.now}{count}", "scale", "e", "somebody", count))
    while world.state.sizes["e"].move_at is not None:
        world.tick()
    world.settle()


def incarnations(world):
    return {rank: own.incarnation for (role, rank), own in world.state.ranks.items() if role == "e"}


def test_ranks_come_and_go_and_nobody_else_restarts():
    world = fleet()
    scale(world, 2)
    assert (ready(world), world.state.ranks["e", 2].phase) == ({0, 1}, RankPhase.ABSENT)
    assert world.state.units["e/2"].node == ""
    began = world.now
    scale(world, 4)
    assert (ready(world), world.now - began) == ({0, 1, 2, 3}, 0.0)
    assert incarnations(world) == {0: 1, 1: 1, 2: 2, 3: 1}, "a number that was gone goes on counting"
    assert dict(world.state.restarts) == {}
    assert world.state.phase is Phase.RUNNING
    assert world.of(act.SaveCopies) == []
    assert world.notes(reasons.UNIT_RESCHEDULED) == [], "no unit has lost its node"
    left = world.state.units["e/3"].node
    world.lose_node(left)
    world.settle()
    moved = [(note.target, note.message) for note in world.notes(reasons.UNIT_RESCHEDULED)]
    assert moved == [("e/3", f"held on node {world.state.units['e/3'].node}")]
    assert world.state.units["e/3"].node not in ("", left)


def stops(world):
    return [order for order in world.of(act.StopRanks) if order.leaves]


def leaving(world, count=2):
    """Order a smaller role whose leavers are still at work."""
    world.hold = True
    world.send(ev.Commanded("c", "scale", "e", "somebody", count))
    world.tick()
    return world.state.sizes["e"]


def test_a_rank_that_goes_finishes_its_calls_before_it_is_killed():
    world = fleet()
    killed = len(world.of(act.KillHost))
    own = leaving(world)
    (stop,) = stops(world)
    assert (stop.host.index, stop.incarnations, stop.grace_s) == (2, (1,), limits.FINISH_S)
    assert (own.size, own.staying, own.leaving) == (3, 2, (2,))
    assert len(world.of(act.KillHost)) == killed
    assert world.state.units["e/2"].node, "its machine is not given back yet"
    (note,) = world.notes(reasons.RANKS_LEAVING)
    assert note.message.startswith("e/2 of 3 ranks ends once its calls are finished, within 30 s")
    (one, other, gone) = peers(world.state, "e")
    assert (one.ready, other.ready, gone.ready, gone.gone_reason) == (
        True,
        True,
        False,
        "it is gone: e has 2 ranks now",
    )
    world.settle()
    assert (world.state.sizes["e"].size, world.state.sizes["e"].leaving) == (2, ())
    assert len(world.of(act.KillHost)) == killed + 1
    assert dict(world.state.restarts) == {}


def test_a_rank_that_does_not_end_in_time_is_killed():
    world = fleet()
    leaving(world)
    world.pending.clear()
    assert next_wake(world.state) == world.state.sizes["e"].leave_by
    world.tick()
    assert world.state.sizes["e"].size == 2
    said = world.notes(reasons.RESIZED)[-1].message
    assert said == "2 ranks instead of 3: its wanted size is 2; killed before they had finished: e/2; gone: e/2"


def test_a_new_master_repeats_the_order_to_leave():
    world = fleet()
    leaving(world)
    (again,) = [order for order in reissue(world.state, world.now) if isinstance(order, act.StopRanks)]
    assert again == stops(world)[0]


def test_the_death_of_a_rank_that_leaves_is_no_failure():
    world = fleet()
    leaving(world)
    world.pending.clear()
    host = world.state.job.roles["e"].host_of(2)
    world.send(ev.HostLost(host, world.state.hosts[host].incarnation, KILLED))
    assert world.state.sizes["e"].size == 2
    assert (world.state.faults, dict(world.state.restarts)) == ((), {})


def test_a_restart_of_the_job_does_not_wait_for_ranks_that_leave():
    world = fleet()
    leaving(world)
    world.send(ev.Commanded("again", "restart", "job", "somebody"))
    assert (world.state.sizes["e"].size, world.state.sizes["e"].leaving) == (2, ())
    world.settle()
    assert ready(world) == {0, 1}


def test_a_loss_waits_for_ranks_that_leave():
    world = fleet(extra=nodes(20, cpus=1)[19:], role={"resources": {"cpu": "1"}})
    leaving(world)
    waits = [event for event in world.pending if isinstance(event, ev.RankEnded)]
    world.pending.clear()
    node = world.state.units["e/0"].node
    world.lose_node(node)
    world.settle()
    due = world.state.sizes["e"].shrink_at
    assert due is not None
    while world.now < due:
        world.tick()
    assert world.state.sizes["e"].leaving == (2,)
    world.pending.extend(waits)
    world.settle()
    assert world.state.sizes["e"].size == 2


def test_nodes_that_are_taken_away_one_by_one_do_not_put_off_what_a_lost_one_asks_for():
    world = fleet(4, extra=nodes(20, cpus=1)[19:], role={**SMALL, "replicas": 4})
    world.hold = True
    announce(world, "e/3")
    until_saved(world)
    assert world.state.sizes["e"].leaving == (3,)
    waits = [event for event in world.pending if isinstance(event, ev.RankEnded)]
    world.pending.clear()
    world.lose_node(world.state.units["e/0"].node)
    world.settle()
    announce(world, "e/2")
    until_saved(world)
    while world.now < world.state.sizes["e"].shrink_at < world.state.sizes["e"].leave_by:
        world.tick()
    own = world.state.sizes["e"]
    assert (own.leaving, own.shrink_at) == ((3,), own.leave_by)
    world.send(waits[0])
    own = world.state.sizes["e"]
    assert (own.size, own.left_groups, own.leaving) == (2, (0,), (2,)), (
        "it has shrunk before those of the next node leave"
    )


def test_a_fleet_goes_on_with_fewer_ranks_before_its_job_fails_for_want_of_room():
    policy = {"elastic": {"shrinkAfterSeconds": 299}, "node": {"pendingTimeoutSeconds": 300}}
    world = fleet(extra=nodes(20, cpus=1)[19:], role=SMALL, faultTolerance=policy)
    lose(world, "e/0")
    # As after a chain of other changes: its timer begins anew all the time.
    sizes = world.state.sizes
    world.state = evolve(world.state, sizes=sizes.set("e", evolve(sizes["e"], shrink_at=world.now + 1e6)))
    while world.state.sizes["e"].size == 3:
        world.tick()
    assert (world.state.phase, ready(world), world.state.search.deadline) == (Phase.RUNNING, {1, 2}, None)


def test_each_rank_is_told_how_many_there_are_at_its_start():
    world = fleet()
    scale(world, 4)
    assert world.of(act.StartRanks)[-1].world_size == 4


def test_more_than_there_is_room_for_stays_wanted_until_a_node_joins():
    world = fleet(extra=nodes(20, cpus=1)[19:])
    scale(world, 4)
    own = world.state.sizes["e"]
    assert (own.size, own.want) == (3, 4)
    (note,) = [note for note in world.notes(reasons.NO_ROOM) if note.target == "e"]
    assert note.message == "4 ranks are wanted, and there is room for 3; others start as nodes join"
    assert status(world.state, world.now, {})["message"] == "e has 3 of 4 wanted ranks: no room for more"
    join(world)
    while world.state.sizes["e"].size < 4:
        world.tick()
        world.settle()
    assert ready(world) == {0, 1, 2, 3}
    assert incarnations(world) == {0: 1, 1: 1, 2: 1, 3: 1}


def test_a_lost_node_without_a_replacement_costs_one_rank_and_no_restart_of_others():
    world = fleet(extra=nodes(20, cpus=1)[19:], role={"resources": {"cpu": "1"}})
    lost = world.state.units["e/0"].node
    lose(world, "e/0")
    assert lost
    said = wait_for(world, reasons.RESIZED)
    world.settle()
    assert said.message.startswith("2 ranks instead of 3")
    assert said.message.endswith("; gone: e/0")
    assert ready(world) == {1, 2}
    assert incarnations(world) == {0: 1, 1: 1, 2: 1}, "nobody else is restarted"
    assert (world.state.sizes["e"].left_groups, world.state.job.roles["e"].ranks) == ((0,), [1, 2])
    assert not world.state.incidents
    assert world.state.phase is Phase.RUNNING
    assert all(fault.recovered_at is not None for fault in world.state.faults)


def test_a_rank_that_goes_while_it_restarts_leaves_its_restart():
    world = fleet()
    world.hold = True
    world.end("e", 2, error())
    world.deliver()
    assert world.state.incidents
    world.send(ev.Commanded("c", "scale", "e", "somebody", 2))
    while world.state.sizes["e"].size != 2:
        world.settle()
        world.tick()
    assert not world.state.incidents


def test_ranks_that_a_fleet_dropped_stay_dropped_when_their_restart_escalates():
    one = {"resources": {"cpu": "1"}}
    role = {"name": "e", "replicas": 8, "replicasPerGroup": 2, "minReplicas": 2, "maxReplicas": 8, **one}
    world = World(job(role, {"name": "d", **one}), views=nodes(3, cpus=4)).boot()
    gone = world.state.units["e/0"].node
    assert world.state.units["e/1"].node == gone
    world.lose_node(gone)
    world.settle()
    world.tick()
    assert world.state.job.roles["e"].ranks == [0, 1, 4, 5, 6, 7], "there is room for one of the two groups"
    # The hosts of the group that moved never answer: their image cannot be pulled, say.
    while world.state.verdict is None:
        while world.pending:
            event = world.pending.pop(0)
            if not isinstance(event, ev.HostReady) or event.host.role != "e":
                world.send(event)
        world.tick()
        dropped = {world.state.ranks["e", rank].phase for rank in (2, 3)}
        assert dropped == {RankPhase.ABSENT}
    assert [note.level for note in world.notes(reasons.ESCALATED)] == ["RoleGroup", "Role", "Job"]
    assert world.state.verdict.reason == reasons.RESTART_TIMED_OUT


def test_a_growth_does_not_wait_after_the_loss_of_one_that_served():
    world = fleet(extra=nodes(20, cpus=1)[18:], role=SMALL)
    for _ in range(3):
        scale(world, 4)
        lose(world, "e/3")
        wait_for(world, reasons.RESIZED)
        assert (world.state.sizes["e"].size, world.state.sizes["e"].vain) == (3, 0)
        began = world.now
        join(world)
        world.tick()
        world.settle()
        assert (ready(world), world.now) == ({0, 1, 2, 3}, began), "nodes that come and go disturb nobody"


def refuse(world):
    """Let nodes refuse what is placed on them, as others were faster, until the role has given it up."""
    placed = [event for event in world.pending if isinstance(event, ev.UnitReserved)]
    full = {event.node for event in placed}
    for event in placed:
        world.pending.remove(event)
        world.send(ev.UnitRefused(event.unit, event.token, "another was faster"))
    world.send(ev.NodesSeen(tuple(replace(node, free=()) if node.id in full else node for node in world.seen())))
    wait_for(world, reasons.RESIZED)


def grow(world, count):
    """Order a larger role; the answers of its nodes have not arrived yet."""
    world.send(ev.Commanded(f"c{world.now}{count}", "scale", "e", "somebody", count))
    world.tick()
    assert world.state.sizes["e"].size == count


def test_a_growth_that_nodes_refuse_makes_the_next_one_wait():
    world = fleet(extra=nodes(20, cpus=1)[18:], role=SMALL)
    grow(world, 4)
    refuse(world)
    own = world.state.sizes["e"]
    assert (own.size, own.vain, own.grow_at) == (3, 1, world.now + 120.0)
    world.send(ev.NodesSeen(world.seen()))
    assert (world.state.sizes["e"].target, world.state.sizes["e"].move_at) == (4, own.grow_at)
    # Another change of its size does not put the growth off.
    world.now += 60.0
    scale(world, 2)
    world.send(ev.NodesSeen(world.seen()))
    world.send(ev.Commanded("four", "scale", "e", "somebody", 4))
    assert (world.state.sizes["e"].target, world.state.sizes["e"].move_at) == (4, own.grow_at)
    while world.state.sizes["e"].size < 4:
        world.tick()
    assert world.now == own.grow_at
    world.settle()
    own = world.state.sizes["e"]
    assert (own.coming, own.vain, own.grow_at) == ((), 0, None), "it found room: the next one does not wait"


def test_a_growth_that_is_held_in_part_is_not_in_vain_until_the_rest_is_given_up():
    world = fleet(extra=nodes(20, cpus=1)[17:], role={**SMALL, "maxReplicas": 5})
    grow(world, 5)
    assert world.state.sizes["e"].coming == (3, 4)
    (held,) = [event for event in world.pending if isinstance(event, ev.UnitReserved) and event.unit == "e/3"]
    world.pending.remove(held)
    world.send(held)
    assert world.state.sizes["e"].coming == (4,)
    refuse(world)
    own = world.state.sizes["e"]
    assert (own.size, own.coming, own.vain) == (4, (), 1)


def test_sizes_out_of_bounds_and_of_other_roles_are_refused():
    world = fleet()
    for role, count in (("e", 5), ("d", 2)):
        world.send(ev.Commanded(f"c{role}", "scale", role, "somebody", count))
    assert [note.message for note in world.notes(reasons.COMMAND_REFUSED)] == [
        "scale refused: e has 1 to 4 ranks, not 5",
        "scale refused: d has a fixed number of ranks; roles with minReplicas or maxReplicas: e",
    ]


def test_the_lowest_number_that_is_gone_is_the_first_given_again():
    world = fleet(extra=nodes(20, cpus=1)[19:], role={"resources": {"cpu": "1"}})
    lose(world, "e/0")
    wait_for(world, reasons.RESIZED)
    world.settle()
    join(world, 2)
    while world.state.sizes["e"].size < 3:
        world.tick()
        world.settle()
    assert ready(world) == {0, 1, 2}
    assert incarnations(world) == {0: 2, 1: 1, 2: 1}
    assert world.state.sizes["e"].left_groups == ()


def goes(world, count=2, calls=()):
    """Return the ranks that leave for a role of so many ranks."""
    world.hold = True
    world.send(ev.Commanded("c", "scale", "e", "somebody", count, calls))
    world.tick()
    return world.state.sizes["e"].leaving


def test_the_rank_with_the_fewest_calls_goes_and_of_equal_ones_the_highest():
    assert goes(fleet()) == (2,)
    assert goes(fleet(), calls=((0, 3), (1, 0), (2, 1))) == (1,)
    assert goes(fleet(), calls=((0, 1), (1, 1), (2, 1))) == (2,)
    assert goes(fleet(), 1, calls=((0, 1), (1, 9), (2, 1))) == (0, 2)


def test_a_rank_that_is_not_ready_goes_before_one_that_works():
    world = fleet()
    world.hold = True
    world.end("e", 0, error())
    world.deliver()
    world.send(ev.Commanded("c", "scale", "e", "somebody", 2, ((0, 9),)))
    world.tick()
    world.settle()
    assert (ready(world), world.state.sizes["e"].left_groups) == ({1, 2}, (0,))
    assert [peer.rank for peer in peers(world.state, "e")] == [1, 2]


def test_a_rank_on_a_node_that_leaves_goes_first():
    world = fleet(extra=nodes(20, cpus=1)[19:], role={"resources": {"cpu": "1"}})
    world.hold = True
    node = world.state.units["e/1"].node
    world.state = evolve(world.state, departures=world.state.departures.set(node, Departure("spot", 0, 1e9, 1e9)))
    assert goes(world) == (1,)


def test_whole_groups_go_with_the_fewest_calls_of_all_their_ranks():
    role = {"replicas": 4, "replicasPerGroup": 2, "minReplicas": 2, "maxReplicas": 4, "resources": {"cpu": "0.5"}}
    world = fleet(role=role)
    assert goes(world, 2, calls=((0, 1), (1, 1), (2, 5))) == (0, 1)
    world.settle()
    assert (ready(world), world.state.sizes["e"].left_groups) == ({2, 3}, (0,))
    assert "e/0" not in world.state.job.plan.units
    assert list(world.state.job.plan.units) == ["d/0", "e/1"]
    scale(world, 4)
    assert ready(world) == {0, 1, 2, 3}


def test_a_role_with_gaps_survives_a_new_master_and_a_restart_of_the_job():
    world = fleet()
    goes(world, calls=((0, 0), (1, 4), (2, 4)))
    world.settle()
    world.hold = False
    again = decode_state(encode_state(world.state), world.state.job.sized({"e": 3}))
    assert again == world.state
    assert again.job.roles["e"].ranks == [1, 2]
    world.send(ev.Commanded("again", "restart", "e", "somebody"))
    world.settle()
    assert (ready(world), incarnations(world)) == ({1, 2}, {0: 1, 1: 2, 2: 2})
    world.send(ev.Commanded("no", "restart", "e/0", "somebody"))
    assert world.notes(reasons.COMMAND_REFUSED)
    assert world.of(act.StartRanks)[-1].world_size == 2


def announce(world, unit, within=60.0):
    """Ray drains the node of a unit, which is gone in a minute."""
    node = world.state.units[unit].node
    world.views = tuple(replace(view, leaving=world.now + within) if view.id == node else view for view in world.views)
    world.send(ev.NodesSeen(world.seen()))
    return node


def until_saved(world):
    """Answer the flush of copies that a departure begins with."""
    while not all(own.saved for own in world.state.departures.values()):
        world.deliver()


def test_ranks_of_a_node_that_is_taken_away_finish_and_come_back_elsewhere():
    world = fleet(extra=nodes(20, cpus=1)[18:], role=SMALL)
    world.hold = True
    node = announce(world, "e/0")
    until_saved(world)
    own = world.state.sizes["e"]
    assert (own.leaving, [stop.host.index for stop in stops(world)]) == ((0,), [0])
    assert own.leave_by == world.state.departures[node].gone_at - limits.PARTING_S or own.leave_by < world.now + 60
    begun = len(stops(world))
    world.views = (*world.views, replace(world.views[-1], id="late"))
    world.send(ev.NodesSeen(world.seen()))
    assert len(stops(world)) == begun, "they are at it already"
    world.hold = False
    world.settle()
    while world.state.sizes["e"].size < 3:
        world.tick()
        world.settle()
    assert (ready(world), incarnations(world)) == ({0, 1, 2}, {0: 2, 1: 1, 2: 1})
    assert world.state.units["e/0"].node != node
    assert (world.state.sizes["e"].want, dict(world.state.restarts)) == (3, {})


def test_ranks_of_several_nodes_that_are_taken_away_leave_in_turn_where_time_allows():
    world = fleet(extra=nodes(20, cpus=1)[19:], role=SMALL)
    world.hold = True
    for unit in ("e/0", "e/1"):
        announce(world, unit, 120.0)
    until_saved(world)
    assert [stop.host.index for stop in stops(world)] == [0], "the other one serves until this one has left"
    world.hold = False
    world.settle()
    assert [stop.host.index for stop in stops(world)] == [0, 1]
    assert ready(world) == {2}
    world = fleet(extra=nodes(20, cpus=1)[19:], role=SMALL)
    world.hold = True
    for unit in ("e/0", "e/1"):
        announce(world, unit, 60.0)
    until_saved(world)
    world.send(ev.NodesSeen(tuple(replace(view, free=()) for view in world.seen())))
    (note,) = [note for note in world.notes(reasons.NODE_LEAVING) if "do not wait" in note.message]
    assert note.message == "its ranks do not wait for others of e that leave: it may be gone before"
    world.hold = False
    world.settle()
    assert 2 in ready(world)


def test_a_fleet_at_its_minimum_moves_the_ranks_of_a_node_that_is_taken_away():
    world = fleet(extra=nodes(20, cpus=1)[18:], role={**SMALL, "minReplicas": 3})
    announce(world, "e/0")
    world.settle()
    assert stops(world) == []
    assert (ready(world), incarnations(world)) == ({0, 1, 2}, {0: 2, 1: 1, 2: 1})


def test_a_fleet_without_other_room_goes_on_without_the_ranks_of_a_node_that_is_taken_away():
    world = fleet(extra=nodes(20, cpus=1)[19:], role=SMALL)
    announce(world, "e/1")
    world.settle()
    assert (ready(world), world.state.sizes["e"].left_groups, world.state.sizes["e"].want) == ({0, 2}, (1,), 3)
    assert world.notes(reasons.RESIZED)[-1].message == "2 ranks instead of 3: their node is taken away; gone: e/1"
    assert (world.state.faults, dict(world.state.restarts)) == ((), {})


def searches(monkeypatch, world, *events):
    """Count the searches for room among all units of the job that these events take."""
    tried, placed = [], resizing.assign_resized
    with monkeypatch.context() as patch:
        patch.setattr(
            resizing, "assign_resized", lambda d, sizes, **own: tried.append(sizes) or placed(d, sizes, **own)
        )
        for event in events:
            world.send(event)
    return len(tried)


def test_a_fleet_without_machines_does_not_search_all_its_units_at_each_change_of_a_node(monkeypatch):
    world = fleet(13, role={"replicas": 12, "maxReplicas": 512}, extra=(), group={"replicas": 520})
    world.send(ev.Commanded("c", "scale", "e", "somebody", 512))
    full = [evolve(view, free=()) for view in world.seen()]
    seen = [ev.NodesSeen((*full[:-1], evolve(full[-1], leaving=leaving))) for leaving in (None, 9e9, None)]
    assert searches(monkeypatch, world, *seen) == 0
    # A machine joins: one search finds room for a rank, one none for two more; they are repeated when it grows.
    joined = ev.NodesSeen((*full, nodes(40, cpus=1)[30]))
    assert 0 < searches(monkeypatch, world, joined) <= 6
    assert world.state.sizes["e"].target == 13 or world.state.sizes["e"].size == 13


def test_a_rank_that_becomes_ready_while_its_group_leaves_is_asked_to_leave_too():
    world = fleet()
    world.hold = True
    world.end("e", 1, error())
    world.send(ev.Commanded("c", "scale", "e", "somebody", 1))
    world.tick()
    assert world.state.sizes["e"].leaving == (1, 2)
    world.state = evolve(
        world.state,
        ranks=world.state.ranks.set(("e", 1), evolve(world.state.ranks["e", 1], phase=RankPhase.STARTING)),
        roles=world.state.roles.set("e", evolve(world.state.roles["e"], waiting_count=0, starting_count=1)),
    )
    before = len(stops(world))
    world.send(ev.RankReady("e", 1, world.state.ranks["e", 1].incarnation, 7))
    assert world.state.ranks["e", 1].phase is RankPhase.STOPPING
    (stop,) = stops(world)[before:]
    assert (stop.host.index, stop.ranks, stop.leaves) == (1, (1,), True)


def beside_a_driver(**role):
    """Return a running world of a fleet and a driver whose ranks fill a node each; there is no other node."""
    driver = {"name": "d", "resources": {"cpu": "1"}}
    return boot(4, {"type": "Actor", "driver": False, **SMALL, **role}, driver, extra=())


def look(world):
    """Advance time, and look at the nodes as PrimeMaster does each second."""
    world.tick()
    world.settle()
    world.send(ev.NodesSeen(world.seen()))
    world.settle()


def test_a_fleet_above_its_minimum_gives_room_to_a_driver_that_lost_its_node():
    world = beside_a_driver()
    world.hold = True
    lose(world, "d/0")
    while not world.state.sizes["e"].leaving:
        world.tick()
    own = world.state.sizes["e"]
    assert (own.leaving, own.size, own.want) == ((2,), 3, 3), "no more than the driver needs, after its calls"
    assert world.notes(reasons.RANKS_LEAVING)[-1].message.endswith(": d/0 lost its node and gets their room")
    left = world.state.units["e/2"].node
    world.hold = False
    while world.state.phase is not Phase.RUNNING:
        look(world)
    assert world.state.units["d/0"].node == left
    assert (ready(world), ready(world, "d")) == ({0, 1}, {0})
    assert incarnations(world) == {0: 1, 1: 1, 2: 1}
    assert "gets" not in world.notes(reasons.RESIZED)[-1].message
    assert "2 ranks instead of 3: units of other roles get their room" in world.notes(reasons.RESIZED)[-1].message
    assert (world.state.sizes["e"].shrink_at, world.state.sizes["e"].want) == (None, 3)
    join(world)
    while world.state.sizes["e"].size < 3:
        world.tick()
        world.settle()
    assert ready(world) == {0, 1, 2}, "it grows again where there is room for all"


def test_a_fleet_at_its_minimum_keeps_its_ranks():
    world = beside_a_driver(minReplicas=3)
    lose(world, "d/0")
    for _ in range(6):
        world.tick()
    assert world.state.sizes["e"].shrink_at is None
    assert ready(world) == {0, 1, 2}


def test_ranks_that_do_not_work_give_their_room_at_once():
    world = beside_a_driver()
    lose(world, "d/0")
    world.end("e", 2, error())
    world.deliver()  # and no answer to its restart
    while world.state.sizes["e"].size == 3:
        world.tick()
    assert world.notes(reasons.RESIZED)[-1].message.startswith("2 ranks instead of 3: d/0 lost its node")


@pytest.mark.parametrize(
    ("role", "lost", "lacking", "why"),
    [
        ({}, "e/0", (), "the roles without room can do with fewer ranks"),
        ({"minReplicas": 3}, "d/0", (), "no fleet has ranks to spare"),
        ({}, "d/0", ("e",), "no fleet has ranks to spare"),
        ({}, "d/0", None, "the minima of e leave no room either: "),
    ],
)
def test_nobody_gives_room_in_vain_and_the_reason_is_told(role, lost, lacking, why):
    world = beside_a_driver(**role)
    lose(world, lost)
    state = evolve(world.state, nodes=()) if lacking is None else world.state
    made = giving.choose_givers(StateTransaction(state, world.now), lacking or ())
    assert made.sizes == {}
    assert made.reason.startswith(why)


def test_room_that_was_given_is_waited_for_before_more_is_given():
    world = beside_a_driver()
    lose(world, "d/0")
    own = world.state.sizes["e"]
    for ago, sizes in ((1.0, {}), (limits.HOST_STOP_S, {"e": 2})):
        state = evolve(world.state, sizes=world.state.sizes.set("e", evolve(own, resized=world.now - ago)))
        assert giving.choose_givers(StateTransaction(state, world.now), ()).sizes == sizes


def test_a_job_does_not_fail_for_want_of_room_while_a_fleet_gives_it():
    policy = {"elastic": {"shrinkAfterSeconds": 299}, "node": {"pendingTimeoutSeconds": 300}}
    driver = {"name": "d", "resources": {"cpu": "1"}}
    world = boot(4, {"type": "Actor", "driver": False, **SMALL}, driver, faultTolerance=policy)
    lose(world, "d/0")
    sizes = world.state.sizes
    world.state = evolve(world.state, sizes=sizes.set("e", evolve(sizes["e"], shrink_at=world.now + 1e6)))
    while not ready(world, "d"):
        look(world)
        assert world.state.phase is not Phase.FAILED
    assert ready(world) == {0, 1}


def test_a_smaller_role_waits_for_a_rank_that_a_restart_drains():
    server = {"entrypoint": {"module": "serve"}, "drain": {"timeoutSeconds": 60}}
    world = fleet(role={**SMALL, **server})
    world.hold = True
    killed = len(world.of(act.KillHost))
    world.send(ev.Commanded("again", "restart", "e", "somebody"))
    assert {own.phase for (role, _), own in world.state.ranks.items() if role == "e"} == {RankPhase.STOPPING}
    own = leaving(world)
    assert (own.size, own.leaving, stops(world)) == (3, (2,), []), "it is asked already"
    assert len(world.of(act.KillHost)) == killed
    assert world.state.units["e/2"].node
    world.settle()
    assert (world.state.sizes["e"].size, world.state.sizes["e"].leaving) == (2, ())


def test_a_rank_that_gives_its_room_to_a_lost_unit_finishes_its_calls_first():
    world_role = {"name": "b", "type": "Elastic", "replicas": 1, "minReplicas": 1, "maxReplicas": 2, **SMALL}
    driver = {"name": "d", "resources": {"cpu": "0.01"}}
    world = boot(4, {"type": "Actor", "driver": False, **SMALL}, world_role, driver, extra=nodes(20, cpus=1)[19:])
    lose(world, "e/0")
    lose(world, "b/0")
    world.hold = True
    killed = len(world.of(act.KillHost))
    for _ in range(50):
        if world.state.sizes["e"].leaving:
            break
        world.tick()
    (gives,) = {1, 2}.intersection(world.state.sizes["e"].leaving)
    assert [order.ranks for order in stops(world)] == [(gives,)]
    assert (world.state.sizes["e"].size, len(world.of(act.KillHost))) == (3, killed)
    for _ in range(50):
        world.settle()
        if ready(world, "b"):
            break
        world.send(ev.NodesSeen(world.seen()))
        world.tick()
    assert (ready(world, "b"), ready(world)) == ({0}, {1, 2} - {gives})
