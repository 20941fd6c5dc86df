"""Nodes that freeze, thaw, and are replaced by a rule: what moves, what is excluded, and until when."""

from __future__ import annotations

from dataclasses import replace

from immutables import Map
from master_kit import World, error, host, job, nodes

from dljob.master import status
from dljob.master.placement.nodes import leave_by_rule
from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state import limits, silence
from dljob.master.state.faults import Failure
from dljob.master.state.node_names import in_words, node_title
from dljob.master.state.state import Phase, UnitPhase
from dljob.master.state.transaction import NodeDeparture, StateTransaction
from dljob.master.state.views import Clue, Outcome, Reason
from dljob.master.transition import next_wake
from dljob.plan.labels import NODE_NAME
from dljob.spec.policy import NodePolicy
from dljob.telemetry import reasons

LEASE = 30


def boot(count=3, role=None, *, own_nodes=False, **fault_tolerance):
    made = job({"name": "w", "replicas": 2, **(role or {})}, faultTolerance=fault_tolerance)
    world = World(made, views=nodes(count, cpus=1), own_nodes=own_nodes).boot()
    world.send(ev.NodesSeen(world.seen()))
    return world


def freeze(world, unit="w/0"):
    node = world.state.units[unit].node
    world.freeze_node(node)
    world.settle()
    return node


def test_ranks_of_a_frozen_node_start_elsewhere_and_nothing_else_is_touched():
    world = boot()
    seen = len(world.all_actions)
    victim = freeze(world)
    assert world.state.units["w/0"].node not in ("", victim)
    assert [a.host.index for a in world.of(act.SpawnHost, seen)] == [0]
    assert [a.host.index for a in world.of(act.KillHost, seen)] == [0], "who wakes up is known no more"
    (start,) = world.of(act.StartRanks, seen)
    assert start.ranks[0].restart_reason == "NodeFrozen"
    assert start.ranks[0].incarnation == 2
    assert world.state.ranks["w", 1].incarnation == 1
    assert world.state.restarts == Map({"Node": 1, "Process": 1})
    assert world.state.phase is Phase.RUNNING
    (note,) = world.notes(reasons.NODE_FROZEN)
    assert (note.target, note.message) == (f"node/{victim}", f"node {victim} has not answered for 3.0 s")


def test_a_node_is_frozen_once_until_it_thaws():
    world = boot()
    victim = freeze(world)
    before = world.state
    assert world.send(ev.NodeFrozen(victim, 9.0)) == ()
    assert world.send(ev.NodeFrozen("nobody", 9.0)) == ()
    assert world.send(ev.NodeThawed("nobody")) == ()
    assert world.state is before
    world.thaw_node(victim)
    world.settle()
    assert world.send(ev.NodeThawed(victim)) == ()
    assert world.notes(reasons.NODE_RECOVERED)


def test_a_silent_part_is_an_open_fault_until_it_answers_and_restarts_nothing():
    world = boot()
    seen, why = len(world.all_actions), "its raylet (pid 7) is stopped (state T)"
    node = world.state.units["w/0"].node
    for target in (f"node/{node}", "head"):
        world.send(ev.PartSilent(target, 3.0, why))
        world.send(ev.PartSilent(target, 9.0, why))
    assert [fault.target for fault in world.state.faults] == [f"node/{node}", "head"], "each once"
    shown = status.status(world.state, world.now, {})["lastFault"]
    assert (shown["level"], shown["firstCause"]) == ("Wait", f"head: PartSilent: no answer for 3.0 s: {why}")
    assert world.state.faults[0].cause.partition(": ")[2] == f"NodeFrozen: no answer for 3.0 s: {why}"
    assert not shown["recoveredAt"]
    world.send(ev.PartAnswers("head"), after=2.0)
    world.send(ev.PartAnswers("head"))
    assert status.status(world.state, world.now, {})["lastFault"]["seconds"] == 5.0
    (note,) = world.notes(reasons.NODE_RECOVERED)
    assert (note.target, note.message) == ("head", "it answers again, after 5.0 s")
    assert world.state.faults[0].recovered_at is None
    assert not [each for each in world.all_actions[seen:] if not isinstance(each, act.Note)]


def test_a_silence_ends_with_the_loss_or_the_freeze_that_follows_it():
    world = boot(3)
    first, second = (world.state.units[unit].node for unit in ("w/0", "w/1"))
    for node in (first, second):
        world.send(ev.PartSilent(f"node/{node}", 15.0))
    world.send(ev.NodeFrozen(first, 30.0, "its raylet (pid 7) is stopped (state T)"))
    assert "has not answered for 30.0 s: its raylet (pid 7)" in world.notes(reasons.NODE_FROZEN)[0].message
    world.send(ev.PartSilent(f"node/{first}", 31.0))
    world.lose_node(second)
    world.settle()
    assert [fault.recovered_at is None for fault in world.state.faults if fault.level == "Wait"] == [False, False]


POD = "train-workers-x7k2"


def on_pods(world):
    """Let each node be a pod; return Ray's id of that of w/0, whose pod is POD."""
    victim = world.state.units["w/0"].node
    world.views = tuple(
        replace(view, pod=POD if view.id == victim else f"train-workers-{view.id}") for view in world.views
    )
    world.send(ev.NodesSeen(world.seen()))
    return victim


def shown_texts(world):
    """Return all that users see: notes, and the status."""
    notes = [f"{note.target}: {note.message}" for note in world.all_actions if isinstance(note, act.Note)]
    snapshot = status.status(world.state, world.now, {})
    faults = [text for fault in snapshot["recentFaults"] for text in (fault["target"], fault["firstCause"])]
    return [*notes, *faults, *(unit["nodeName"] for unit in snapshot["units"] if unit["node"])]


def test_a_node_that_is_a_pod_is_called_by_the_pods_name_also_long_after_it_is_gone():
    world = boot(3)
    victim = on_pods(world)
    world.send(ev.PartSilent(f"node/{victim}", 15.0))
    world.send(ev.PartAnswers(f"node/{victim}"))
    world.send(ev.PartSilent(f"node/{victim}", 15.0))
    freeze(world)
    assert not any(fault.level == "Wait" and fault.recovered_at is None for fault in world.state.faults)
    world.lose_node(victim)
    world.settle()
    world.send(ev.Tick(), after=1e6)
    texts = shown_texts(world)
    assert f"pod/{POD}: pod {POD} has not answered for 3.0 s" in texts
    assert f"pod/{POD}: NodeFrozen: no answer for 15.0 s" in texts
    assert [text.partition(": ")[0] for text in texts if "its exclusion ended" in text] == [f"pod/{POD}"]
    assert not any(f"{victim} " in text or f"/{victim}" in text for text in texts)


def test_pods_that_are_lost_with_their_units_are_named_in_the_cause():
    world = boot(3)
    victim = on_pods(world)
    other = world.state.units["w/1"].node
    world.send(ev.NodesSeen(tuple(view for view in world.seen() if view.id not in (victim, other))))
    assert world.state.faults[0].cause.endswith(f"pod train-workers-{other}, {POD} is gone from Ray")
    (note,) = world.notes(reasons.NODE_LOST)
    assert note.message == f"lost: pod train-workers-{other}, {POD}"


def test_a_node_of_an_embedded_ray_is_called_by_its_name_in_the_plan():
    world = boot(3)
    victim = world.state.units["w/0"].node
    world.views = tuple(
        replace(view, labels=(*view.labels, (NODE_NAME, f"cpu2-{view.id[1:]}"))) for view in world.views
    )
    world.send(ev.NodesSeen(world.seen()))
    world.send(ev.NodeFrozen(victim, 3.0))
    (note,) = world.notes(reasons.NODE_FROZEN)
    name = f"cpu2-{victim[1:]}"
    assert (note.target, note.message) == (f"node/{name}", f"node {name} has not answered for 3.0 s")


def test_nodes_that_nobody_has_named_are_called_by_rays_id_beside_pods():
    state = boot(3).state
    assert node_title(state, "c0ffee") == "node c0ffee"
    assert in_words(("pod/b", "node/n", "pod/a")) == "node n, pod a, b"


def test_the_end_of_a_raylet_that_its_parent_saw_is_told_with_the_loss_of_its_node():
    world, words = boot(3), "the raylet (pid 7242) of cpu2-0 was ended by SIGKILL from outside"
    node = world.state.units["w/0"].node
    world.send(ev.CauseLearned(f"node/{node}", (Clue("node", words),)))
    world.lose_node(node)
    world.settle()
    assert (world.state.faults[0].reason, words in world.state.faults[0].cause) == ("NodeLost", True)


def test_a_raylet_that_was_stopped_for_a_time_explains_no_later_end_of_a_rank():
    world = boot(3)
    target = f"node/{world.state.units['w/0'].node}"
    world.send(ev.CauseLearned(target, (Clue("node", "the raylet (pid 7) of cpu2-0 is stopped (state T)"),)))
    world.send(ev.PartSilent(target, 3.0))
    world.send(ev.PartAnswers(target), after=2.0)
    world.kill("w", 0, Outcome(ok=False, reason=Reason.KILLED, code=137))
    world.settle()
    assert world.state.faults[-1].reason == "Killed"


def test_a_policy_that_ignores_frozen_nodes_leaves_everything_as_it_is():
    world = boot(node={"action": "Ignore"})
    before = world.state
    victim = world.state.units["w/0"].node
    assert world.send(ev.NodeFrozen(victim, 9.0)) == ()
    assert world.state is before


def test_spares_on_a_frozen_node_are_ended_and_their_lives_are_not_used_again():
    world = boot(spares={"processesPerNode": 1}, node={"excludeSeconds": 100})
    victim = freeze(world)
    (kill,) = world.of(act.KillSpare)
    assert (kill.node, kill.incarnation) == (victim, 1)
    assert {spare.incarnation for (_, node, _), spare in world.state.spares.items() if node == victim} == {1}
    assert not any(spare.phase.alive for (_, node, _), spare in world.state.spares.items() if node == victim)
    world.send(ev.NodesSeen(tuple(node for node in world.state.nodes if node.id != victim)))
    assert victim not in {node for _, node, _ in world.state.spares}


def test_a_thawed_node_is_excluded_for_its_time_and_then_holds_units_again():
    world = boot(3, node={"excludeSeconds": 100}, spares={"processesPerNode": 1})
    victim = freeze(world)
    world.thaw_node(victim)
    world.settle()
    world.send(ev.Tick(), after=LEASE)
    assert victim in world.state.exclusions
    world.tick()
    assert world.now == world.start + 100
    assert not world.state.exclusions
    world.lose_node(world.state.units["w/0"].node)
    world.settle()
    assert world.state.units["w/0"].node == victim
    world.tick()
    world.settle()
    assert world.state.spares["w", victim, 0].incarnation == 2  # a former spare there was the first


def test_the_exclusion_of_a_silent_node_has_no_end():
    world = boot(3, node={"excludeSeconds": 0})
    victim = freeze(world)
    world.tick()
    assert world.state.exclusions[victim].fence is None
    assert next_wake(world.state) is None
    world.send(ev.Tick(), after=10 * LEASE)
    assert world.state.exclusions[victim].silent
    world.thaw_node(victim)
    world.settle()
    world.tick()
    assert not world.state.exclusions
    assert "its exclusion ended after" in world.notes(reasons.NODE_READMITTED)[0].message


def test_no_exclusion_is_shorter_than_the_lease():
    world = boot(3, node={"excludeSeconds": 0})
    victim = freeze(world)
    world.thaw_node(victim)
    world.settle()
    world.send(ev.Tick(), after=LEASE - 1)
    assert victim in world.state.exclusions
    world.tick()
    assert victim not in world.state.exclusions


def test_a_node_that_answers_is_taken_back_after_the_lease_when_nothing_else_is_left():
    world = boot(2)
    victim = freeze(world)
    assert world.state.units["w/0"].phase is UnitPhase.LOST
    world.thaw_node(victim)
    world.settle()
    assert world.state.units["w/0"].phase is UnitPhase.LOST
    world.tick()
    assert world.now == world.start + LEASE
    world.settle()
    assert world.state.units["w/0"].node == victim
    assert world.state.phase is Phase.RUNNING
    assert world.notes(reasons.NODE_READMITTED)[0].message == "no other node has room for units that need one"


def test_a_node_that_answers_when_its_lease_is_long_over_is_taken_back_at_once_when_nothing_else_is_left():
    world = boot(2)
    victim = freeze(world)
    world.send(ev.Tick(), after=LEASE + 5)
    assert world.state.units["w/0"].phase is UnitPhase.LOST
    world.send(ev.NodesSeen(world.seen()))
    world.thaw_node(victim)
    world.pending.pop()  # nothing that a look at the nodes could tell is another than before
    world.settle()
    assert world.state.units["w/0"].node == victim
    assert world.state.phase is Phase.RUNNING


def test_where_nodes_are_made_for_the_job_a_new_one_is_waited_for_first():
    world = boot(2, own_nodes=True)
    victim = freeze(world)
    world.thaw_node(victim)
    world.settle()
    world.send(ev.Tick(), after=LEASE)
    assert world.state.units["w/0"].phase is UnitPhase.LOST
    while world.state.units["w/0"].phase is UnitPhase.LOST:
        world.tick()
    assert world.now == world.start + world.spec.fault_tolerance.node.pending_timeout_seconds
    world.settle()
    assert world.state.phase is Phase.RUNNING
    assert world.state.search.deadline is None


def test_a_frozen_node_that_never_comes_back_fails_the_job_in_time():
    world = boot(2, node={"pendingTimeoutSeconds": 60})
    freeze(world)
    while world.state.verdict is None:
        world.tick()
    assert world.now == world.start + 60
    assert world.state.verdict.reason == reasons.NO_ROOM_FOR_LOST_UNITS


def test_a_frozen_node_that_the_cluster_gives_up_is_excluded_for_its_time_only():
    world = boot(3, node={"excludeSeconds": 100})
    victim = freeze(world)
    restarts = world.state.restarts
    world.lose_node(victim)
    world.settle()
    assert world.state.restarts == restarts
    assert not world.state.exclusions[victim].silent
    world.send(ev.Tick(), after=100)
    assert not world.state.exclusions


def test_a_node_that_freezes_before_the_gang_is_held_gets_no_unit_of_it():
    made = job({"name": "w", "replicas": 2})
    world = World(made, views=nodes(3, cpus=1))
    world.send(ev.MasterStarted(1))
    world.send(ev.NodesSeen(world.seen()))
    victim = world.state.units["w/0"].node
    world.frozen[victim] = []
    world.send(ev.NodeFrozen(victim, 3.0))
    assert world.state.phase is Phase.PENDING
    world.settle()
    world.tick()
    world.settle()
    assert world.state.phase is Phase.RUNNING
    assert victim not in {unit.node for unit in world.state.units.values()}


def test_a_node_that_freezes_when_the_job_ends_changes_nothing():
    world = boot()
    victim = world.state.units["w/0"].node
    world.send(ev.Commanded("c", "stop"))
    assert world.send(ev.NodeFrozen(victim, 3.0)) == ()


ECC = {"name": "ecc", "onExitCodes": [77], "action": "ReplaceNode"}
BROKEN = Outcome(ok=False, reason=Reason.UNKNOWN, code=77)


def test_a_rule_replaces_the_node_with_all_that_lives_there():
    made = job(
        {"name": "a", "replicas": 2},
        {"name": "b", "restartPolicy": {"level": "Never"}},
        collocations=[{"name": "both", "roles": ["a", "b"], "level": "Host"}],
        faultTolerance={"rules": [ECC]},
    )
    world = World(made, views=nodes(3, cpus=2)).boot()
    victim = world.state.units["both/0"].node
    world.end("a", 0, BROKEN)
    world.settle()
    assert world.state.phase is Phase.RUNNING
    assert world.state.units["both/0"].node not in ("", victim)
    assert [world.state.ranks[key].incarnation for key in (("a", 0), ("b", 0), ("a", 1))] == [2, 2, 1]
    assert world.state.restarts == Map({"Node": 1, "Process": 2})
    (note,) = world.notes(reasons.NODE_REPLACED)
    assert note.message == "a/0: process gone with exit code 77, cause unknown; rule ecc"
    assert world.state.exclusions[victim].reason == "Unknown"


LEAVE = [{"name": "leave", "onReasons": ["DeviceError"], "action": "ReplaceNode"}]
XID = Clue("kernel", "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")


def shared_node(*, t=None, **b):
    """Return a job whose two roles have two ranks each on one node, after the second rank of one failed there."""
    both = [{"name": "both", "roles": ["b", "t"], "level": "Host"}]
    of_t, of_b = {"name": "t", "replicas": 2, **(t or {})}, {"name": "b", "replicas": 2, **b}
    made = job(of_b, of_t, collocations=both, faultTolerance={"rules": LEAVE, "maxRestarts": 0})
    world = World(made, views=nodes(3, cpus=4)).boot()
    world.end("t", 1, error("RuntimeError", frame="t.py:3 in step", message="CUDA error: uncorrectable ECC error"))
    world.deliver()
    return world


def test_a_replaced_node_is_put_down_to_the_rank_that_failed_with_its_evidence():
    world = shared_node()
    first, second = world.state.faults
    words = "t/1: DeviceError: RuntimeError: CUDA error: uncorrectable ECC error (at t.py:3 in step)"
    assert (first.target, first.rank, first.incarnation, first.cause) == ("t/1", "t/1", 1, words)
    assert (first.outcome.frame, first.node != "") == ("t.py:3 in step", True)
    assert (second.target, second.rank, second.cause, second.root_number) == ("b/0", "", words, first.id)
    world.send(ev.CauseLearned("t/1", (XID,)))
    told = status.brief(world.state, world.now, {})["lastFault"]
    assert (told["rank"], told["firstCause"], told["evidence"]) == ("t/1", words, [f"kernel: {XID.text}"])
    world.settle()
    assert world.state.restarts == Map({"Node": 1, "Process": 2})
    assert None not in {fault.recovered_at for fault in world.state.faults}


def test_a_replaced_node_whose_other_role_has_no_restarts_left_names_the_rank_that_failed():
    world = shared_node(restartPolicy={"maxRestarts": 0})
    first, last = world.state.faults
    assert (first.rank, last.level, last.target, last.rank, last.root_number) == (
        "t/1",
        "Fail",
        "t/1",
        "",
        first.id,
    )
    assert world.state.verdict.message.startswith("t/1: DeviceError")
    assert "b may not restart: maxRestarts is 0" in world.state.verdict.message


def test_a_replaced_node_of_a_role_without_restarts_left_ends_the_job_and_restarts_no_other_role():
    world = shared_node(t={"restartPolicy": {"maxRestarts": 0}})
    (fault,) = world.state.faults
    assert (fault.rank, fault.level, fault.target) == ("t/1", "Fail", "t/1")
    assert "t may not restart: maxRestarts is 0" in world.state.verdict.message


def test_a_lost_store_is_named_also_where_a_rule_replaces_the_node_of_its_world():
    rules = [{"name": "leave", "onReasons": ["Unknown"], "action": "ReplaceNode"}]
    made = job({"name": "t", "type": "Elastic", "replicas": 2}, faultTolerance={"rules": rules})
    world = World(made, views=nodes(4, cpus=1)).boot()
    world.kill_host(host("t", -1))
    world.settle()
    (fault,) = world.state.faults
    assert (fault.rank, fault.cause) == ("t/0", "t/store: process gone, cause unknown")
    assert world.state.restarts["Node"] == 1


def test_a_replaced_node_is_better_than_none():
    world = boot(2, rules=[ECC])
    victim = world.state.units["w/0"].node
    world.end("w", 0, BROKEN)
    world.settle()
    world.send(ev.NodesSeen(world.seen()))
    world.settle()
    assert world.state.units["w/0"].node == victim
    assert world.state.phase is Phase.RUNNING
    assert not world.state.exclusions


def test_a_rule_for_lost_nodes_restarts_what_is_being_moved_already():
    world = boot(3, rules=[{"name": "r", "onReasons": ["NodeFrozen"], "action": "ReplaceNode"}])
    freeze(world)
    assert world.state.restarts == Map({"Node": 1, "Process": 1})
    assert not world.notes(reasons.NODE_REPLACED)


def test_replacements_that_do_not_count_leave_the_budget_alone():
    world = boot(5, {"restartPolicy": {"maxRestarts": 0}}, rules=[{**ECC, "countsTowardsLimit": False}])
    world.end("w", 0, BROKEN)
    world.settle()
    assert world.state.restarts == Map({"Node": 1, "Process": 1})
    assert "w" not in world.state.marks


def test_a_rule_without_attempts_left_restarts_the_job():
    world = boot(5, rules=[{**ECC, "maxAttempts": 1}])
    for _ in range(2):
        world.end("w", 0, BROKEN)
        world.settle()
    assert world.state.restarts == Map({"Node": 1, "Process": 1, "Job": 1})


def test_two_bad_nodes_at_once_are_both_replaced():
    both = {"name": "all", "onReasons": ["NodeLost"], "action": "Fail"}
    world = boot(4, rules=[ECC, both])
    world.end("w", 0, BROKEN)
    world.end("w", 1, BROKEN)
    world.settle()
    world.tick()
    world.settle()
    assert world.state.replaced == 2
    assert world.state.phase is Phase.RUNNING


def test_the_status_names_the_excluded_nodes_the_newest_last():
    world = boot(5)
    first = freeze(world)
    world.now += 1.5
    second = freeze(world)
    seen = status.status(world.state, world.now, {})["nodes"]
    planned = sum(group.replicas for group in world.plan.node_groups.values())
    assert (seen["desired"], seen["ready"], seen["replaced"]) == (planned, 3, 2)
    assert [row["name"] for row in seen["excluded"]] == [first, second]
    assert seen["excluded"][1] == {
        "name": second,
        "reason": "NodeFrozen",
        "since": "1970-01-01T00:16:41.500Z",
        "until": "1970-01-02T00:16:41.500Z",
    }
    assert status.brief(world.state, world.now, {})["nodes"] == seen


def test_a_job_on_a_cluster_that_is_there_wants_the_nodes_that_it_finds():
    made = job({"name": "w"}, rayClusterRef={"name": "c"})
    world = World(made, views=(*nodes(2), replace(nodes(3)[2], head=True))).boot()
    assert status.status(world.state, world.now, {})["nodes"]["desired"] == 2


POLICY = NodePolicy()


def test_a_node_is_frozen_when_it_is_silent_for_too_long():
    assert silence.frozen_nodes({"a": 2.9, "b": 0.0, "c": 0.4}, POLICY) == ({}, "")
    assert silence.frozen_nodes({"a": 3.0, "b": 0.0, "c": 0.4}, POLICY) == ({"a": 3.0}, "")
    assert silence.frozen_nodes({"a": 3.0}, POLICY) == ({}, "1 of 1 node is silent; 1 may be for 30 s"), (
        "nothing else tells"
    )
    assert silence.frozen_nodes({"a": 30.0}, POLICY) == ({"a": 30.0}, "")
    assert silence.frozen_nodes({}, POLICY) == ({}, "")
    assert silence.frozen_nodes({"a": 27.9, "b": 0.0, "c": 14.0}, POLICY, 14.0) == ({}, ""), "it was asked only once"
    assert silence.frozen_nodes({"a": 28.0, "b": 0.0, "c": 14.0}, POLICY, 14.0) == ({"a": 28.0}, "")


def test_most_nodes_silent_at_once_are_waited_for():
    assert silence.frozen_nodes({"a": 3.0, "b": 3.0, "c": 0.0}, POLICY) == (
        {},
        "2 of 3 nodes are silent; 2 may be for 30 s",
    )
    assert silence.frozen_nodes({"a": 3.0, "b": 30.0, "c": 0.0}, POLICY)[0] == {"b": 30.0}
    assert silence.frozen_nodes({"a": 31.0, "b": 30.0, "c": 0.0}, POLICY) == ({"a": 31.0, "b": 30.0}, "")
    assert silence.frozen_nodes({"a": 3.0, "b": 3.0, "c": 0.0, "d": 0.0}, POLICY)[0] == {"a": 3.0, "b": 3.0}, (
        "half is not most"
    )


def test_an_end_in_the_middle_of_two_replacements_is_the_end():
    world = boot(2, {"restartPolicy": {"maxRestarts": 0}}, rules=[ECC], maxRestarts=0)
    d = StateTransaction(world.state, world.now)
    broken = Failure("w", 0, 1, "n0", BROKEN, reports_lost_peer=False, ended_by_master=False)
    d.node_departures = dict.fromkeys(("n0", "n1"), NodeDeparture(broken, "w/0", "broken", uses_budget=True))
    leave_by_rule(d)
    assert d.verdict is not None
    assert set(d.exclusions) == {"n0"}


def test_spares_that_are_no_more_are_forgotten_with_their_node():
    world = boot(spares={"processesPerNode": 1})
    victim = world.state.units["w/0"].node
    for _ in range(limits.SPARE_FAILURES + 1):
        spare = world.state.spares["w", victim, 0]
        world.send(ev.SpareLost("w", victim, 0, spare.incarnation))
        world.pending.clear()
    world.spares.clear()
    freeze(world)
    assert not [kill for kill in world.of(act.KillSpare) if kill.node == victim]
