"""Which of several failures was first: what comes late, what comes twice, what is told by others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from master_kit import World, error, host, job, nodes

from dljob.api.local.views import overview
from dljob.api.registry import RegistryEntry
from dljob.cli.diagnosis import diagnose
from dljob.master.failure.attribution import MAX_CONSEQUENCES, MAX_DETAIL_CHARS
from dljob.master.state import events as ev
from dljob.master.state import limits
from dljob.master.state.state import Phase
from dljob.master.state.views import Clue, Outcome, Reason
from dljob.master.status import brief
from dljob.telemetry import reasons
from dljob.telemetry.remedies import CauseKind

WORLD = {"name": "t", "type": "Elastic", "replicas": 4}
PEER = error("RuntimeError", message="[pair.cc:598] Connection closed by peer [127.0.0.1]:4")
GONE = Outcome(ok=False, reason=Reason.UNKNOWN, detail="its worker process has died")
OOM = Clue("pod", "OOMKilled: exit code 137")
KERNEL_OOM = Clue("kernel", "Out of memory: Killed process 41 (python)")
OOM_KILLS = Clue("cgroup", "memory.events: high +3")
KILLED = Outcome(ok=False, reason=Reason.UNKNOWN, code=137, message="ended by SIGKILL")


def world_on_nodes(*roles, **spec):
    world = World(job(*(roles or (WORLD,)), **spec), views=nodes(3), hold=True).boot()
    world.pending.clear()
    return world


def ended(world, rank, outcome, *, role="t", incarnation=1, after=0.0):
    world.send(ev.RankEnded(role, rank, incarnation, outcome), after=after)


def found_no_cause(world):
    """Let the wait for the cause of an echo pass."""
    world.send(ev.Tick(), after=limits.PEER_WAIT_S)


def root(world):
    (fault,) = [fault for fault in world.state.faults if not fault.root_number]
    return fault


def test_a_first_cause_told_late_takes_the_place_of_its_echo():
    world = world_on_nodes()
    ended(world, 3, PEER)
    found_no_cause(world)
    assert (root(world).rank, root(world).reason) == ("t/3", "Unknown")
    ended(world, 1, error("KeyError", frame="data.py:8 in collate"), after=0.2)
    assert (root(world).rank, root(world).reason) == ("t/1", "UserError")
    assert [consequence.rank for consequence in root(world).consequences] == ["t/3"]
    (note,) = world.notes(reasons.CAUSE_LEARNED)
    assert note.message.startswith("cause: t/1: UserError: KeyError: boom")
    summary = brief(world.state, world.now, {})["lastFault"]
    assert summary["firstCause"].startswith("t/1: UserError")
    assert summary["followed"][0].startswith("t/3: cause unknown, it lost its peer")


def test_a_rank_taken_down_for_a_connection_within_its_machine_may_be_the_cause_after_all():
    world = world_on_nodes()
    clue = Clue("connection", "within this machine, at 127.0.0.1:4")
    ended(world, 3, replace(error("ConnectionResetError"), clues=(clue,)))
    world.send(ev.Tick(), after=limits.LOCAL_PEER_WAIT_S)
    assert (root(world).rank, root(world).reason) == ("t/3", "UserError")
    ended(world, 1, error("ZeroDivisionError"), after=0.2)
    assert (root(world).rank, root(world).reason) == ("t/1", "UserError")


def test_a_failure_reported_twice_is_listed_once():
    world = world_on_nodes()
    ended(world, 1, GONE)
    for _ in range(2):
        ended(world, 2, PEER, after=0.1)
        ended(world, 1, GONE)
    assert [consequence.rank for consequence in root(world).consequences] == ["t/2"]


@pytest.mark.parametrize("way", [{"after": limits.SAME_FAILURE_WINDOW_S + 1}, {"incarnation": 7}])
def test_a_failure_long_after_the_first_or_of_another_incarnation_is_another_fault(way: dict[str, Any]):
    world = world_on_nodes()
    ended(world, 1, GONE)
    ended(world, 2, PEER, **way)
    assert root(world).consequences == ()


def test_an_end_on_our_order_is_no_error():
    world = world_on_nodes()
    ended(world, 1, GONE)
    ended(world, 2, Outcome(ok=False, reason=Reason.UNKNOWN, code=143, message="gone after it was told to stop (x)"))
    ended(world, 3, Outcome(ok=True))
    assert root(world).consequences == ()


def test_an_end_of_a_rank_that_nobody_knows_changes_nothing():
    world = world_on_nodes()
    before = world.state
    world.send(ev.RankEnded("t", 99, 1, GONE))
    assert world.state is before


def test_a_first_cause_that_must_repeat_ends_the_job_however_late():
    world = world_on_nodes()
    ended(world, 0, PEER)
    found_no_cause(world)
    assert world.state.phase is Phase.RECOVERING
    ended(world, 1, error("ImportError", fatal=True), after=0.1)
    assert world.state.verdict.reason == reasons.USER_ERROR_REPEATS
    assert "t/1: UserError: ImportError" in world.state.verdict.message


def test_a_verdict_is_corrected_when_its_cause_was_an_echo():
    world = world_on_nodes({**WORLD, "restartPolicy": {"level": "Never"}})
    ended(world, 0, PEER)
    found_no_cause(world)
    assert world.state.verdict.message.startswith("t/0: cause unknown, it lost its peer: RuntimeError")
    ended(world, 1, error("KeyError"), after=0.1)
    assert world.state.verdict.message.startswith("t/1: UserError: KeyError")
    assert world.state.verdict.message.endswith("restartPolicy.level of t is Never")
    assert root(world).level == "Fail"


def test_a_verdict_of_a_used_up_budget_is_corrected_when_its_cause_was_an_echo():
    world = world_on_nodes({**WORLD, "restartPolicy": {"maxRestarts": 0}}, faultTolerance={"maxRestarts": 0})
    ended(world, 0, PEER)
    found_no_cause(world)
    ended(world, 1, error("ZeroDivisionError"), after=0.1)
    assert world.state.verdict.reason == reasons.BUDGET_EXHAUSTED
    assert world.state.verdict.message.startswith("t/1: UserError: ZeroDivisionError")
    assert (root(world).level, root(world).rank) == ("Fail", "t/1")
    assert [consequence.rank for consequence in root(world).consequences] == ["t/0"]


def test_the_failure_that_uses_up_the_budget_is_the_last_fault():
    world = world_on_nodes(
        {"name": "w", "replicas": 2, "restartPolicy": {"maxRestarts": 1}}, faultTolerance={"maxRestarts": 0}
    )
    ended(world, 0, KILLED, role="w")
    world.settle()
    assert world.state.phase is Phase.RUNNING
    ended(world, 1, replace(GONE, clues=(OOM,)), role="w", after=60.0)
    assert "no restarts are left" in world.state.verdict.message
    summary = brief(world.state, world.now, {})
    fault = summary["lastFault"]
    assert (fault["rank"], fault["level"], fault["recoveredAt"]) == ("w/1", "Fail", None)
    assert fault["evidence"][0] == "pod: OOMKilled: exit code 137"
    diagnosis = diagnose(overview(RegistryEntry("j", "u", "/gone"), summary), "j", "")
    assert diagnosis.kind is CauseKind.MEMORY
    assert diagnosis.lines[1].startswith("first cause: w/1, incarnation 1")


def test_a_host_that_was_dead_before_we_ended_it_is_the_cause_if_ray_says_so():
    world = world_on_nodes()
    ended(world, 0, PEER)
    found_no_cause(world)
    world.send(ev.HostLost(host("t", 2), 1, Outcome(ok=False, reason=Reason.UNKNOWN)))
    assert root(world).rank == "t/0"
    world.send(ev.HostLost(host("t", 1), 1, GONE))
    assert root(world).rank == "t/1"


def test_a_fault_lists_a_bounded_number_of_followers():
    world = world_on_nodes({**WORLD, "replicas": 40})
    ended(world, 0, GONE)
    for rank in range(1, 40):
        ended(world, rank, PEER)
    assert len(root(world).consequences) == MAX_CONSEQUENCES


def test_later_evidence_renames_the_cause():
    world = world_on_nodes({"name": "w", "replicas": 2})
    ended(world, 1, GONE, role="w")
    world.send(ev.CauseLearned("w/1", (OOM,), incarnation=1), after=2.0)
    assert (root(world).reason, root(world).outcome.clues) == ("OOMKilled", (OOM,))
    before = world.state
    world.send(ev.CauseLearned("w/1", (OOM,)))
    assert world.state is before
    world.send(ev.CauseLearned("w/1", (OOM, Clue("cgroup", "oom_kill +1")), incarnation=9))
    assert world.state is before
    world.send(ev.CauseLearned("w/1", (Clue("kernel", "cannot be read"),)))
    assert len(world.notes(reasons.CAUSE_LEARNED)) == 1


def test_an_exit_status_that_comes_later_names_the_signal():
    world = world_on_nodes({"name": "w", "replicas": 2})
    ended(world, 1, replace(GONE, clues=(OOM_KILLS,)), role="w")
    world.send(ev.CauseLearned("w/1", (), end=KILLED), after=2.0)
    assert (root(world).reason, root(world).outcome) == ("Killed", replace(root(world).outcome, code=137))
    assert root(world).outcome.clues == (OOM_KILLS,)
    assert "ended by SIGKILL" in world.notes(reasons.CAUSE_LEARNED)[0].message
    before = world.state
    world.send(ev.CauseLearned("w/1", (), end=replace(KILLED, code=139)))
    assert world.state is before, "a known status stays"


LONG_LOG = "x" * 8000 + " its end"


def test_a_fault_keeps_only_the_end_of_the_log_of_a_late_failure():
    world = world_on_nodes()
    ended(world, 3, PEER)
    found_no_cause(world)
    ended(world, 1, replace(error("KeyError"), detail=LONG_LOG), after=0.2)
    assert (root(world).rank, root(world).outcome.detail) == ("t/1", LONG_LOG[-MAX_DETAIL_CHARS:])


def test_a_fault_keeps_only_the_end_of_a_log_that_comes_with_a_late_exit_status():
    world = world_on_nodes({"name": "w", "replicas": 2})
    ended(world, 1, GONE, role="w")
    world.send(ev.CauseLearned("w/1", (), end=replace(KILLED, detail=LONG_LOG)), after=2.0)
    assert (root(world).outcome.code, root(world).outcome.detail) == (137, LONG_LOG[-MAX_DETAIL_CHARS:])


def test_evidence_about_a_host_of_two_ranks_concerns_the_fault_of_its_ranks_and_no_older_one():
    two = {"name": "t", "type": "Elastic", "replicas": 4, "replicasPerGroup": 2, "entrypoint": {"module": "train"}}
    world = World(job(two), views=nodes(3)).boot()
    assert list(world.state.job.roles["t"].ranks_of(1)) == [2, 3]
    world.end("t", 1, KILLED)
    world.settle()
    world.now += 3000.0
    world.kill_host(host("t", 1), GONE)
    world.settle()
    world.send(ev.CauseLearned("t/1", (), end=KILLED, host=host("t", 1)), after=0.6)
    world.send(ev.CauseLearned("t/1", (KERNEL_OOM,), host=host("t", 1)))
    first, second = world.state.faults
    assert (first.rank, first.reason, second.rank, second.reason) == ("t/1", "Killed", "t/2", "OOMKilled")
    assert second.outcome.code == 137
    before = world.state
    world.send(ev.CauseLearned("t/0", (KERNEL_OOM,), host=host("t", 0)))
    assert world.state is before, "a fault of long ago is not what it is about"


def test_evidence_about_a_torch_store_concerns_the_fault_that_names_it():
    world = World(job({**WORLD, "replicas": 2}), views=nodes(3)).boot()
    world.kill_host(host("t", -1), GONE)
    world.settle()
    world.send(ev.CauseLearned("t/0", (KERNEL_OOM,), host=host("t", 0)), after=0.6)
    (fault,) = world.state.faults
    assert fault.reason == "Unknown", "no rank of its own was lost"
    world.send(ev.CauseLearned("t/store", (KERNEL_OOM,), host=host("t", -1)))
    (fault,) = world.state.faults
    assert fault.cause.startswith("t/store: OOMKilled")
    assert world.notes(reasons.CAUSE_LEARNED)[0].message.startswith("cause: t/store: OOMKilled")


def test_a_restart_by_command_is_not_put_down_to_a_node():
    world = world_on_nodes({"name": "w", "replicas": 2})
    world.send(ev.Commanded("c", "restart", "w/1"))
    world.send(ev.CauseLearned("w/1", (), end=KILLED))
    world.send(ev.CauseLearned("w/1", (OOM,)))
    assert root(world).outcome is None


def test_an_announcement_about_a_node_explains_its_ends_for_a_time():
    world = world_on_nodes({"name": "w", "replicas": 2})
    node = world.state.hosts[host("w", 1)].node
    world.send(ev.CauseLearned(f"node/{node}", (Clue("notice", "taken back"),)))
    terminated = Outcome(ok=False, reason=Reason.UNKNOWN, code=143, message="SIGTERM from outside")
    ended(world, 1, terminated, role="w", after=limits.DEPART_S + limits.ANNOUNCED_END_WINDOW_S + 1)
    assert root(world).reason == "Killed"


def test_a_caller_that_fails_before_its_callee_is_put_under_it():
    world = world_on_nodes({"name": "c"}, {"name": "r", "replicas": 2, "driver": False})
    lost = error("PeerLostError", message="r/1.generate: the process of r/1 (incarnation 1) died with the call")
    ended(world, 0, lost, role="c")
    ended(world, 0, error("KeyError"), role="r", after=0.1)
    assert [fault.root_number for fault in world.state.faults] == [0, 0]
    ended(world, 1, GONE, role="r", after=0.1)
    first, second, third = world.state.faults
    assert (first.root_number, second.root_number, third.root_number) == (third.id, 0, 0)
    assert [consequence.rank for consequence in third.consequences] == ["c/0"]


def test_two_echoes_and_no_cause_are_one_fault():
    world = world_on_nodes({"name": "w", "replicas": 2}, {"name": "v", "driver": False})
    ended(world, 0, PEER, role="w")
    ended(world, 1, PEER, role="w", after=0.1)
    ended(world, 0, PEER, role="v", after=0.1)
    assert [fault.root_number != 0 for fault in world.state.faults] == [False, True, False]


def test_rules_choose_by_the_reason_that_was_found():
    rules = [{"name": "oom", "onReasons": ["OOMKilled"], "action": "RestartJob"}]
    world = world_on_nodes({"name": "w", "replicas": 2}, faultTolerance={"rules": rules})
    ended(world, 1, replace(GONE, clues=(OOM,)), role="w")
    assert dict(world.state.restarts) == {"Job": 1}
