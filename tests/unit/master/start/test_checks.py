"""Nodes are checked before a torch world starts on them: who waits, who is left, and what a new master does."""

from __future__ import annotations

import pytest
from master_kit import World, job, nodes

from dljob.master import status
from dljob.master.placement.reissue import reissue
from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state import limits
from dljob.master.state.pairing import NodeFacts, TeamFacts
from dljob.master.state.state import Phase
from dljob.telemetry import reasons


def made(replicas=3, size=1, **fault_tolerance):
    role = {"name": "t", "type": "Elastic", "replicas": replicas, "replicasPerGroup": size, "comm": {"preCheck": True}}
    return job(role, faultTolerance={"spares": {"processesPerNode": 0}, **fault_tolerance})


def world(count=4, bad=None, *, hold=False, own_nodes=False, **options):
    """A role of three ranks, a node for each and one more."""
    new = World(made(**options), views=nodes(count, cpus=1), own_nodes=own_nodes, hold=hold)
    new.bad = dict(bad or {})
    return new


def settled(w):
    """All answers there, and what waits out a backoff begun."""
    w.settle()
    for _ in range(9):
        if w.state.phase is not Phase.SCHEDULING:
            break
        w.tick()
        w.settle()
    return w


def where(w):
    return {unit.node for unit in w.state.units.values()}


def failures(w):
    return {note.target.removeprefix("node/"): note.message for note in w.notes(reasons.NODE_CHECK_FAILED)}


def until_checked(w, orders=1):
    """Deliver answers until so many rounds are ordered; the answer to the last one stays on its way."""
    w.send(ev.MasterStarted(1))
    w.send(ev.NodesSeen(w.seen()))
    while len(w.of(act.CheckNodes)) < orders:
        others = [i for i, e in enumerate(w.pending) if not isinstance(e, ev.NodesChecked)]
        w.deliver(others[0] if others else 0)
    for index in reversed([i for i, e in enumerate(w.pending) if not isinstance(e, ev.NodesChecked)]):
        w.deliver(index)


def test_nobody_starts_before_all_nodes_passed():
    w = world()
    until_checked(w)
    (order,) = w.of(act.CheckNodes)
    assert (order.role, order.number, order.teams) == ("t", 1, (("n0", "n1", "n2"),))
    assert [place.node for place in order.places] == ["n0", "n1", "n2"]
    assert not w.of(act.StartRanks)
    w.settle()
    assert w.state.phase is Phase.RUNNING
    (note,) = w.notes(reasons.NODES_CHECKED)
    assert (note.target, note.message) == ("t", "3 nodes fit for t")


def test_a_checker_is_told_what_of_the_node_is_the_roles():
    role = {
        "name": "t", "type": "Elastic", "replicas": 4, "replicasPerGroup": 2, "accelerator": {"type": "GPU"},
        "resources": {"memory": "3Gi"},
    }  # fmt: skip
    w = World(job(role), views=nodes(2, cpus=2, GPU=2, memory=8 << 30))
    w.boot()
    (order,) = w.of(act.CheckNodes)
    assert [(p.unit, p.token, p.memory) for p in order.places] == [("t/0", 1, 4 << 30), ("t/1", 1, 4 << 30)]
    assert [p.devices for p in order.places] == [(("GPU", ("0", "1")),), (("GPU", ("2", "3")),)]
    assert w.state.phase is Phase.RUNNING


def test_a_role_that_says_nothing_is_checked_where_devices_talk_to_each_other():
    def asks(**more):
        w = World(job({"name": "t", "type": "Elastic", **more}), views=nodes(1, cpus=4, GPU=4)).boot()
        return len(w.of(act.CheckNodes))

    assert asks() == 0
    assert asks(accelerator={"type": "GPU"}) == 1
    assert asks(accelerator={"type": "GPU"}, comm={"preCheck": False}) == 0
    assert asks(comm={"preCheck": True}) == 1
    assert asks(accelerator={"type": "GPU"}, comm={"backend": "None", "preCheck": True}) == 0


def test_a_process_that_starts_again_waits_for_no_check():
    w = world().boot()
    w.kill("t", 1)
    w.settle()
    assert w.state.ranks["t", 0].incarnation == 2
    assert len(w.of(act.CheckNodes)) == 1


def test_a_new_node_is_checked_beside_one_that_is_proven():
    w = world().boot()
    w.lose_node("n1")
    w.settle()
    _, order = w.of(act.CheckNodes)
    assert order.teams == (("n0", "n3"),)
    assert w.state.phase is Phase.RUNNING
    assert where(w) == {"n0", "n2", "n3"}


@pytest.mark.parametrize("bad", ["n0", "n1", "n2"])
def test_a_bad_node_is_found_in_two_rounds_and_left(bad):
    w = world(bad={bad: ""}).boot()
    assert w.state.phase is Phase.RUNNING
    assert where(w) == {"n0", "n1", "n2", "n3"} - {bad}
    assert list(failures(w)) == [bad]
    assert failures(w)[bad].startswith("failed check before t started: it did not end, with n")
    own = w.state.exclusions[bad]
    assert (own.reason, own.until - own.since) == ("CheckFailed", limits.BAD_NODE_S)
    assert sum(w.state.restarts.values()) - w.state.restarts.get("Node", 0) == 1
    assert w.state.marks.get("t", ()) == (), "no budget pays for it"


def test_a_node_that_fails_by_itself_needs_no_second_round():
    w = world(bad={"n1": "device 3 is not there"}).boot()
    assert [order.number for order in w.of(act.CheckNodes)] == [1, 2]
    assert failures(w) == {"n1": "failed check before t started: device 3 is not there"}
    assert where(w) == {"n0", "n2", "n3"}
    assert w.state.faults[0].reason == "DeviceError"
    (row,) = status.nodes(w.state)["excluded"]
    assert (row["name"], row["reason"], row["why"]) == ("n1", "CheckFailed", "before t started: device 3 is not there")


@pytest.mark.parametrize("bad", ["n0", "n1"])
def test_of_two_suspect_nodes_the_bad_one_is_found_with_a_third_node(bad):
    w = settled(world(3, {bad: ""}, replicas=2).boot())
    assert w.state.phase is Phase.RUNNING
    assert where(w) == {"n0", "n1", "n2"} - {bad}
    assert "an all-reduce with n0 failed; one of them is bad" in failures(w)["n1"]
    assert w.state.checks["t"].bad == (bad,)


def test_where_no_other_node_is_the_job_fails_with_the_check_as_its_reason():
    w = world(2, {"n1": ""}, replicas=2)
    w.boot()
    assert w.state.phase is not Phase.RUNNING
    assert not w.of(act.StartRanks)
    while not w.state.phase.final:
        w.tick()
        w.settle()
    (finish,) = w.finished
    assert finish.reason == reasons.NO_ROOM_FOR_LOST_UNITS
    assert "excluded: n1 (before t started: an all-reduce with n0 failed" in finish.message


def test_four_bad_nodes_are_named_three_at_a_time():
    w = world(6, {f"n{i}": "no disk" for i in range(5)}, replicas=5).boot()
    while not w.state.phase.final:
        w.tick()
        w.settle()
    assert w.finished[0].message.endswith("and 2 more")


def test_on_kubernetes_another_node_is_awaited_after_a_failed_check():
    w = world(2, {"n1": ""}, replicas=2, own_nodes=True).boot()
    w.add_node(nodes(3, cpus=1)[2])
    w.settle()
    assert where(w) == {"n0", "n2"}
    assert w.state.phase is Phase.RUNNING


def test_two_bad_ones_of_four_that_cannot_be_told_apart_are_left_one_by_one():
    w = settled(world(6, {"n0": "", "n3": ""}, replicas=4).boot())
    assert w.state.phase is Phase.RUNNING
    assert not {"n0", "n3"}.intersection(where(w))


def test_an_answer_that_is_late_or_comes_twice_changes_nothing():
    w = world().boot()
    (told,) = [event for event in w.told if isinstance(event, ev.NodesChecked)]
    before = w.state
    assert w.send(told) == ()
    assert w.send(ev.NodesChecked("nobody", 1, (), ())) == ()
    assert w.state is before


def test_an_answer_about_places_that_were_left_tells_nothing():
    w = world(4)
    until_checked(w)
    w.lose_node("n1")
    answer = w.pending.pop(0)
    w.deliver()
    assert isinstance(answer, ev.NodesChecked)
    w.send(ev.NodesChecked("t", 1, (), (TeamFacts(("n0", "n1", "n2"), trouble="a connection broke"),)))
    w.settle()
    assert not failures(w)
    assert w.state.phase is Phase.RUNNING
    assert [order.number for order in w.of(act.CheckNodes)] == [1, 2]


def test_a_world_that_is_whole_again_waits_for_the_answer_that_is_on_its_way():
    w = world(3)
    until_checked(w)
    w.kill("t", 0)
    w.deliver(1)
    w.deliver(1)
    assert len(w.of(act.CheckNodes)) == 1
    w.settle()
    assert w.state.phase is Phase.RUNNING


def test_a_check_that_could_not_be_made_is_told_and_holds_nobody_up():
    w = world(3, replicas=2)
    until_checked(w)
    w.pending.clear()
    facts = (NodeFacts("n0", unmade="no module named torch"), NodeFacts("n1"))
    w.send(ev.NodesChecked("t", 1, facts, (TeamFacts(("n0", "n1"), unmade="n0 was not there"),)))
    w.settle()
    assert w.state.phase is Phase.RUNNING
    assert [(n.target, n.message) for n in w.notes(reasons.CHECK_NOT_MADE)] == [
        ("node/n0", "no module named torch"),
        ("t", "all-reduce of n0, n1: n0 was not there"),
    ]
    assert not failures(w)


def test_trouble_of_most_nodes_at_once_excludes_none_and_is_told_in_few_lines():
    w = world(8, replicas=8)
    until_checked(w)
    w.pending.clear()
    late = "it was not looked through within 180 s"
    facts = tuple(NodeFacts(f"n{i}", trouble=late if i < 5 else "", late=i < 5, clock_s=7.0) for i in range(8))
    teams = tuple(TeamFacts(team, trouble="no route to host") for team in w.of(act.CheckNodes)[-1].teams)
    w.send(ev.NodesChecked("t", 1, facts, teams))
    w.settle()
    assert w.state.phase is Phase.RUNNING
    assert not failures(w)
    assert not w.state.exclusions
    node, team, master = w.notes(reasons.CHECK_NOT_MADE)
    assert (node.target, team.target, master.target) == ("node/n0", "t", "master")
    assert node.message.startswith(f"{late}; it was so on 5 of 8 nodes")
    assert node.message.endswith(" (and 4 more nodes)")
    assert team.message.startswith("all-reduce of n0, n1: no route to host; all 4 teams failed")
    assert team.message.endswith(" (and 3 more teams)")
    assert master.message == (
        "PrimeMaster's clock is 7.0 s behind most nodes', which are compared with each other; set the clock of its "
        "machine"
    )


def test_a_primemaster_whose_clock_is_ahead_says_so():
    w = world(3, replicas=2)
    until_checked(w)
    w.pending.clear()
    w.send(ev.NodesChecked("t", 1, tuple(NodeFacts(f"n{i}", clock_s=-7.0) for i in range(2)), ()))
    (note,) = w.notes(reasons.CHECK_NOT_MADE)
    assert note.message.startswith("PrimeMaster's clock is 7.0 s ahead of most nodes'")


def test_slow_teams_and_slow_nodes_are_found_among_their_like():
    w = world(8, replicas=6)
    until_checked(w)
    w.pending.clear()
    facts = tuple(NodeFacts(f"n{i}", "cpu", 10.0 if i else 0.3) for i in range(6))
    paces = {("n0", "n1"): 9.0, ("n2", "n3"): 10.0, ("n4", "n5"): 0.5}
    w.send(ev.NodesChecked("t", 1, facts, tuple(TeamFacts(team, pace) for team, pace in paces.items())))
    second = w.of(act.CheckNodes)[-1]
    assert second.teams == (("n1", "n4"), ("n2", "n5"))
    w.pending.clear()
    w.bad = {"n0": "matrix product 0.3 GFLOP/s, others 10", "n4": ""}
    w._check_nodes(second)
    w.settle()
    assert failures(w)["n4"].startswith("failed check before t started: it did not end, with n1, proven good")
    assert w.state.checks["t"].paces[:3] == (9.0, 10.0, 9.0)


def test_the_next_master_asks_again_and_takes_the_answer_once():
    w = world()
    until_checked(w)
    w.crash_master()
    assert [(order.number, order.teams) for order in w.of(act.CheckNodes)] == [(1, (("n0", "n1", "n2"),))] * 2
    w.settle()
    assert w.state.phase is Phase.RUNNING
    assert not any(isinstance(a, act.CheckNodes) for a in reissue(w.state, w.now))


def test_a_round_whose_places_were_left_is_not_asked_again():
    w = world(3)
    until_checked(w)
    w.lose_node("n1")
    w.pending = [event for event in w.pending if isinstance(event, ev.NodesSeen)]
    w.settle()
    assert not any(isinstance(a, act.CheckNodes) for a in reissue(w.state, w.now))


def test_when_its_time_is_over_a_bad_node_is_checked_like_a_new_one():
    w = world(4, {"n1": ""}).boot()
    w.bad = {}
    w.send(ev.Tick(), after=limits.BAD_NODE_S + 1)
    assert not w.state.exclusions
    assert (w.state.checks["t"].bad, w.state.checks["t"].failures) == ((), ())
    w.lose_node("n2")
    w.settle()
    assert where(w) == {"n0", "n1", "n3"}
    assert w.of(act.CheckNodes)[-1].teams == (("n0", "n1"),)


def test_bad_nodes_known_from_other_roles_are_kept_when_the_exclusion_ends():
    first, second = ({"name": n, "type": "Elastic", "replicas": 2, "comm": {"preCheck": True}} for n in "tu")
    w = World(job(first, second), views=nodes(5, cpus=1))
    w.bad = {"n1": "no device"}
    settled(w.boot())
    w.send(ev.Tick(), after=limits.BAD_NODE_S + 1)
    assert not w.state.checks["t"].bad
    assert len(w.state.checks["u"].proven) == 2


def test_a_bad_node_that_freezes_is_still_bad_when_it_thaws():
    w = world(4, {"n1": ""}).boot()
    w.freeze_node("n1")
    w.settle()
    w.thaw_node("n1")
    w.settle()
    w.lose_node("n3")
    w.settle()
    assert w.state.exclusions["n1"].check
    assert "n1" not in where(w)
