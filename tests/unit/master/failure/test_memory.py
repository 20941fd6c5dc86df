"""Ranks that were ended for want of memory come back with more, where nodes have it and up to what the spec allows."""

from __future__ import annotations

import json

import pytest
from master_kit import UID, World, error, job

from dljob.master.persistence.codec import decode_state, encode_state
from dljob.master.placement.previous_attempt import carried
from dljob.master.placement.reissue import reissue
from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state import limits, memory_overrides
from dljob.master.state.state import Phase, RankPhase, UnitPhase
from dljob.master.state.views import Clue, NodeView, Outcome, Reason
from dljob.master.status import brief, status
from dljob.plan.model import GRAIN
from dljob.telemetry import reasons

GI = 2**30 * GRAIN
KERNEL = Clue("kernel", "Memory cgroup out of memory: Killed process 7 (python) total-vm:1kB")
KILLED = Outcome(ok=False, reason=Reason.UNKNOWN, code=137)
OOM = Outcome(ok=False, reason=Reason.UNKNOWN, code=137, clues=(KERNEL,))
GROWS = {"outOfMemory": {"maxMemory": "8Gi"}}


def role(name="w", memory="4Gi", policy=GROWS, **more):
    return {"name": name, "resources": {"cpu": "1", "memory": memory}, "restartPolicy": policy, **more}


def views(count, gib=64, cpus=8):
    total = (("CPU", cpus * GRAIN), ("memory", gib * GI))
    return tuple(NodeView(f"n{i}", total, total, (("dljob.io/node-group", "any"),)) for i in range(count))


def boot(*roles, count=2, gib=64, **spec):
    world = World(job(*(roles or (role(replicas=2),)), **spec), views=views(count, gib)).boot()
    look(world)
    return world


def look(world):
    world.send(ev.NodesSeen(world.seen()))


def demand(world, unit="w/0"):
    """What the unit's reservation holds of memory, in GiB."""
    unit_state = world.state.units[unit]
    assert unit_state.phase is UnitPhase.HELD
    larger_unit = memory_overrides.unit_with_memory(world.plan, unit, world.granted[unit, unit_state.token])
    return dict(larger_unit.demand)["memory"] / GI


def test_the_unit_of_a_rank_that_ran_out_of_memory_is_reserved_anew_with_more():
    world = boot()
    before = world.state.units["w/0"]
    world.kill("w", 0, OOM)
    actions = world.deliver()
    ordered = [a for a in actions if isinstance(a, act.Reserve | act.Unreserve)]
    assert ordered == [
        act.Unreserve("w/0", before.token),
        act.Reserve("w/0", before.token + 1, before.node, limits.RESERVE_S, (("w", 6 * GI),)),
    ], "where it was, since that node has room"
    world.settle()
    assert (demand(world), demand(world, "w/1")) == (6, 4)
    assert world.state.ranks["w", 0].incarnation == 2
    assert world.state.ranks["w", 1].incarnation == 1
    assert world.state.phase is Phase.RUNNING
    assert dict(world.state.restarts) == {"Process": 1}
    (note,) = world.notes(reasons.MEMORY_RAISED)
    assert (note.target, note.message) == ("w/0", "memory 4Gi -> 6Gi of at most 8Gi after OOMKilled of w/0")
    world.crash_master()


def test_memory_grows_up_to_max_memory_and_stays_there():
    world = boot()
    for expected in (6, 8, 8):
        world.kill("w", 0, OOM)
        world.settle()
        while world.state.phase is not Phase.RUNNING:
            world.tick()
            world.settle()
        look(world)
        assert demand(world) == expected
    (note,) = world.notes(reasons.MEMORY_INCREASE_SKIPPED)
    assert note.message == "memory stays 8Gi after OOMKilled: it is at maxMemory"
    assert dict(world.state.restarts) == {"Process": 3}


def test_an_exception_of_a_device_or_of_the_rank_itself_raises_nothing():
    world = boot()
    for step, (kind, words) in enumerate((("OutOfMemoryError", "CUDA out of memory."), ("MemoryError", "no room"))):
        world.end("w", 0, error(kind, message=words, step=step))
        world.settle()
        while world.state.phase is not Phase.RUNNING:
            world.tick()
            world.settle()
        assert world.state.faults[-1].reason == "UserError"
    assert demand(world) == 4
    assert not [
        note for note in world.notes() if note.reason in (reasons.MEMORY_RAISED, reasons.MEMORY_INCREASE_SKIPPED)
    ]


@pytest.mark.parametrize("role_spec", [role(policy={}), role(policy={}, memory=None)])
def test_a_rank_without_the_policy_restarts_with_the_memory_it_had(role_spec):
    world = boot(role_spec)
    before = world.state.units["w/0"]
    world.kill("w", 0, OOM)
    world.settle()
    assert world.state.faults[-1].reason == "OOMKilled"
    assert world.state.units["w/0"] == before
    assert world.state.memory_overrides == memory_overrides.MemoryOverrides()


def test_memory_grows_by_the_factor_in_whole_mebibytes():
    world = boot(role(memory="1000Mi", policy={"outOfMemory": {"memoryFactor": "1.33", "maxMemory": "2000000001"}}))
    for amount in (1330, 1769):
        world.kill("w", 0, OOM)
        world.settle()
        while world.state.phase is not Phase.RUNNING:
            world.tick()
            world.settle()
        assert demand(world) == amount / 1024
    world.kill("w", 0, OOM)
    world.settle()
    assert world.notes(reasons.MEMORY_RAISED)[-1].message.startswith(
        "memory 1769Mi -> 2000000001 of at most 2000000001"
    )


def test_a_unit_with_more_memory_goes_to_a_node_with_room():
    world = boot(role(), role("x", memory="5Gi"), gib=10, count=2)
    present_node, next_node = world.state.units["w/0"].node, {"n0": "n1", "n1": "n0"}[world.state.units["w/0"].node]
    assert world.state.units["x/0"].node == present_node, "4 + 5 GiB of 10"
    world.kill("w", 0, OOM)
    world.settle()
    assert world.state.units["w/0"].node == next_node
    assert demand(world) == 6


def test_without_a_node_with_room_the_rank_keeps_its_memory_and_a_note_says_so():
    world = boot(gib=9, count=1)
    before = world.state.units["w/0"]
    world.kill("w", 0, OOM)
    world.settle()
    assert world.state.units["w/0"] == before
    assert world.state.ranks["w", 0].incarnation == 2
    (note,) = world.notes(reasons.MEMORY_INCREASE_SKIPPED)
    assert note.message.startswith(
        "memory 4Gi -> 6Gi of at most 8Gi after OOMKilled of w/0: it goes on with 4Gi, there is no room: "
    )
    assert dict(world.state.memory_overrides.requested) == {"w": 6 * GI}, "the next attempt shall have it"


def test_a_unit_with_more_memory_goes_to_no_excluded_node():
    world = boot(role(), role("x"), count=2, gib=9)
    before = world.state.units["w/0"]
    other_node = next(view.id for view in world.views if view.id != before.node)
    world.freeze_node(other_node)
    world.settle()
    world.thaw_node(other_node)
    world.settle()
    world.kill("w", 0, OOM)
    world.settle()
    assert world.state.units["w/0"] == before
    assert "there is no room" in world.notes(reasons.MEMORY_INCREASE_SKIPPED)[-1].message


def test_a_unit_that_could_not_be_had_with_more_is_asked_for_as_it_was():
    world = boot()
    world.kill("w", 0, OOM)
    world.deliver()
    unit = world.state.units["w/0"]
    world.pending.clear()
    world.held["w/0"].pop(unit.token)
    world.send(ev.UnitRefused("w/0", unit.token, "there is less than it said"))
    (note,) = world.notes(reasons.MEMORY_INCREASE_SKIPPED)
    assert note.message == "it is reserved with the spec's memory instead: there is less than it said"
    world.tick()
    world.settle()
    assert demand(world) == 4
    assert world.state.phase is Phase.RUNNING
    # and one that had no more than the spec says is refused as ever
    world.lose_node(world.state.units["w/0"].node)
    world.deliver()
    unit = world.state.units["w/0"]
    world.send(ev.UnitRefused("w/0", unit.token, "gone"))
    assert len(world.notes(reasons.MEMORY_INCREASE_SKIPPED)) == 1


def test_a_unit_that_loses_its_node_keeps_what_it_had_if_that_fits_elsewhere():
    world = boot(role(), count=2, gib=7)
    world.kill("w", 0, OOM)
    world.settle()
    world.lose_node(world.state.units["w/0"].node)
    world.settle()
    assert demand(world) == 6
    world.add_node(views(3, gib=5)[2])
    world.settle()
    world.lose_node(world.state.units["w/0"].node)
    world.settle()
    assert demand(world) == 4, "less is better than nowhere"
    assert "no room for more memory than the spec says" in world.notes(reasons.MEMORY_INCREASE_SKIPPED)[-1].message


def test_a_unit_that_fits_nowhere_waits_for_a_node_with_room_for_all_of_it():
    world = boot(role(), count=1, gib=7)
    world.kill("w", 0, OOM)
    world.settle()
    world.views = ()
    world.lose_node("n0")
    world.settle()
    assert world.state.units["w/0"].phase is UnitPhase.LOST
    world.add_node(views(2, gib=6)[1])
    world.settle()
    assert demand(world) == 6


def test_a_memory_kill_reported_after_the_restart_raises_memory_and_uses_up_no_budget():
    world = boot(role(replicas=2, policy={**GROWS, "maxRestarts": 1}))
    world.kill("w", 0, KILLED)
    world.settle()
    assert world.state.ranks["w", 0].phase is RankPhase.READY
    world.send(ev.CauseLearned("w/0", (KERNEL,), 1))
    assert world.notes(reasons.MEMORY_RAISED)
    world.settle()
    assert demand(world) == 6
    assert world.state.ranks["w", 0].incarnation == 3
    assert world.state.phase is Phase.RUNNING
    assert [fault.cause for fault in world.state.faults][-1] == "w/0 restarts with more memory"
    last = status(world.state, world.now, {})["lastFault"]
    assert last["firstCause"].startswith("w/0: OOMKilled: "), "users want the kill, not what followed from it"
    assert (last["rank"], last["incarnation"], bool(last["evidence"])) == ("w/0", 1, True)
    world.send(ev.CauseLearned("w/0", (Clue("kernel", "oom-kill:constraint=CONSTRAINT_MEMCG"),), 1))
    assert len(world.notes(reasons.MEMORY_RAISED)) == 1, "it was given already"


def test_evidence_about_a_process_before_the_last_changes_nothing():
    world = boot(role(replicas=2), faultTolerance={"backoff": {"initialSeconds": 0}})
    for _ in range(2):
        world.kill("w", 0, KILLED)
        world.settle()
    world.send(ev.CauseLearned("w/0", (KERNEL,), 1))
    assert not world.notes(reasons.MEMORY_RAISED)


def test_a_rank_that_a_rule_leaves_as_it_is_gets_nothing():
    rules = [{"name": "i", "action": "Ignore"}]
    world = boot(role(), role("x"), faultTolerance={"rules": rules})
    world.kill("w", 0, OOM)
    world.settle()
    assert not world.notes(reasons.MEMORY_RAISED)


def test_all_ranks_of_a_unit_restart_when_it_gets_more_memory():
    world = boot(role(replicas=2, replicasPerGroup=2))
    world.kill("w", 1, OOM)
    world.settle()
    assert demand(world) == 4 + 6 + 2, "all ranks of the role in that unit get as much"
    assert world.state.phase is Phase.RUNNING
    assert [world.state.ranks["w", rank].incarnation for rank in (0, 1)] == [2, 2]
    assert dict(world.state.marks).keys() == {"w", "fail:w"}
    assert len(world.state.marks["w"]) == 1, "the neighbour's restart is no failure"


def test_two_ranks_of_a_unit_that_run_out_of_memory_together_raise_it_once():
    world = boot(role(replicas=2, replicasPerGroup=2), faultTolerance={"backoff": {"initialSeconds": 0}})
    world.hold = True
    world.kill("w", 0, OOM)
    world.kill("w", 1, OOM)
    world.settle()
    assert demand(world) == 12
    assert len(world.notes(reasons.MEMORY_RAISED)) == 1


def test_two_ranks_of_a_unit_whose_memory_kill_is_learned_later_raise_it_once():
    world = boot(role(replicas=2, replicasPerGroup=2), faultTolerance={"backoff": {"initialSeconds": 0}})
    for rank in (0, 1):
        world.kill("w", rank, KILLED)
        world.settle()
    assert [world.state.ranks["w", rank].incarnation for rank in (0, 1)] == [2, 2]
    for rank in (0, 1):
        world.send(ev.CauseLearned(f"w/{rank}", (KERNEL,), 1))
    world.settle()
    assert demand(world) == 12
    assert len(world.notes(reasons.MEMORY_RAISED)) == 1
    assert [world.state.ranks["w", rank].incarnation for rank in (0, 1)] == [3, 3]


def test_a_rank_of_another_unit_raises_its_own_units_memory():
    world = boot(role(replicas=2), faultTolerance={"backoff": {"initialSeconds": 0}})
    for rank in (0, 1):
        world.kill("w", rank, OOM)
        world.settle()
    assert (demand(world), demand(world, "w/1")) == (6, 6)


def test_a_role_that_ended_while_the_job_restarts_gets_no_spares():
    plan_and_spec = role(policy={"level": "Job"}), role("x", policy={"level": "Job"})
    world = World(job(*plan_and_spec, faultTolerance={"spares": {"processesPerNode": 1}}), views=views(2)).boot()
    world.kill("w", 0, KILLED)
    world.hold = True
    while world.state.ranks["x", 0].phase is not RankPhase.READY or world.state.ranks["w", 0].phase is RankPhase.READY:
        event = world.pending.pop(0)
        if isinstance(event, ev.RankReady) and event.role == "w":
            world.pending.append(event)
        else:
            world.send(event)
    world.end("x", 0)
    late = [event for event in world.pending if isinstance(event, ev.RankReady)]
    world.pending = [event for event in world.pending if event not in late] + late
    world.hold = False
    world.settle()
    assert world.state.ranks["x", 0].phase is RankPhase.SUCCEEDED
    assert world.state.phase is Phase.RUNNING
    assert not [key for key, spare in world.state.spares.items() if key[0] == "x" and spare.phase.alive]


def test_a_torch_world_meets_again_once_the_unit_is_held():
    role_spec = role(
        replicas=4, replicasPerGroup=2, type="Elastic", comm={"backend": "gloo"}, entrypoint={"module": "t"}
    )
    world = boot(role_spec)
    world.end("w", 3, OOM)
    world.settle()
    assert (demand(world, "w/0"), demand(world, "w/1")) == (8, 12)
    assert world.state.phase is Phase.RUNNING
    assert {world.state.ranks["w", rank].incarnation for rank in range(4)} == {2}


def test_roles_that_share_a_unit_share_its_fate_and_keep_their_own_memory():
    world = boot(role(), role("x", policy={}), collocations=[{"name": "c", "roles": ["w", "x"], "level": "Host"}])
    world.kill("w", 0, OOM)
    world.settle()
    assert demand(world, "c/0") == 6 + 4
    assert world.state.phase is Phase.RUNNING
    assert [world.state.ranks[name, 0].incarnation for name in "wx"] == [2, 2]


def test_a_unit_that_has_no_place_gets_more_when_it_finds_one():
    world = boot(role(), count=1, faultTolerance={"node": {"excludeSeconds": 0}})
    world.lose_node("n0")
    world.settle()
    assert world.state.units["w/0"].phase is UnitPhase.LOST
    world.send(ev.NodesSeen(views(2)[1:]))
    world.pending.clear()
    token = world.state.units["w/0"].token
    world.held["w/0"].clear()
    world.send(ev.UnitRefused("w/0", token, "not now"))
    world.send(ev.CauseLearned("node/n0", (Clue("pod", "OOMKilled: exit code 137"),)))
    assert world.notes(reasons.MEMORY_RAISED)
    world.views = views(2)[1:]
    world.tick()
    world.settle()
    assert demand(world) == 6


def test_a_master_that_takes_over_reserves_the_same_memory():
    world = boot()
    world.kill("w", 0, OOM)
    world.deliver()
    again = [a for a in reissue(world.state, world.now) if isinstance(a, act.Reserve)]
    assert [a.memory for a in again] == [(("w", 6 * GI),)]
    world.crash_master()
    world.settle()
    assert demand(world) == 6
    data = json.loads(json.dumps(encode_state(world.state)))
    assert decode_state(data, world.state.job) == world.state
    del data["memory_overrides"]
    assert decode_state(data, world.state.job).memory_overrides == memory_overrides.MemoryOverrides(), (
        "an older dljob wrote none"
    )


# -- over attempts


def handed(world):
    return json.dumps({"job": UID, "attempt": 1, "step": None, "state": brief(world.state, 2000.0, {})["carry"]})


def following(plan_and_spec, text, nodes, *, own_nodes=False):
    world = World(plan_and_spec, views=nodes, own_nodes=own_nodes)
    world.send(ev.MasterStarted(1))
    world.send(carried(text, UID, 2))
    world.send(ev.NodesSeen(world.seen()))
    world.settle()
    return world


def test_the_next_attempt_begins_with_the_raised_memory():
    world = boot(gib=9, count=1)
    world.kill("w", 0, OOM)
    world.settle()
    text = handed(world)
    assert json.loads(text)["state"]["memory"] == {"w": "6Gi"}
    again = following(job(role(replicas=2)), text, views(1, gib=12))
    assert (demand(again), demand(again, "w/1")) == (6, 6)
    assert brief(again.state, 2000.0, {})["carry"]["memory"] == {"w": "6Gi"}
    again.send(carried(text, UID, 2))
    less = following(job(role(replicas=2)), text, views(1, gib=9))
    assert (demand(less), demand(less, "w/1")) == (4, 4), "it ran with that before"
    capped = following(job(role(policy={"outOfMemory": {"maxMemory": "5Gi"}})), text, views(1))
    assert demand(capped) == 5
    for role_spec in (role(policy={}), role(memory="6Gi"), role("x")):
        assert following(job(role_spec), text, views(1)).state.memory_overrides == memory_overrides.MemoryOverrides()


def test_the_next_attempt_waits_for_nodes_with_the_raised_memory():
    world = boot(gib=9, count=1)
    world.kill("w", 0, OOM)
    world.settle()
    plan_and_spec = job(role(replicas=2), nodeGroups=[{"name": "any", "replicas": 2, "cpu": "8", "memory": "9Gi"}])
    again = following(plan_and_spec, handed(world), views(1, gib=9), own_nodes=True)
    assert again.state.phase is Phase.PENDING, "the second node may be as large as is wanted"
    again.add_node(views(2, gib=9)[1])
    again.settle()
    assert (demand(again), demand(again, "w/1")) == (6, 6)


def test_memory_handed_on_too_late_is_not_taken():
    world = boot()
    small_world = boot(gib=9, count=1)
    small_world.kill("w", 0, OOM)
    small_world.settle()
    world.send(carried(handed(small_world), UID, 2))
    assert world.state.memory_overrides == memory_overrides.MemoryOverrides()


def test_memory_that_cannot_be_read_is_no_carry():
    text = json.dumps({"job": UID, "attempt": 1, "state": {"v": 1, "memory": {"w": "6 GB"}}})
    assert carried(text, UID, 2).why.startswith("it cannot be read")


def test_the_status_says_what_a_unit_was_given():
    world = boot()
    world.kill("w", 0, OOM)
    world.settle()
    first, second = status(world.state, world.now, {})["units"]
    assert (first["memory"], "memory" in second) == ({"w": "6Gi"}, False)
