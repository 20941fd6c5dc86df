"""The snapshot that users see, and who is who for peers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from master_kit import KILLED, World, error, job, nodes

from dljob.master.state import events as ev
from dljob.master.state.state import HostPhase, Phase, RankPhase, UnitPhase
from dljob.master.state.views import Outcome, Reason
from dljob.master.status import SHOWN, PeerView, brief, brief_of, peers, placement, status
from dljob.plan.labels import NODE_NAME

UNSAVED = {"lastCheckpointStep": None, "lastCheckpointTime": None}


def show(world, progress=None):
    return json.loads(json.dumps(status(world.state, world.now, progress or {})))


def test_a_pending_job_says_what_it_waits_for():
    world = World(job({"name": "w", "replicas": 2}))
    first = show(world)
    assert (first["phase"], first["reason"]) == ("Pending", "Pending")
    assert first["message"] == "0 of 2 units held, 0 of 2 ranks ready"
    assert first["startTime"] == "1970-01-01T00:16:40.000Z"
    assert first["completionTime"] is None
    assert first["lastFault"] is None
    busy = tuple(type(v)(v.id, v.total, (), v.labels) for v in world.views)
    world.send(ev.NodesSeen(busy))
    assert show(world)["reason"] == "NoRoom"
    assert show(world)["message"] == world.state.search.no_room_reason


def test_a_job_that_starts_with_fewer_ranks_counts_those_that_it_has():
    elastic = {"name": "e", "type": "Elastic", "replicas": 3, "minReplicas": 1}
    world = World(job(elastic, nodeGroups=[{"name": "any", "replicas": 8, "cpu": "4"}]), views=nodes(2, cpus=1))
    world.send(ev.NodesSeen(world.seen()))
    while world.state.phase is Phase.PENDING:
        world.tick()
    assert show(world)["message"] == "0 of 2 units held, 0 of 2 ranks ready"


def test_a_running_job_shows_roles_ranks_units_and_progress():
    world = World(job({"name": "w", "replicas": 2}, {"name": "x", "driver": False}), views=nodes(1)).boot()
    seen = show(world, {("w", 1): (7, {"reward": 0.5}), ("x", 0): (99, {})})
    assert seen["phase"] == seen["reason"] == "Running"
    assert seen["message"] == ""
    assert seen["roles"][0] == {
        "name": "w",
        "desired": 2,
        "ready": 2,
        "running": 2,
        "succeeded": 0,
        "failed": 0,
        "restarts": 0,
    }
    assert seen["ranks"][1] == {
        "role": "w",
        "rank": 1,
        "phase": "Ready",
        "incarnation": 1,
        "node": "n0",
        "pid": 1001,
        "actor": "w/1/1",
        "step": 7,
    }
    assert seen["progress"] == {"step": 7, "metrics": {"reward": 0.5}, "goodputPermille": None} | UNSAVED
    assert seen["units"][0] == {"name": "w/0", "node": "n0", "phase": "Held"}
    levels = ("inProcess", "process", "roleGroup", "role", "job", "node", "master")
    assert seen["restarts"] == dict.fromkeys(levels, 0)
    assert seen["version"] == world.state.version


def test_a_recovering_job_says_what_restarts_and_later_how_long_it_took():
    world = World(job({"name": "w", "replicas": 2}), views=nodes(1)).boot()
    world.kill("w", 1)
    world.deliver()
    during = show(world)
    assert (during["phase"], during["reason"]) == ("Recovering", "Restarting")
    assert during["message"] == "w/1: Unknown, level Process"
    assert during["ranks"][1]["phase"] == "Waiting"
    assert during["lastFault"]["recoveredAt"] is None
    world.now += 0.5
    world.settle()
    after = show(world)["lastFault"]
    assert after["seconds"] == 0.5
    assert (after["level"], after["target"], after["reason"]) == ("Process", "w/1", "Unknown")
    assert after["firstCause"] == "w/1: process gone, cause unknown"


def test_an_ended_job_keeps_its_verdict_its_result_and_its_time():
    world = World(job({"name": "w"})).boot()
    world.end("w", 0, Outcome(ok=True, result="[1]"))
    world.now += 2
    world.settle()
    world.now += 50
    seen = show(world)
    assert (seen["phase"], seen["reason"], seen["result"]) == ("Succeeded", "Completed", "[1]")
    assert seen["completionTime"] == "1970-01-01T00:16:42.000Z"
    assert seen["seconds"] == 2.0


@pytest.mark.parametrize("policy", [{"level": "Never"}, {"maxRestarts": 0}, {}], ids=["rule", "budget", "repeats"])
def test_the_rank_that_ended_the_job_has_failed_and_counts_so(policy: dict[str, object]):
    world = World(job({"name": "w", "replicas": 3, "restartPolicy": policy}), views=nodes(1)).boot()
    while world.state.verdict is None:
        world.now += 60
        world.kill("w", 1, Outcome(ok=False, reason=Reason.USER_ERROR, code=139))
        world.settle()
    seen = show(world)
    assert [rank["phase"] for rank in seen["ranks"]] == ["Stopped", "Failed", "Stopped"]
    assert seen["roles"][0]["failed"] == 1
    assert brief(world.state, world.now, {})["roles"] == seen["roles"]


def test_a_brief_snapshot_counts_units_and_names_no_rank():
    world = World(job({"name": "w", "replicas": 2}), views=nodes(1)).boot()
    whole, short = show(world), brief(world.state, world.now, {})
    assert short == brief_of(whole)
    assert short.pop("placement") == {"units": 2, "ready": 2, "pending": 0, "notReady": []}
    assert short == {key: value for key, value in whole.items() if key not in ("ranks", "units")}


def test_a_brief_snapshot_names_the_first_units_that_wait_and_why():
    world = World(job({"name": "w", "replicas": 25}))
    short = brief(world.state, world.now, {})
    assert (short["placement"]["units"], short["placement"]["pending"]) == (25, 25)
    assert [unit["name"] for unit in short["placement"]["notReady"]] == [f"w/{k}" for k in range(SHOWN)]
    assert short["placement"]["notReady"][0]["why"] == "it has no node yet"
    assert short == brief_of(show(world))
    world.send(ev.NodesSeen(tuple(type(v)(v.id, v.total, (), v.labels) for v in world.views)))
    short = brief(world.state, world.now, {})
    assert short["placement"]["notReady"][0] == {"name": "w/0", "node": "", "why": world.state.search.no_room_reason}
    assert short == brief_of(show(world))


def test_a_brief_snapshot_tells_what_is_asked_for_from_what_was_lost():
    world = World(job({"name": "w", "replicas": 2}), views=nodes(2, cpus=1), hold=True)
    world.send(ev.NodesSeen(world.views))
    asked = brief(world.state, world.now, {})["placement"]["notReady"]
    assert [unit["why"] for unit in asked] == ["its reservation is under way"] * 2
    assert {unit["node"] for unit in asked} == {"n0", "n1"}
    world = World(job({"name": "w", "replicas": 2}), views=nodes(2, cpus=1)).boot()
    world.send(ev.NodesSeen((replace(world.views[0], free=()),)))
    (lost,) = brief(world.state, world.now, {})["placement"]["notReady"]
    assert lost["why"] == "it lost its node; it moves when another one has room"
    assert brief(world.state, world.now, {})["placement"]["ready"] == 1


def test_placement_tells_units_and_ranks_of_each_node():
    roles = ({"name": "a", "replicas": 4, "replicasPerGroup": 2}, {"name": "b", "replicas": 1})
    together = [{"name": "ab", "roles": ["a", "b"], "level": "Host"}]
    world = World(job(*roles, collocations=together), views=nodes(1)).boot()
    seen = placement(world.state)
    assert seen["version"] == world.state.version
    assert seen["nodes"] == [{"node": "n0", "units": ["ab/0", "ab/1"], "roles": ["a", "b"], "ranks": "a/0-3,b/0"}]


def test_placement_shows_gaps_between_ranks_and_leaves_out_what_is_not_held():
    world = World(job({"name": "w", "replicas": 4}), views=nodes(2, cpus=2)).boot()
    before = placement(world.state)["nodes"]
    assert sorted(node["node"] for node in before) == ["n0", "n1"]
    assert sorted(unit for node in before for unit in node["units"]) == ["w/0", "w/1", "w/2", "w/3"]
    units = world.state.units.set("w/1", replace(world.state.units["w/1"], phase=UnitPhase.LOST))
    for k in (0, 2, 3):
        units = units.set(f"w/{k}", replace(units[f"w/{k}"], node="n7"))
    (node,) = placement(replace(world.state, units=units))["nodes"]
    assert node == {"node": "n7", "units": ["w/0", "w/2", "w/3"], "roles": ["w"], "ranks": "w/0,w/2-3"}


def test_no_progress_is_no_step():
    world = World(job({"name": "w"}))
    assert show(world)["progress"] == {"step": None, "metrics": {}, "goodputPermille": None} | UNSAVED


def test_peers_are_addressed_by_their_present_process():
    world = World(job({"name": "w", "replicas": 2}), views=nodes(1)).boot()
    assert peers(world.state, "w") == (
        PeerView("w", 0, 1, "w/0/1", ready=True),
        PeerView("w", 1, 1, "w/1/1", ready=True),
    )
    world.kill("w", 1)
    world.deliver()
    assert peers(world.state, "w")[1] == PeerView("w", 1, 1, "", ready=False)
    world.deliver()
    assert peers(world.state, "w")[1] == PeerView("w", 1, 2, "w/1/2", ready=False)
    world.settle()
    assert peers(world.state, "w")[1] == PeerView("w", 1, 2, "w/1/2", ready=True)
    assert peers(world.state, "nobody") == ()


def test_a_rank_that_returned_is_gone_though_its_host_lives():
    world = World(job({"name": "w", "replicas": 2}), views=nodes(1)).boot()
    world.end("w", 0)
    world.settle()
    assert world.state.hosts[world.state.job.roles["w"].host_of(0)].phase is HostPhase.READY
    assert peers(world.state, "w")[0] == PeerView("w", 0, 1, "", ready=False, gone_reason="it ended")


def test_a_rank_that_serves_after_its_end_is_called_until_its_process_is_gone():
    world = World(job({"name": "w", "replicas": 2}, {"name": "t"}), views=nodes(1)).boot()
    world.send(ev.RankEnded("w", 0, 1, Outcome(ok=True, serves=True)))
    assert peers(world.state, "w")[0] == PeerView("w", 0, 1, "w/0/1", ready=True)
    assert world.state.ranks["w", 0].phase is RankPhase.SUCCEEDED
    world.kill("w", 0)
    world.settle()
    assert peers(world.state, "w")[0] == PeerView("w", 0, 1, "", ready=False, gone_reason="it ended")
    world.end("w", 1)
    world.end("t", 0)
    world.settle()
    assert world.state.phase is Phase.SUCCEEDED


def test_peers_of_an_ignored_rank_and_of_an_ending_job_will_not_be_back():
    ignore = {"rules": [{"name": "i", "action": "Ignore"}]}
    world = World(job({"name": "w", "replicas": 2}, faultTolerance=ignore)).boot()
    world.kill("w", 0, KILLED)
    world.settle()
    assert peers(world.state, "w")[0].gone_reason == "it failed, and a rule says to leave it so"
    world.send(ev.Commanded("s", "stop"))
    assert peers(world.state, "w")[1].gone_reason == "the job is ending: StoppedByUser"


def test_the_description_of_a_failure_has_target_reason_and_place():
    from dljob.master.failure.policy import describe_failure

    assert describe_failure("w/1", error("KeyError", "a.py:3 in f", message="'x'", code=1)) == (
        "w/1: UserError: KeyError: 'x' (at a.py:3 in f), exit code 1"
    )
    assert describe_failure("w/1", Outcome(ok=False)) == "w/1: Failed"
    killed = Outcome(ok=False, reason=KILLED.reason, code=137, message="no answer")
    assert describe_failure("w/1", killed) == "w/1: process gone with exit code 137, cause unknown (no answer)"


def test_a_unit_that_waits_for_its_pod_names_it():
    world = World(job({"name": "w"}), views=tuple(replace(view, pod="train-a") for view in nodes(1)))
    world.send(ev.MasterStarted(1))
    world.send(ev.NodesSeen(world.views))
    whole, short = show(world), brief(world.state, world.now, {})
    assert [unit["node"] for unit in short["placement"]["notReady"]] == ["train-a"]
    assert brief_of(whole)["placement"] == short["placement"]


def test_a_rank_names_its_node_as_people_call_it():
    views = tuple(replace(view, labels=(*view.labels, (NODE_NAME, "gpu-0"))) for view in nodes(1))
    world = World(job({"name": "w"}), views=views).boot()
    (rank,) = show(world)["ranks"]
    assert rank["nodeName"] == "gpu-0"
    assert rank["node"] == views[0].id
    (rank,) = show(World(job({"name": "w"}), views=nodes(1)).boot())["ranks"]
    assert "nodeName" not in rank
