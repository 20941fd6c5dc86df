"""Every way that a job ends: verdict, leaving, release, finish."""

from __future__ import annotations

from dataclasses import replace

import pytest
from master_kit import DONE, KILLED, World, error, host, job

from dljob.master import status
from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state import limits
from dljob.master.state.state import Phase, RankPhase
from dljob.master.state.views import Outcome, Reason
from dljob.telemetry import reasons


def test_the_job_succeeds_when_all_drivers_ended_well_and_the_others_are_asked_to_leave():
    world = World(job({"name": "main", "replicas": 2}, {"name": "serve", "driver": False, "replicas": 2})).boot()
    world.end("main", 0, Outcome(ok=True, result='{"reward": 1}'))
    world.settle()
    assert world.state.phase is Phase.RUNNING
    action_count = len(world.all_actions)
    world.end("main", 1, Outcome(ok=True, result="2"))
    world.deliver()
    assert world.state.phase is Phase.STOPPING
    stops = world.of(act.StopRanks, action_count)
    assert [(a.host, a.ranks, a.grace_s) for a in stops] == [
        (host("serve", 0), (0,), limits.JOB_END_GRACE_S),
        (host("serve", 1), (1,), limits.JOB_END_GRACE_S),
    ]
    assert not world.of(act.Release)
    world.deliver()
    assert not world.of(act.Release)
    world.deliver()
    assert world.of(act.Release)
    world.settle()
    assert world.finished == [act.Finish(ok=True, reason=reasons.COMPLETED, message="all driver roles ended well")]
    assert world.state.phase is Phase.SUCCEEDED
    assert world.state.result == '{"reward": 1}'
    assert {world.state.ranks["serve", r].phase for r in range(2)} == {RankPhase.STOPPED}
    roles = {row["name"]: row for row in status.status(world.state, world.now, {})["roles"]}
    assert [roles[name]["succeeded"] for name in ("main", "serve")] == [2, 2], "who served to the end ended well"


def test_ranks_that_are_ended_with_a_failed_job_did_not_end_well():
    world = World(job({"name": "main"}, {"name": "serve", "driver": False})).boot()
    world.end("main", 0, replace(error("ModuleNotFoundError", fatal=True), reason=Reason.IMPORT_ERROR))
    world.settle()
    assert world.state.phase is Phase.FAILED
    assert [row["succeeded"] for row in status.status(world.state, world.now, {})["roles"]] == [0, 0]


@pytest.mark.parametrize("name", ["main", "serve"])
def test_an_error_of_shutdown_is_told_to_the_end_and_the_result_counts(name):
    world = World(job({"name": "main"}, {"name": "serve", "driver": False})).boot()
    failed = Outcome(
        ok=True, code=0, result="7", error_type="OSError", frame="a.py:9 in shutdown", message="x (in shutdown)"
    )
    if name == "serve":
        world.end("main", 0, Outcome(ok=True, result="7"))
        world.deliver()  # the job ends, and asks the server to
    world.send(ev.RankEnded(name, 0, 1, failed))
    world.settle()
    assert (world.state.phase, world.state.result) == (Phase.SUCCEEDED, "7")
    words = "OSError: x (in shutdown) (at a.py:9 in shutdown); the result of its run() counts all the same"
    assert [(note.target, note.message) for note in world.notes(reasons.SHUTDOWN_FAILED)] == [(f"{name}/0", words)]
    assert not world.notes(reasons.PROCESSES_LEFT)
    (problem,) = status.status(world.state, world.now, {})["problems"]
    assert (problem["reason"], problem["message"]) == (reasons.SHUTDOWN_FAILED, f"{name}/0: {words}")


def test_notes_word_counts_with_their_noun():
    world = World(job({"name": "main"})).boot()
    messages = [note.message for note in world.notes(reasons.ROLE_READY) + world.notes(reasons.ADMITTED)]
    assert messages == ["the only rank is ready", "1 unit held on 1 node"]
    world.end("main", 0, error())
    world.settle()
    (note,) = world.notes(reasons.RESTARTING)
    assert "; restarting 1 rank" in note.message


def test_ranks_that_do_not_leave_in_the_grace_are_released_with_everything():
    world = World(job({"name": "main"}, {"name": "serve", "driver": False})).boot()
    world.end("main", 0)
    world.deliver()
    world.pending.clear()
    world.send(ev.Tick(), after=1)
    assert not world.of(act.Release)
    world.tick()
    assert world.now == world.start + limits.JOB_END_GRACE_S + limits.HOST_STOP_S
    assert world.of(act.Release)
    world.settle()
    assert world.state.phase is Phase.SUCCEEDED
    assert world.state.live_rank_count == 0


def test_hosts_that_die_while_the_job_stops_are_no_failures():
    world = World(job({"name": "main"}, {"name": "serve", "driver": False, "replicas": 2})).boot()
    world.end("main", 0)
    world.deliver()
    world.pending.clear()
    world.kill("serve", 0)
    world.kill_host(host("serve", 1))
    world.settle()
    assert world.state.phase is Phase.SUCCEEDED
    assert world.state.restarts.get("Process") is None


def test_a_failure_releases_everything_at_once_and_names_the_first_cause():
    world = World(job({"name": "w", "replicas": 2, "restartPolicy": {"level": "Never"}})).boot()
    world.kill("w", 1)
    world.deliver()
    assert world.of(act.Release)
    assert not world.of(act.StopRanks)
    world.kill("w", 0, error())
    world.settle()
    (finish,) = world.finished
    assert not finish.ok
    assert finish.message.startswith("w/1: process gone, cause unknown")
    assert world.state.phase is Phase.FAILED


def test_a_stop_is_graceful_and_not_a_success():
    world = World(job({"name": "w"})).boot()
    world.send(ev.Commanded("s", "stop", by="ctrl-c"))
    world.settle()
    assert world.of(act.StopRanks)[0].grace_s == limits.JOB_END_GRACE_S
    assert world.finished == [act.Finish(ok=False, reason=reasons.STOPPED, message="stopped by ctrl-c")]


def test_a_suspension_ends_the_attempt_and_is_no_end_of_the_job():
    world = World(job({"name": "w"})).boot()
    world.send(ev.Commanded("s", "suspend", by="spec.suspend"))
    assert world.state.phase is Phase.STOPPING
    world.end("w", 0)
    world.settle()
    assert world.of(act.StopRanks)[0].reason == reasons.SUSPENDED
    assert world.finished == [act.Finish(ok=False, reason=reasons.SUSPENDED, message="suspended by spec.suspend")]
    assert (world.state.phase, world.state.phase.final, world.state.phase.active) == (Phase.SUSPENDED, True, False)


def test_a_job_that_is_over_is_not_suspended():
    world = World(job({"name": "w"})).boot()
    world.end("w", 0)
    world.deliver()
    world.send(ev.Commanded("s", "suspend"))
    world.settle()
    assert world.state.phase is Phase.SUCCEEDED
    assert world.notes(reasons.COMMAND_REFUSED)[0].message == "suspend refused: the job is ending"


def test_a_stop_before_anything_is_held_ends_as_every_ending_does():
    world = World(job({"name": "w"}))
    world.send(ev.Commanded("s", "stop"))
    world.settle()
    assert world.of(act.Release)
    assert world.finished
    assert next(iter(world.notes(reasons.STOPPED))).message == "stopped"


def test_the_active_deadline_counts_from_the_start_of_the_job():
    world = World(job({"name": "w"}, activeDeadlineSeconds=100))
    world.now += 40
    world.boot()
    world.tick()
    assert world.now == world.start + 100
    assert world.state.verdict.reason == reasons.DEADLINE_EXCEEDED
    assert world.of(act.StopRanks)
    world.settle()
    assert world.state.phase is Phase.FAILED


def test_a_release_that_is_not_answered_is_ordered_again():
    world = World(job({"name": "w"})).boot()
    world.end("w", 0)
    world.deliver()
    world.pending.clear()
    world.send(ev.Tick(), after=1)
    assert len(world.of(act.Release)) == 1
    world.tick()
    assert world.now == world.start + limits.RELEASE_AGAIN_S
    assert len(world.of(act.Release)) == 2
    world.settle()
    assert len(world.finished) == 1


def test_released_counts_only_after_the_release_was_ordered():
    world = World(job({"name": "main"}, {"name": "serve", "driver": False})).boot()
    world.end("main", 0)
    world.deliver()
    assert world.send(ev.Released()) == ()
    assert world.state.phase is Phase.STOPPING


def test_nothing_changes_an_ended_job():
    world = World(job({"name": "w"})).boot()
    world.end("w", 0)
    world.settle()
    before = world.state
    events = (
        ev.Released(),
        ev.Tick(),
        ev.NodesSeen(()),
        ev.Commanded("x", "restart"),
        ev.HostLost(host("w", 0), 1, KILLED),
    )
    for event in events:
        assert world.send(event) == ()
    assert world.state is before
    assert before.wake is None


@pytest.mark.parametrize("late", [False, True])
def test_a_driver_that_completes_after_a_role_waiting_for_it_was_never_started_ends_the_job(late):
    plan_and_spec = job(
        {"name": "a"}, {"name": "b", "driver": late, "dependsOn": [{"role": "a", "condition": "Complete"}]}
    )
    world = World(plan_and_spec).boot()
    world.end("a", 0)
    world.settle()
    assert (world.state.phase is Phase.SUCCEEDED) is not late


def test_nodes_that_go_while_the_job_stops_move_nothing():
    world = World(job({"name": "main"}, {"name": "serve", "driver": False})).boot()
    world.end("main", 0)
    world.deliver()
    world.pending.clear()
    for view in world.views:
        world.lose_node(view.id)
    action_count = len(world.all_actions)
    world.settle()
    assert not world.of(act.Unreserve, action_count)
    world.tick()
    world.settle()
    assert world.state.phase is Phase.SUCCEEDED


def test_a_host_that_comes_up_while_the_job_stops_is_not_started():
    world = World(job({"name": "main"}, {"name": "serve", "driver": False})).boot()
    world.kill("serve", 0)
    world.deliver()
    world.end("main", 0, DONE)
    world.deliver(len(world.pending) - 1)
    action_count = len(world.all_actions)
    world.settle()
    assert not world.of(act.StartRanks, action_count)
    assert world.state.phase is Phase.SUCCEEDED


def test_a_rank_that_becomes_ready_while_the_job_stops_is_only_written_down():
    world = World(job({"name": "main"}, {"name": "serve", "driver": False})).boot()
    world.kill("serve", 0)
    world.deliver()
    world.deliver()
    world.end("main", 0, DONE)
    world.deliver(len(world.pending) - 1)
    world.send(next(e for e in world.pending if isinstance(e, ev.RankReady)))
    assert world.state.ranks["serve", 0].phase is RankPhase.READY
    assert world.state.phase is Phase.STOPPING


def test_stores_and_hosts_of_ended_ranks_may_go_while_the_job_stops():
    pair = {"name": "t", "type": "Elastic", "replicas": 2, "replicasPerGroup": 2, "entrypoint": {"module": "m"}}
    world = World(job({"name": "main"}, {**pair, "driver": False})).boot()
    world.end("t", 0)
    world.settle()
    world.end("main", 0)
    world.deliver()
    world.pending.clear()
    world.kill_host(host("t", -1))
    world.kill_host(host("t", 0))
    world.settle()
    assert world.state.phase is Phase.SUCCEEDED
    assert [world.state.ranks["t", r].phase for r in range(2)] == [RankPhase.SUCCEEDED, RankPhase.STOPPED]
