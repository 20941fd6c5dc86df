"""Elastic roles: a lost node without a replacement shrinks them, room lets them grow back, an order sets their size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from elastic_kit import ROOMY, boot, join, lose, ready, wait_for
from immutables import Map
from master_kit import World, job, nodes

from dljob.master import status
from dljob.master.ledger.rules import micros
from dljob.master.placement import elastic
from dljob.master.placement.reissue import reissue
from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state import ledger, limits
from dljob.master.state.sizing import Sizing
from dljob.master.state.state import Phase, RankPhase, UnitPhase
from dljob.master.state.transaction import StateTransaction
from dljob.master.transition import initial
from dljob.telemetry import reasons

SCRIPT = {"module": "train.py"}
GROW_S = 60
"""`faultTolerance.elastic.growAfterSeconds` left out."""


def test_after_a_lost_node_without_a_replacement_the_role_goes_on_with_fewer():
    world = boot()
    lose(world, "e/0")
    assert world.state.phase is Phase.RECOVERING
    assert world.state.sizes["e"].shrink_at == world.now + limits.SHRINK_BARE_S
    seen = len(world.all_actions)
    note = wait_for(world, reasons.RESIZED)
    assert note.target == "e"
    assert note.message.startswith("2 ranks instead of 3: ")
    assert world.state.phase is Phase.RUNNING
    assert ready(world) == {0, 1}
    starts = world.of(act.StartRanks, seen)
    assert {start.world_size for start in starts} == {2}
    assert sorted(one.rank for start in starts for one in start.ranks) == [0, 1]
    assert sorted(one.node_rank for start in starts for one in start.ranks) == [0, 1]
    assert world.state.ranks["e", 2].phase is RankPhase.ABSENT
    assert world.state.units["e/2"].phase is UnitPhase.ABSENT
    assert world.state.restarts == Map({"Node": 1, "Role": 1}), "it is the restart that the loss is"
    assert [fault.reason for fault in world.state.faults] == ["NodeLost"]
    assert world.state.faults[0].recovered_at is not None
    assert len(world.state.marks["e"]) == 1


def test_a_cluster_that_makes_nodes_has_more_time_and_a_timely_replacement_changes_no_size():
    world = boot(own_nodes=True)
    lose(world, "e/1")
    assert world.state.sizes["e"].shrink_at == world.now + limits.SHRINK_S
    world.now += limits.SHRINK_S - 1
    join(world)
    assert world.state.phase is Phase.RUNNING
    assert world.state.sizes["e"] == Sizing(3, 3)
    assert not world.notes(reasons.RESIZED)


def test_a_role_grows_again_once_there_is_room_and_copies_are_on_disk():
    world = boot(checkpoint={"path": "/c", "gracePeriodSeconds": 7})
    lose(world, "e/0")
    wait_for(world, reasons.RESIZED)
    shrunk = world.now
    lost = world.state.ranks["e", 2].incarnation
    join(world)
    own = world.state.sizes["e"]
    assert own.target == 3
    assert own.move_at == shrunk + GROW_S, "not twice within a minute"
    seen = len(world.all_actions)
    world.tick()
    assert world.of(act.SaveCopies, seen) == [act.SaveCopies("", 7.0)]
    assert world.state.phase is Phase.RUNNING, "it works on meanwhile"
    world.settle()
    assert world.notes(reasons.RESIZED)[-1].message == "3 ranks instead of 2: there is room for more"
    assert ready(world) == {0, 1, 2}
    assert {start.world_size for start in world.of(act.StartRanks, seen)} == {3}
    assert world.state.ranks["e", 2].incarnation > lost, "a later process of the rank that it once had"
    assert world.state.restarts["Role"] == 2
    assert len(world.state.marks["e"]) == 1, "growing uses up no budget"
    assert world.state.faults[-1].reason == "Resized"
    assert world.state.sizes["e"].want == 3


def test_the_patience_before_shrinking_and_growing_comes_from_the_spec():
    world = boot(faultTolerance={"elastic": {"shrinkAfterSeconds": 20, "growAfterSeconds": 7}})
    lose(world, "e/0")
    assert world.state.sizes["e"].shrink_at == world.now + 20
    wait_for(world, reasons.RESIZED)
    shrunk = world.now
    join(world)
    assert world.state.sizes["e"].move_at == shrunk + 7
    world.now += limits.SETTLE_S - 1
    join(world)
    assert world.state.sizes["e"].move_at == shrunk + 7, "what it could be given is the same"


def test_nodes_that_join_one_by_one_are_one_growth_and_the_last_one_needed_ends_the_wait():
    world = boot(4, {"replicas": 4, "maxReplicas": 4})
    for unit in ("e/0", "e/1", "e/2"):
        lose(world, unit)
    wait_for(world, reasons.RESIZED)
    assert world.state.sizes["e"].size == 1
    world.now += GROW_S
    for _ in range(2):
        world.now += limits.SETTLE_S - 1
        join(world)
        assert world.state.sizes["e"].move_at == world.now + limits.SETTLE_S
    join(world)
    assert world.state.sizes["e"].move_at == world.now
    assert wait_for(world, reasons.RESIZED).message == "4 ranks instead of 1: there is room for more"


def test_room_that_is_gone_again_changes_nothing():
    world = boot()
    lose(world, "e/0")
    wait_for(world, reasons.RESIZED)
    (node,) = join(world)
    assert world.state.sizes["e"].target == 3
    world.lose_node(node.id)
    world.settle()
    assert world.state.sizes["e"].target == 0
    assert world.state.sizes["e"].move_at is None
    join(world)
    world.hold = True
    world.tick()
    assert world.state.sizes["e"].save_by is not None
    world.pending.clear()
    world.lose_node(node.id)
    world.settle()
    assert world.state.sizes["e"].save_by is not None, "what is on its way comes to its end"
    world.tick()
    assert world.state.sizes["e"].save_by is None
    assert world.state.sizes["e"].size == 2


def test_a_restart_meanwhile_comes_first():
    world = boot()
    lose(world, "e/0")
    wait_for(world, reasons.RESIZED)
    join(world)
    world.kill("e", 0)
    world.deliver()
    world.now = world.state.sizes["e"].move_at
    world.send(ev.Tick())
    assert world.state.sizes["e"].move_at is None
    world.settle()
    assert world.state.sizes["e"].target == 3, "when it runs again it is looked at again"
    assert wait_for(world, reasons.RESIZED).message.startswith("3 ranks")


def test_growth_that_is_lost_again_soon_comes_later_and_later():
    world = boot()
    for vain in (0, 1, 2):
        lose(world, "e/1")
        wait_for(world, reasons.RESIZED)
        assert world.state.sizes["e"].vain == vain
        shrunk = world.now
        join(world)
        assert world.state.sizes["e"].move_at == shrunk + GROW_S * 2**vain
        wait_for(world, reasons.RESIZED)
    world.now += limits.VAIN_S
    lose(world, "e/1")
    wait_for(world, reasons.RESIZED)
    assert world.state.sizes["e"].vain == 0


def test_a_role_below_its_minimum_waits_and_says_so():
    world = boot(2, {"replicas": 2, "minReplicas": 1, "maxReplicas": 2, "resources": {"cpu": "1"}})
    lose(world, "e/0")
    lose(world, "e/1")
    for _ in range(3):
        world.tick()
    assert world.state.phase is Phase.RECOVERING
    assert world.state.sizes["e"].size == 2
    shown = status.status(world.state, world.now, {})
    assert "e goes on with at least 1 of 2 ranks" in shown["message"]
    assert world.state.sizes["e"].shrink_at > world.now
    join(world)
    assert wait_for(world, reasons.RESIZED).message.startswith("1 rank instead of 2")


def test_a_rank_whose_reservation_is_in_progress_is_not_given_up():
    world = boot(own_nodes=True)
    lose(world, "e/0")
    world.hold = True
    world.add_node(nodes(9, cpus=1)[8])
    world.deliver()
    assert world.state.units["e/0"].phase is UnitPhase.RESERVING
    world.now = world.state.sizes["e"].shrink_at
    world.send(ev.Tick())
    assert world.state.sizes["e"].size == 3
    world.settle()
    assert world.state.sizes["e"] == Sizing(3, 3)


def test_other_roles_that_lost_their_node_with_it_get_room_too():
    world = boot(0, {"maxReplicas": 3}, {"name": "a"}, extra=nodes(2, cpus=2))
    lose(world, "a/0")
    wait_for(world, reasons.RESIZED)
    assert world.state.sizes["e"].size == 1
    assert world.state.units["a/0"].phase is UnitPhase.HELD


def test_two_elastic_roles_keep_as_much_as_there_is_room_for_the_first_first():
    other = {"name": "f", "type": "Elastic", "replicas": 2, "minReplicas": 1}
    world = boot(1, {"replicas": 2, "maxReplicas": 2}, other, extra=nodes(4, cpus=3)[3:])
    node = world.state.units["f/1"].node
    world.lose_node(node)
    world.add_node(nodes(3, cpus=2)[2])
    world.settle()
    if world.state.phase is not Phase.RUNNING:
        wait_for(world, reasons.RESIZED)
    assert sum(own.size for own in world.state.sizes.values()) == 3
    assert world.state.sizes["e"].size == 2


def test_a_group_is_never_split():
    role = {"replicas": 6, "replicasPerGroup": 2, "minReplicas": 2, "maxReplicas": 6, "entrypoint": SCRIPT}
    world = boot(0, {**role, "resources": {"cpu": "1"}}, extra=nodes(3, cpus=2))
    lose(world, "e/2")
    assert wait_for(world, reasons.RESIZED).message.startswith("4 ranks instead of 6")
    assert ready(world) == {0, 1, 2, 3}


def test_ranks_that_ended_well_need_no_place():
    world = boot(3, None, {"name": "d"}, extra=nodes(4, cpus=1)[3:])
    world.end_role("e")
    world.settle()
    lose(world, "e/0")
    assert world.state.sizes["e"].shrink_at is None


def shrunk_and_done(**group):
    """`e` went on with 2 of 3 and ended well; `d`, a driver too, runs on."""
    world = boot(3, None, {"name": "d"}, extra=nodes(4, cpus=1)[3:], group=group)
    lose(world, "e/0")
    wait_for(world, reasons.RESIZED)
    world.now += GROW_S
    world.end_role("e")
    world.settle()
    assert [note.target for note in world.notes(reasons.ROLE_COMPLETED)] == ["e"]
    return world


def test_a_role_whose_ranks_all_ended_wants_no_machines_for_those_it_lost():
    world = shrunk_and_done(cpu="1500m", replicas=4, minReplicas=2)
    assert (world.state.sizes["e"].size, world.state.sizes["e"].want) == (2, 3)
    assert status.nodes(world.state)["wanted"] == {"any": 3}


def test_a_role_whose_ranks_all_ended_takes_no_room():
    world = shrunk_and_done()
    join(world)
    assert world.state.sizes["e"].move_at is None
    assert len(world.notes(reasons.RESIZED)) == 1
    assert world.state.roles["e"].succeeded_count == 2
    world.end_role("d")
    world.settle()
    assert world.state.phase is Phase.SUCCEEDED


@pytest.mark.parametrize("saving", [False, True])
def test_a_role_that_ends_while_more_is_on_its_way_takes_none(saving):
    world = boot(3, None, {"name": "d"}, extra=nodes(4, cpus=1)[3:])
    lose(world, "e/0")
    wait_for(world, reasons.RESIZED)
    join(world)
    assert world.state.sizes["e"].move_at is not None
    if saving:
        world.tick()
        assert world.state.sizes["e"].save_by is not None
        world.pending.clear()
    world.end_role("e")
    world.settle()
    world.tick()
    world.settle()
    assert (world.state.sizes["e"].move_at, world.state.sizes["e"].save_by) == (None, None)
    assert len(world.notes(reasons.RESIZED)) == 1
    assert world.state.roles["e"].succeeded_count == 2


# -- orders


def scale(world, count, target="e", order="1"):
    world.send(ev.Commanded(order, "scale", target, "me", count))
    world.settle()


def test_an_order_of_fewer_is_obeyed_at_once_and_gives_nodes_back():
    world = boot()
    world.now += 1
    scale(world, 1)
    wait_for(world, reasons.RESIZED)
    assert world.notes(reasons.RESIZED)[-1].message == "1 rank instead of 3: its wanted size is 1"
    assert ready(world) == {0}
    assert world.state.sizes["e"].want == 1
    scale(world, 1, order="2")
    assert world.state.sizes["e"].target == 0


def test_an_order_for_which_there_is_room_waits_for_no_node_and_no_interval():
    world = boot(extra=ROOMY)
    for order, count in enumerate((2, 4)):
        ordered = world.now
        scale(world, count, order=str(order))
        assert wait_for(world, reasons.RESIZED).message.startswith(f"{count} ranks instead of ")
        assert world.now == ordered
        world.settle()
        world.now += 1


def test_an_order_that_comes_while_the_job_recovers_waits_for_no_interval_either():
    world = boot(extra=ROOMY)
    scale(world, 2, order="0")
    wait_for(world, reasons.RESIZED)
    world.settle()
    world.now += 1
    world.kill("e", 0)
    world.send(world.pending.pop())
    assert world.state.phase is Phase.RECOVERING
    ordered = world.now
    scale(world, 4, order="1")
    assert wait_for(world, reasons.RESIZED).message.startswith("4 ranks instead of 2")
    assert world.now - ordered < limits.SETTLE_S


def test_an_order_for_which_a_node_is_missing_waits_for_further_ones():
    world = boot(extra=ROOMY[:1], role={"maxReplicas": 6})
    scale(world, 6)
    assert world.state.sizes["e"].target == 4
    assert world.state.sizes["e"].move_at == world.now + limits.SETTLE_S


def test_spares_of_a_role_with_fewer_ranks_go_with_the_node_that_none_of_them_has():
    world = boot(faultTolerance={"spares": {"processesPerNode": 1}})
    left = world.state.units["e/2"].node
    scale(world, 2)
    wait_for(world, reasons.RESIZED)
    assert {node for role, node, _ in world.state.spares if role == "e"} >= {left}
    world.lose_node(left)
    world.settle()
    assert left not in {node for _, node, _ in world.state.spares}


def test_an_order_of_more_waits_for_room():
    world = boot()
    scale(world, 4)
    assert world.state.sizes["e"].target == 0
    assert status.nodes(world.state)["wanted"] == {"any": 9}
    join(world)
    assert wait_for(world, reasons.RESIZED).message == "4 ranks instead of 3: there is room for more"
    assert ("e", 3) in world.state.ranks
    assert status.status(world.state, world.now, {})["roles"][0]["desired"] == 4


@pytest.mark.parametrize(
    ("target", "count", "why"),
    [
        ("a", 2, "a has a fixed number of ranks; roles with minReplicas or maxReplicas: e"),
        ("e", 5, "e has 1 to 4 ranks, not 5"),
        ("e", 0, "e has 1 to 4 ranks, not 0"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(target, count, why):
    world = boot(4, None, {"name": "a"})
    scale(world, count, target)
    assert why in world.notes(reasons.COMMAND_REFUSED)[-1].message


@pytest.mark.parametrize("count", [1, 3])
def test_a_role_whose_ranks_all_ended_is_not_scaled(count):
    world = shrunk_and_done()
    scale(world, count)
    refused = world.notes(reasons.COMMAND_REFUSED)[-1].message
    assert refused == "scale refused: e has ended (2 ranks); restart starts it again"
    assert (world.state.sizes["e"].size, world.state.roles["e"].succeeded_count) == (2, 2)
    world.send(ev.Commanded("2", "restart", "e", "me"))
    world.settle()
    assert ready(world) == {0, 1}


def test_a_role_is_scaled_by_whole_groups():
    world = boot(4, {"replicas": 2, "replicasPerGroup": 2, "minReplicas": 2, "resources": {"cpu": "500m"}})
    scale(world, 3)
    assert "e has 2 to 4 ranks in whole groups of 2, not 3" in world.notes(reasons.COMMAND_REFUSED)[-1].message


def test_a_job_without_elastic_roles_has_none_to_scale():
    world = World(job({"name": "a"}), count=1).boot()
    scale(world, 1, "a")
    assert "none of this job" in world.notes(reasons.COMMAND_REFUSED)[-1].message


# -- the books


def test_the_ledger_counts_how_many_ranks_there_were_and_when():
    world = boot()
    world.now += 10
    lose(world, "e/0")
    wait_for(world, reasons.RESIZED)
    before = micros(world.state, world.now)
    world.now += 10
    at = micros(world.state, world.now)
    book = world.state.ledger
    assert ledger.rank_time(book, "e", 2, at) == 3 * before + 2 * (at - before)
    assert sum(ledger.totals(book, "e", at).values()) == ledger.rank_time(book, "e", 2, at)
    assert status.status(world.state, world.now, {})["ledger"]["processes"] == 2


# -- masters


def test_a_new_master_orders_unfinished_resizes_again():
    world = boot()
    lose(world, "e/0")
    wait_for(world, reasons.RESIZED)
    world.crash_master()
    world.settle()
    assert ready(world) == {0, 1}
    join(world)
    world.tick()
    assert [a for a in reissue(world.state, world.now) if isinstance(a, act.SaveCopies)] == [
        act.SaveCopies("", elastic.GRACE_S)
    ]
    world.crash_master()
    world.settle()
    assert ready(world) == {0, 1, 2}


def test_nothing_is_done_for_a_job_that_ends():
    world = boot()
    lose(world, "e/0")
    world.send(ev.Commanded("s", "stop"))
    d = StateTransaction(world.state, world.now + 100)
    elastic.tick(d)
    elastic.handle_saved_copies(d)
    assert d.freeze() is world.state


def test_an_elastic_role_begins_with_its_replicas():
    made, spec = job({"name": "a"}, {"name": "e", "type": "Elastic", "replicas": 2, "maxReplicas": 3})
    assert initial(made, spec, "u", 0.0).sizes == Map({"e": Sizing(2, 2)})


# -- the start


def waiting(count, *others, role=None, own_nodes=True, **spec):
    """The same role on fewer nodes than it is to have."""
    e = {"name": "e", "type": "Elastic", "replicas": 3, "minReplicas": 2, "maxReplicas": 4, **(role or {})}
    made = job(e, *others, nodeGroups=[{"name": "any", "replicas": 8, "maxReplicas": 9, "cpu": "4"}], **spec)
    world = World(made, views=nodes(count, cpus=1), own_nodes=own_nodes)
    world.send(ev.MasterStarted(1))
    world.send(ev.NodesSeen(world.seen()))
    return world


@pytest.mark.parametrize(("own", "patience"), [(True, limits.SHRINK_S), (False, limits.SHRINK_BARE_S)])
def test_a_job_starts_with_fewer_when_no_more_nodes_join(own, patience):
    world = waiting(2, own_nodes=own)
    begun = world.now
    assert world.state.phase is Phase.PENDING
    note = wait_for(world, reasons.RESIZED)
    assert world.now == begun + patience
    assert note.message.startswith("it starts with 2 ranks instead of 3: ")
    world.settle()
    assert (world.state.phase, ready(world), dict(world.state.restarts)) == (Phase.RUNNING, {0, 1}, {})
    assert {start.world_size for start in world.of(act.StartRanks)} == {2}
    assert world.state.sizes["e"].want == 3
    assert status.status(world.state, world.now, {})["roles"][0]["restarts"] == 0
    join(world)
    wait_for(world, reasons.RESIZED)
    world.settle()
    assert ready(world) == {0, 1, 2}
    assert world.now >= begun + patience + 60


def test_each_node_that_joins_is_waited_for_anew():
    world = waiting(1)
    world.now += limits.SHRINK_S - 1
    join(world)
    assert world.state.sizes["e"].shrink_at == world.now + limits.SHRINK_S
    world.now += limits.SHRINK_S - 1
    join(world)
    assert (world.state.phase, ready(world)) == (Phase.RUNNING, {0, 1, 2})
    assert world.notes(reasons.RESIZED) == []
    assert world.state.sizes["e"].shrink_at is None


def test_a_job_with_room_for_fewer_than_the_minimum_goes_on_waiting():
    world = waiting(1)
    for _ in range(4):
        world.tick()
    assert world.state.phase is Phase.PENDING
    assert world.now == 1000.0 + 4 * limits.SHRINK_S
    join(world)
    wait_for(world, reasons.RESIZED)
    world.settle()
    assert ready(world) == {0, 1}


def on_three_small_nodes(fewest: int) -> World:
    """A role of 6 ranks, where the nodes hold 3."""
    e = {"name": "e", "type": "Elastic", "replicas": 6, "minReplicas": fewest, "maxReplicas": 8}
    made = job(e, nodeGroups=[{"name": "any", "replicas": 3, "cpu": "8"}])
    world = World(made, views=nodes(3, cpus=1), own_nodes=True)
    world.send(ev.MasterStarted(1))
    world.send(ev.NodesSeen(world.seen()))
    return world


def test_nodes_that_could_never_hold_all_hold_fewer():
    """Where the nodes are complete nobody waits for more, and that is no failure."""
    world = on_three_small_nodes(2)
    world.settle()
    assert (world.state.phase, ready(world)) == (Phase.RUNNING, {0, 1, 2})


def test_nodes_that_could_never_hold_the_fewest_fail_the_job():
    world = on_three_small_nodes(4)
    assert world.state.verdict is not None
    assert world.state.verdict.reason == reasons.NEVER_FITS


def test_a_refused_reservation_gives_back_what_it_has_and_nothing_more():
    world = waiting(2)
    wait_for_reserve = len(world.all_actions)
    while world.state.phase is Phase.PENDING:
        world.tick()
    (first, *_) = world.of(act.Reserve, wait_for_reserve)
    world.pending.clear()
    world.send(ev.UnitRefused(first.unit, first.token, "somebody else was faster"))
    assert world.state.phase is Phase.PENDING
    assert world.state.units["e/2"].phase is UnitPhase.ABSENT
    while world.state.phase is Phase.PENDING:
        world.tick()
    world.settle()
    assert ready(world) == {0, 1}


def test_other_roles_start_whole_beside_a_smaller_elastic_role():
    world = waiting(3, {"name": "w", "driver": False})
    wait_for(world, reasons.RESIZED)
    world.settle()
    assert (ready(world), ready(world, "w")) == ({0, 1}, {0})


def test_of_two_elastic_roles_the_first_starts_whole():
    world = waiting(
        5, {"name": "f", "type": "Elastic", "driver": False, "replicas": 4, "minReplicas": 1, "maxReplicas": 4}
    )
    note = wait_for(world, reasons.RESIZED)
    world.settle()
    assert (note.target, ready(world), ready(world, "f")) == ("f", {0, 1, 2}, {0, 1})
    assert len(world.notes(reasons.RESIZED)) == 1


# -- beside frameworks that take what is theirs when they run


def with_gpus(count):
    return nodes(count, cpus=8, GPU=1, memory=2**30)


def beside_a_quota(gpus):
    """Ranks of a GPU each, 1 to 4 of them, and a script whose framework is to have two, on machines with one each."""
    gpu = {"type": "GPU", "count": "1"}
    e = {"name": "e", "type": "Elastic", "replicas": 4, "minReplicas": 1, "maxReplicas": 4, "accelerator": gpu}
    d = {"name": "d", "reserve": "Quota", "entrypoint": SCRIPT, "accelerator": {**gpu, "count": "2"}}
    made = job(e, d, nodeGroups=[{"name": "any", "replicas": 8, "cpu": "4", "accelerator": {**gpu, "count": 1}}])
    world = World(made, views=with_gpus(gpus)).boot()
    while world.state.phase is Phase.PENDING:
        world.tick()
        world.settle()
    return world


def another_gpu(world):
    world.now += GROW_S
    world.add_node(with_gpus(20)[len(world.views)])
    world.settle()
    while world.state.sizes["e"].target:
        world.tick()
        world.settle()


def framework_takes(world, count):
    """What its framework holds is not free any more; the cluster says no more than that."""
    held = {view.id for view in world.views} - {unit.node for name, unit in world.state.units.items() if name[0] == "e"}
    mine = sorted(held)[:count]
    world.views = tuple(
        replace(view, free=tuple(pair for pair in view.free if pair[0] != "GPU")) if view.id in mine else view
        for view in world.views
    )
    world.send(ev.NodesSeen(world.seen()))
    world.settle()


@pytest.mark.parametrize(("gpus", "size"), [(3, 1), (4, 2), (5, 3)])
def test_a_role_that_starts_with_fewer_ranks_leaves_what_a_quota_wants(gpus, size):
    world = beside_a_quota(gpus)
    assert ready(world) == set(range(size))
    assert world.state.units["d/0"].phase is UnitPhase.HELD


def test_nodes_with_too_little_for_the_minimum_and_a_quota_fail_the_job():
    world = beside_a_quota(2)
    assert (world.state.phase, world.state.verdict.reason) == (Phase.FAILED, reasons.NEVER_FITS)


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_a_role_that_grows_leaves_a_quota_its_devices_whether_taken_or_not(taken):
    world = beside_a_quota(3)
    framework_takes(world, taken)
    world.now += 10 * GROW_S
    world.send(ev.Tick())
    assert world.state.sizes["e"].target == 0, "the two that are left are not for it"
    another_gpu(world)
    assert ready(world) == {0, 1}
    another_gpu(world)
    assert ready(world) == {0, 1, 2}


def test_a_framework_that_has_ended_counts_on_nothing():
    world = beside_a_quota(3)
    world.end_role("d")
    world.settle()
    another_gpu(world)
    assert ready(world) == {0, 1, 2, 3}


def test_an_event_of_a_recovery_looks_at_the_units_without_a_place_alone(monkeypatch):
    world = boot(64, {"replicas": 64, "maxReplicas": 64}, group={"replicas": 64, "maxReplicas": 64})
    looked, inhabited = [], elastic.has_unfinished_rank
    monkeypatch.setattr(elastic, "has_unfinished_rank", lambda d, name: looked.append(name) or inhabited(d, name))
    lose(world, "e/3")
    assert world.state.sizes["e"].shrink_at is not None
    assert sum(isinstance(event, ev.HostReady) for event in world.told) > 64 + 60, "the others have new hosts"
    assert set(looked) == {"e/3"}
