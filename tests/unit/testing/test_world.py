"""The world by hand: moves, faults, copies."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dljob.master.start.assign import would_be_nodes
from dljob.master.state.state import Phase
from dljob.master.state.views import HostId
from dljob.plan.plan import plan
from dljob.spec.model import DLJobManifest
from dljob.testing.world import invariants
from dljob.testing.world.faults import FAULTS
from dljob.testing.world.model import Arrive, Done, FaultMove, Happen, Node, SpareKey, Wake
from dljob.testing.world.world import World

ROLES = [
    {"name": "t", "type": "Elastic", "replicas": 2, "driver": False, "entrypoint": {"class": "pkg.T"}},
    {"name": "w", "dependsOn": [{"role": "t"}], "entrypoint": {"class": "pkg.W"}},
]


SERVER = {"name": "s", "driver": False, "entrypoint": {"module": "s"}, "ports": [{"name": "http"}], "drain": {}}


def world(*more, **policy):
    document = {"metadata": {"name": "j"}, "spec": {"roles": [*ROLES, *more], "faultTolerance": policy}}
    manifest = DLJobManifest.model_validate(document)
    made = plan(manifest)
    return World(made, manifest.spec, would_be_nodes(made))


def first(w, *, but=()):
    """Make the oldest move until there is none, or only such as are not wanted."""
    for _ in range(1000):
        found = [n for n, p in w.pending.items() if not isinstance(p.item, but)]
        if not found or w.finished:
            return w
        w.apply(Happen(found[0]))
    raise AssertionError("it goes on for ever")


def running(*more):
    w = first(world(*more), but=Done)
    assert w.state.phase is Phase.RUNNING
    return w


def test_a_job_runs_to_its_end_by_its_oldest_moves():
    w = first(world())
    assert (w.known.phase, w.finished.ok, w.violations()) == (Phase.SUCCEEDED, True, [])
    assert (w.processes, w.groups, w.running, w.worlds, w.carrying) == ({}, {}, {}, {}, {})


def test_a_copy_goes_its_own_way():
    w = running()
    copy, again = w.clone(), w.clone()
    before = (w.state, dict(w.processes), dict(w.pending), len(w.journal))
    for each in (copy, again):
        each.apply(FaultMove("kill", 1))
        first(each)
    assert (w.state, dict(w.processes), dict(w.pending), len(w.journal)) == before
    assert invariants.text(copy.known) == invariants.text(again.known)
    assert copy.journal == again.journal
    assert copy.known.restarts


@pytest.mark.parametrize("kind", sorted(FAULTS))
def test_a_job_comes_to_its_end_whatever_fault_comes_first(kind):
    w = running(SERVER)
    assert w.faults(kind)
    for fault in w.faults(kind):
        each = w.clone()
        each.apply(fault)
        for _ in range(50):
            first(each)
            if each.finished:
                break
            each.now += 30.0
            each.apply(each.moves()[-1])
        assert each.violations() == [], fault
        assert each.finished, fault


def test_a_master_that_dies_after_each_effect_of_each_event_loses_nothing():
    for effects in range(-1, 4):
        for outlived in (0.0, 1.0):
            w = running()
            w.apply(FaultMove("kill", 0))
            w.apply(FaultMove("crash", effects + 2, outlived))
            first(w, but=Done)
            assert w.epoch == 2
            assert w.state.phase is Phase.RUNNING, effects
            assert w.violations() == []


def test_events_that_arrive_in_one_batch_are_one_turn():
    w = running()
    w.apply(FaultMove("command", 0, 1, "restart rank"))
    w.apply(FaultMove("command", 1, 2, "restart rank"))
    one, two = w.arriving
    w.apply(Happen(one, (two,)))
    assert [type(event).__name__ for _, event in w.journal[-2:]] == ["Commanded", "Commanded"]
    assert not any(isinstance(p.item, Arrive) for p in w.pending.values())
    first(w, but=Done)
    assert w.violations() == []


def shrunk():
    """An elastic role that went on with one rank of two: what its lost node had is taken by somebody else."""
    e = {**ROLES[0], "minReplicas": 1, "driver": True, "resources": {"cpu": "1"}}
    group = {"name": "n", "replicas": 2, "cpu": "1"}
    manifest = DLJobManifest.model_validate({"metadata": {"name": "j"}, "spec": {"roles": [e], "nodeGroups": [group]}})
    made = plan(manifest)
    views = would_be_nodes(made)
    w = World(made, manifest.spec, views)
    w.nodes["other"] = Node(replace(views[1], id="other", free=()))
    first(w, but=Done)
    w.apply(FaultMove("node lost", 1))
    first(w, but=Done)
    while w.state.phase is not Phase.RUNNING:
        w.apply(Wake())
        first(w, but=Done)
    assert w.state.sizes["t"].size == 1
    w.look()
    first(w, but=Done)
    w.nodes["other"] = Node(replace(views[1], id="other"))
    return w


def test_a_node_without_a_resource_has_no_room_for_a_unit_that_needs_it():
    w = world()
    (node, *_), (unit, *_) = w.nodes, sorted(w.plan.units)
    kept = w.nodes[node].view
    w.nodes[node] = Node(replace(kept, free=(), total=()))
    assert not w.take(node, unit, 1)
    assert w.nodes[node].view.free == ()


def test_room_that_somebody_else_frees_is_heard_of_while_the_job_runs():
    w = shrunk()
    w.look()
    assert w.violations() == [], "it is about to look"
    first(w, but=Done)
    assert w.state.sizes["t"].target == 2
    assert w.violations() == []


def test_room_that_nobody_hears_of_is_told():
    assert shrunk().violations() == ["elastic: t stays at 1 ranks, it could have 2 of 2"]


def test_a_broken_replay_and_broken_counts_are_told():
    w = running()
    w.journal.pop()
    assert any(problem.startswith("replay") for problem in invariants.replayed(w))
    assert json.loads(invariants.text(w.known))
    w = running()
    role = w.known.roles["t"]
    object.__setattr__(role, "ready_count", 7)
    assert any(problem.startswith("count") for problem in w.violations())


def test_a_spare_that_takes_over_is_watched_as_the_host_it_has_become():
    w = first(world(spares={"processesPerNode": 1}), but=Done)
    spares = [actor for actor, process in w.processes.items() if isinstance(process.occupant, SpareKey)]
    w.apply(FaultMove("kill", 0))
    first(w, but=Done)
    taken = {actor: w.processes[actor].occupant for actor in spares if isinstance(w.processes[actor].occupant, HostId)}
    assert taken
    assert {actor: w.watched[actor].occupant for actor in taken} == taken
