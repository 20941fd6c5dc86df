"""Roles in one domain while nodes come and go: the domain is kept where it has room, and left as a whole where not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from master_kit import World, job, nodes

from dljob.master.start.assign import AssignedUnit, Assignment, assign
from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state.state import Phase, UnitPhase
from dljob.telemetry import reasons

PREFIX = "scheduling.dljob.io/"


def one_rack(name="w", replicas=2, *, spread=False, **more):
    marks = {f"{PREFIX}topology-key": "rack", **({f"{PREFIX}strategy": "STRICT_SPREAD"} if spread else {})}
    return {"name": name, "replicas": replicas, "annotations": marks, **more}


def racked(racks, cpus=1):
    """Nodes n0, n1, ... of so many CPUs, in these racks."""
    views = nodes(len(racks), cpus=cpus)
    return tuple(
        replace(view, labels=(*view.labels, *((("rack", rack),) if rack else ())))
        for view, rack in zip(views, racks, strict=True)
    )


def where(world):
    """Rack -> how many units are held there."""
    labels = {view.id: dict(view.labels).get("rack") for view in world.views}
    found = {}
    for unit in world.state.units.values():
        if unit.phase is UnitPhase.HELD:
            found[labels[unit.node]] = found.get(labels[unit.node], 0) + 1
    return found


def lose(world, rack):
    """A node of the rack that holds a unit is gone."""
    labels = {view.id: dict(view.labels).get("rack") for view in world.views}
    node = next(u.node for u in world.state.units.values() if labels[u.node] == rack)
    world.now += 10
    world.lose_node(node)
    world.settle()


def preferring(name="w", replicas=2, **more):
    return {"name": name, "replicas": replicas, "annotations": {f"{PREFIX}preferred-topology-key": "rack"}, **more}


def test_a_preferred_rack_is_had_and_a_lost_unit_stays_in_it_while_it_has_room():
    world = World(job(preferring()), views=racked("abbb")).boot()
    assert where(world) == {"b": 2}
    lose(world, "b")
    assert where(world) == {"b": 2}
    assert not world.notes(reasons.PREFERRED_DOMAIN_MISSED)


def test_a_lost_unit_leaves_the_preferred_rack_that_has_no_room_alone_and_each_time_it_is_told():
    world = World(job(preferring()), views=racked("bbacc")).boot()
    assert where(world) == {"b": 2}
    lose(world, "b")
    assert where(world) == {"b": 1, "a": 1}
    (note,) = world.notes(reasons.PREFERRED_DOMAIN_MISSED)
    assert (note.target, world.notes(reasons.TOPOLOGY_DOMAIN_CHANGED)) == ("w", [])
    assert "preferred in one rack (rack=b, where its other units are): " in note.message
    lose(world, "a")
    assert where(world) == {"b": 1, "c": 1}
    assert len(world.notes(reasons.PREFERRED_DOMAIN_MISSED)) == 2


def test_without_a_rack_for_all_a_preferring_job_starts_at_once_and_says_so():
    world = World(job(preferring()), views=racked("ab")).boot()
    assert where(world) == {"a": 1, "b": 1}
    (note,) = world.notes(reasons.PREFERRED_DOMAIN_MISSED)
    assert "a (1 machine, 1 CPU) has room for 1; b (1 machine, 1 CPU) has room for 1" in note.message


def test_a_node_that_is_in_no_rack_binds_no_preferring_unit():
    world = World(job(preferring()), views=racked(["", "", "a"])).boot()
    lose(world, None)
    assert sum(where(world).values()) == 2


def test_an_elastic_role_that_starts_with_fewer_ranks_tells_of_its_preference():
    elastic = preferring(replicas=4, type="Elastic", minReplicas=2)
    world = World(job(elastic), views=racked("ab")).boot()
    (note,) = world.notes(reasons.PREFERRED_DOMAIN_MISSED)
    assert note.message.startswith("2 units of w (1 CPU each), preferred in one rack")
    assert where(world) == {"a": 1, "b": 1}


def test_all_units_are_placed_in_one_rack_and_the_note_says_why():
    world = World(job(one_rack()), views=racked("abbb")).boot()
    assert where(world) == {"b": 2}
    (note,) = world.notes(reasons.DOMAIN_CHOSEN)
    assert note.target == "w"
    assert "rack=b (3 machines, 3 CPU) holds 2 units of w (1 CPU each), the only one" in note.message


def test_a_lost_unit_stays_in_the_rack_while_that_has_room():
    world = World(job(one_rack()), views=racked("bbbaaaa")).boot()
    assert where(world) == {"b": 2}
    lose(world, "b")
    assert where(world) == {"b": 2}
    assert not world.notes(reasons.TOPOLOGY_DOMAIN_CHANGED)
    assert world.state.ranks["w", 1].incarnation + world.state.ranks["w", 0].incarnation == 3
    assert world.state.phase is Phase.RUNNING


@pytest.mark.parametrize("kind", [{}, {"type": "Elastic", "comm": {"backend": "gloo"}}])
def test_without_room_in_its_rack_the_whole_role_moves_to_another_rack(kind):
    world = World(job(one_rack(**kind), {"name": "x"}), views=racked("bbaaa")).boot()
    assert where(world) == {"b": 2, "a": 1}
    before = len(world.all_actions)
    lose(world, "b")
    assert where(world) == {"a": 3}
    left = world.notes(reasons.TOPOLOGY_DOMAIN_CHANGED)[0].message
    assert left == "lost units of w find no room in their topology domain: 1 other unit goes to another one with them"
    assert [note.target for note in world.notes(reasons.DOMAIN_CHOSEN)] == ["w", "w"]
    assert all(world.state.ranks["w", rank].incarnation == 2 for rank in range(2))
    assert world.state.ranks["x", 0].incarnation == 1
    assert world.state.restarts.get("Node") == 1
    assert len([a for a in world.of(act.Reserve, before) if a.unit.startswith("w/")]) == 2
    assert world.state.phase is Phase.RUNNING


def test_a_rack_that_is_gone_is_replaced_by_another():
    world = World(job(one_rack()), views=racked("bbaaa")).boot()
    keep = [view for view in world.views if dict(view.labels)["rack"] == "a"]
    world.now += 10
    gone = [view for view in world.views if view not in keep]
    world.send(ev.NodesSeen(tuple(keep)))
    world.views = keep
    assert len(gone) == 2
    world.settle()
    assert where(world) == {"a": 2}
    assert world.state.phase is Phase.RUNNING


def test_lost_units_wait_with_a_reason_when_no_rack_holds_the_whole_role():
    world = World(job(one_rack()), views=racked("bba")).boot()
    lose(world, "b")
    assert where(world) == {"b": 1}
    why = world.state.search.no_room_reason
    assert "(rack=b, where its other units are)" in why
    assert "b (1 machine, 1 CPU" in why or "b (1 machine, 0 CPU" in why or "b (1 machine" in why
    late = racked("bbab")[3]
    world.add_node(late)
    world.settle()
    assert where(world) == {"b": 2}


def lose_one_of_each(world, *roles):
    gone = {world.state.units[f"{role}/1"].node for role in roles}
    world.now += 10
    for node in gone:
        world.lose_node(node)
    world.pending = [world.pending[-1]]
    world.settle()


def test_two_roles_that_lost_a_unit_may_both_move_to_another_rack():
    world = World(job(one_rack("w"), one_rack("v")), views=racked("aaaabbbb")).boot()
    assert where(world) == {"a": 4}
    lose_one_of_each(world, "w", "v")
    assert where(world) == {"b": 4}
    assert [note.target for note in world.notes(reasons.TOPOLOGY_DOMAIN_CHANGED)] == ["v, w"]


def test_of_two_roles_that_lost_a_unit_one_stays_where_it_has_room():
    roles = one_rack("w"), {**one_rack("v"), "resources": {"cpu": "2"}}
    views = (*racked("aaa"), *(replace(v, id=f"m{v.id}") for v in racked("bbcc", cpus=2)))
    world = World(job(*roles), views=views).boot()
    assert where(world) == {"a": 2, "b": 2}
    lose_one_of_each(world, "w", "v")
    assert where(world) == {"a": 2, "c": 2}
    assert [note.target for note in world.notes(reasons.TOPOLOGY_DOMAIN_CHANGED)] == ["v"]


def test_spread_units_stay_on_nodes_of_their_own_through_losses():
    world = World(job(one_rack(spread=True)), views=racked("bbb", cpus=8)).boot()
    assert len({unit.node for unit in world.state.units.values()}) == 2
    lose(world, "b")
    assert len({unit.node for unit in world.state.units.values()}) == 2
    assert world.state.phase is Phase.RUNNING
    lose(world, "b")
    assert (
        "each on a machine of its own" in world.state.search.no_room_reason
        or "without another of w" in world.state.search.no_room_reason
    )


def test_a_refusal_that_can_never_change_ends_the_job():
    world = World(job(one_rack()), views=racked("ab"))
    world.send(ev.NodesSeen(world.views))
    world.tick()
    assert world.state.verdict.reason == reasons.NEVER_FITS
    assert "2 units of w (1 CPU each) need one rack: a (1 machine, 1 CPU) has room for 1" in world.state.verdict.message


def test_a_unit_whose_node_lost_its_label_binds_nobody_elsewhere():
    plan, _ = job(one_rack())
    found = assign([plan.units["w/1"]], racked("ab"), placed_units=[AssignedUnit(plan.units["w/0"], "n9", domain="b")])
    assert found == Assignment({"w/1": "n1"})
