"""Who replaces machines is told of nodes that were left, and of those that are gone, where the spec names somebody."""

from __future__ import annotations

from dataclasses import replace

from immutables import Map
from master_kit import World, job, nodes

from dljob.master.placement.nodes import leave_bad
from dljob.master.placement.reissue import reissue
from dljob.master.state import actions as ac
from dljob.master.state import events as ev
from dljob.master.state.state import Phase
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Outcome, Reason
from dljob.telemetry import reasons

ECC = {"name": "ecc", "onExitCodes": [77], "action": "ReplaceNode"}
BROKEN = Outcome(ok=False, reason=Reason.UNKNOWN, code=77)


def boot(count: int = 3, *, relauncher: str | None = "cloud", **policy: object) -> World:
    node = {**policy, **({"relauncher": relauncher} if relauncher else {})}
    made = job({"name": "w", "replicas": 2}, faultTolerance={"rules": [ECC], "node": node})
    return World(made, views=nodes(count, cpus=1)).boot()


def told(actions: object) -> list[tuple[str, str]]:
    return [(a.node, a.reason) for a in actions if isinstance(a, ac.RelaunchNode)]


def test_each_bad_node_is_told_of_once() -> None:
    world = boot(4)
    victim, other = world.state.units["w/0"].node, world.state.units["w/1"].node
    world.frozen[victim] = []
    assert told(world.send(ev.NodeFrozen(victim, 3.0))) == [(victim, "NodeFrozen")]
    assert told(world.send(ev.NodeFrozen(victim, 4.0))) == []
    world.settle()
    (note,) = world.notes(reasons.NODE_RELAUNCH)
    assert (note.target, note.message) == (f"node/{victim}", "cloud was asked to replace it")
    left = tuple(view for view in world.seen() if view.id not in (victim, other))
    assert told(world.send(ev.NodesSeen(left))) == [(other, "NodeLost")], "the frozen one was told of before"
    assert told(world.send(ev.NodesSeen(left))) == []


def test_a_node_that_a_rule_replaces_is_told_of_with_its_cause_and_labels() -> None:
    world = boot()
    victim = world.state.units["w/0"].node
    (view,) = [view for view in world.state.nodes if view.id == victim]
    actions = world.send(ev.RankEnded("w", 0, 1, BROKEN))
    (asked,) = [a for a in actions if isinstance(a, ac.RelaunchNode)]
    assert asked == ac.RelaunchNode(victim, "Unknown", "w/0: process gone with exit code 77, cause unknown; rule ecc",
                                    tuple(view.labels))  # fmt: skip


def test_a_node_that_failed_its_check_is_told_of() -> None:
    world = boot()
    d = StateTransaction(world.state, world.now)
    leave_bad(d, {world.state.units["w/0"].node: "memory: 1 MiB free"})
    (asked,) = [a for a in d.actions if isinstance(a, ac.RelaunchNode)]
    assert (asked.reason, asked.explanation) == ("CheckFailed", "failed check memory: 1 MiB free")


def test_nobody_is_told_where_nobody_is_named_nor_of_nodes_that_held_nothing() -> None:
    world = boot(relauncher=None)
    victim = world.state.units["w/0"].node
    assert told(world.send(ev.NodeFrozen(victim, 3.0))) == []
    assert told(reissue(world.state, world.now)) == []
    named = boot()
    held = {unit.node for unit in named.state.units.values()}
    assert told(named.send(ev.NodesSeen(tuple(v for v in named.seen() if v.id in held)))) == []


def test_a_job_that_ends_has_no_node_replaced() -> None:
    world = boot()
    world.send(ev.Commanded("c", "stop"))
    assert told(world.send(ev.NodesSeen(()))) == []


def test_a_new_master_tells_again_of_what_is_excluded() -> None:
    world = boot()
    victim = world.state.units["w/0"].node
    world.send(ev.NodeFrozen(victim, 3.0))
    assert told(reissue(world.state, world.now)) == [(victim, "NodeFrozen")]
    left = tuple(view for view in world.seen() if view.id != victim)
    world.send(ev.NodesSeen(left))
    (again,) = [a for a in reissue(world.state, world.now) if isinstance(a, ac.RelaunchNode)]
    assert again.labels == (), "it is not there any more"


def test_a_new_master_repeats_the_words_of_the_request() -> None:
    world = boot()
    actions = world.send(ev.RankEnded("w", 0, 1, BROKEN))
    asked = [a for a in actions if isinstance(a, ac.RelaunchNode)]
    assert [a for a in reissue(world.state, world.now) if isinstance(a, ac.RelaunchNode)] == asked != []


def test_a_new_master_has_no_node_replaced_that_failed_less_often_than_the_policy_says() -> None:
    world = boot(maxFailures=2)
    victim = world.state.units["w/0"].node
    assert told(world.send(ev.NodeFrozen(victim, 3.0))) == []
    assert victim in world.state.exclusions
    assert told(reissue(world.state, world.now)) == []
    world.send(ev.NodeThawed(victim))
    assert told(world.send(ev.NodeFrozen(victim, 3.0))) == [(victim, "NodeFrozen")]
    assert told(reissue(world.state, world.now)) == [(victim, "NodeFrozen")]


def test_an_error_of_the_relauncher_is_noted_and_the_job_goes_on() -> None:
    world = boot()
    world.send(ev.RelaunchTold("n9", "the relauncher 'cloud' failed: OSError: no quota"))
    (note,) = world.notes(reasons.NODE_RELAUNCH_FAILED)
    assert note.message.endswith("no quota")
    assert world.state.phase is Phase.RUNNING
    assert world.state.restarts == Map()


def test_a_node_that_was_announced_to_go_is_not_told_of() -> None:
    world = boot(2)
    victim = world.state.units["w/0"].node
    world.send(ev.NodesSeen(tuple(replace(v, leaving=0.0) if v.id == victim else v for v in world.seen())))
    assert victim in world.state.departures
    left = tuple(view for view in world.seen() if view.id != victim)
    assert told(world.send(ev.NodesSeen(left))) == []
