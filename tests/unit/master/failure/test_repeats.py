"""Failures that repeat end the job; failures that somebody else caused, or that progress lies between, do not."""

import dataclasses

import pytest
from master_kit import KILLED, World, error, host, job

from dljob.master.state import events as ev
from dljob.master.state import limits
from dljob.master.state.checkpoint_ids import CheckpointId, RunId
from dljob.master.state.state import HostPhase, Phase, RankPhase
from dljob.master.state.views import Clue, NodeView, Outcome, Reason
from dljob.plan.model import GRAIN
from dljob.telemetry import reasons

SECOND = "the same error at the same place twice, with no progress between"
EXIT = Outcome(ok=False, reason=Reason.USER_ERROR, code=3, error_type="SystemExit", message="sys.exit(3) (in run)")
SCRIPT_EXIT = Outcome(ok=False, reason=Reason.USER_ERROR, code=3, message="exited with code 3")
SEGV = Outcome(ok=False, reason=Reason.USER_ERROR, code=139, message="ended by SIGSEGV")
MEMORY = error("MemoryError", message="Unable to allocate 74.5 GiB (in run)", code=1)
CUDA = error("RuntimeError", message="CUDA out of memory (in run)", code=1)
IN_LOG = Outcome(ok=False, reason=Reason.USER_ERROR, code=1, message="exited with code 1", detail="MemoryError")
SIGKILL = Outcome(ok=False, reason=Reason.UNKNOWN, code=137, message="ended by SIGKILL")
SIGTERM = Outcome(ok=False, reason=Reason.UNKNOWN, code=143, message="ended by SIGTERM")
BY_KERNEL = dataclasses.replace(SIGKILL, clues=(Clue("kernel", "Out of memory: Killed process 7 (python)"),))


def world_of(*roles, **tolerance):
    return World(job(*(roles or ({"name": "w", "replicas": 2},)), faultTolerance=tolerance)).boot()


def settled(world):
    """Every restart is over, whatever backoff it waited for."""
    world.settle()
    while world.state.incidents and world.state.verdict is None:
        world.tick()
        world.settle()
    return world


def end(world, outcome, *, after=60.0, role="w", rank=0):
    world.now += after
    world.end(role, rank, outcome)
    return settled(world)


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (EXIT, "the same exit code 3 twice"),
        (SCRIPT_EXIT, "the same exit code 3 twice"),
        (SEGV, "the same signal 11 twice"),
        (MEMORY, SECOND),
        (CUDA, SECOND),
        (IN_LOG, "the same exit code 1 twice"),
    ],
)
def test_the_second_equal_end_ends_the_job(outcome, words):
    world = end(world_of(), outcome)
    assert world.state.phase is Phase.RUNNING
    end(world, outcome)
    assert (world.state.phase, world.state.verdict.reason) == (Phase.FAILED, reasons.USER_ERROR_REPEATS)
    assert words in world.state.verdict.message
    assert "w/0: " in world.state.verdict.message


@pytest.mark.parametrize("second", [SEGV, dataclasses.replace(EXIT, code=4), error(), CUDA])
def test_a_different_end_is_no_repetition(second):
    world = end(end(world_of(), EXIT), second)
    assert world.state.phase is Phase.RUNNING


def test_the_same_end_of_another_rank_is_no_repetition_but_of_a_world_it_is():
    world = end(end(world_of(), EXIT), EXIT, rank=1)
    assert world.state.phase is Phase.RUNNING
    torch = {"name": "t", "type": "Elastic", "replicas": 2, "replicasPerGroup": 2}
    world = end(world_of(torch), SCRIPT_EXIT, role="t")
    assert end(world, SCRIPT_EXIT, role="t", rank=1).state.verdict.reason == reasons.USER_ERROR_REPEATS


@pytest.mark.parametrize(
    "between",
    [
        pytest.param(lambda w: dataclasses.replace(EXIT, step=5), id="its own step"),
        pytest.param(lambda w: dataclasses.replace(EXIT, advanced=w.now + 30.0), id="a step of any role"),
        pytest.param(lambda w: _saved(w) or EXIT, id="a checkpoint"),
        pytest.param(lambda w: _much_later(w) or EXIT, id="an hour ready"),
    ],
)
def test_progress_between_makes_it_a_failure_like_any_other(between):
    world = end(world_of(), EXIT)
    world.now += 1.0
    world = end(world, between(world))
    assert world.state.phase is Phase.RUNNING
    assert end(world, EXIT, after=60.0).state.phase is Phase.FAILED


def _saved(world):
    world.send(ev.CheckpointCommitted("w/1", CheckpointId(RunId(1, 1), 3)))


def _much_later(world):
    world.now += 3600.0


def test_a_step_that_was_told_before_the_first_end_is_no_progress():
    world = world_of()
    early = dataclasses.replace(EXIT, advanced=world.now + 5.0, step=4)
    assert end(end(world, early), early).state.phase is Phase.FAILED


@pytest.mark.parametrize("reason", ["NodeLost", "NodeFrozen", "Preempted", "Network", "DeviceError"])
def test_a_rank_that_blames_a_peer_does_not_count_as_repeating(reason):
    world = world_of()
    for _ in range(4):
        end(world, dataclasses.replace(SCRIPT_EXIT, reason=Reason(reason)), after=1.0)
    assert world.state.verdict is None
    end(end(world, EXIT), dataclasses.replace(SCRIPT_EXIT, reason=Reason(reason)))
    assert end(world, EXIT).state.phase is Phase.RUNNING, "they are not in a row"


@pytest.mark.parametrize("outcome", [SIGKILL, SIGTERM, BY_KERNEL, KILLED])
def test_a_ready_rank_that_somebody_kills_goes_on(outcome):
    world = world_of()
    for _ in range(6):
        end(world, outcome)
    assert world.state.phase is Phase.RUNNING


@pytest.mark.parametrize("outcome", [SIGKILL, SIGTERM, KILLED])
def test_a_rank_killed_twice_before_it_was_ready_ends_the_job(outcome):
    world = world_of(backoff={"initialSeconds": 0})
    world.kill("w", 0, outcome)  # it was ready
    for _ in range(2):
        assert world.state.verdict is None
        while world.state.ranks["w", 0].phase is not RankPhase.STARTING:
            world.deliver()
        world.now += 40.0
        world.kill("w", 0, outcome)
        world.pending[:] = [event for event in world.pending if isinstance(event, ev.HostLost)]
        world.deliver()
    assert world.state.verdict.reason == reasons.USER_ERROR_REPEATS
    assert "twice, with no progress between, both before it was ready" in world.state.verdict.message


def test_a_host_that_is_lost_before_its_rank_began_is_no_life():
    world = world_of(backoff={"initialSeconds": 0})
    for life in (1, 2, 3):
        world.send(ev.HostLost(host("w", 0), life, KILLED), after=1.0)
        world.pending.clear()
    assert world.state.last_errors["w", 0].short_incarnation_count == 1


def test_an_end_that_is_told_when_the_rank_was_started_again_is_remembered_once():
    torch = {"name": "t", "type": "Elastic", "replicas": 2, "replicasPerGroup": 2}
    world = world_of(torch, backoff={"initialSeconds": 0})
    peer = error("RuntimeError", message="Connection closed by peer [10.0.0.7]:1", code=1)
    for _ in range(2):
        assert world.state.verdict is None
        before = world.state.ranks["t", 0].incarnation
        end(world, peer, role="t", rank=1)
        world.send(ev.Tick(), after=limits.PEER_WAIT_S)  # no cause shows in time
        settled(world)
        world.send(ev.RankEnded("t", 0, before, EXIT))
    assert (world.state.verdict.reason, world.state.phase) == (reasons.USER_ERROR_REPEATS, Phase.STOPPING)


@pytest.mark.parametrize("outcome", [SIGKILL, KILLED, BY_KERNEL])
def test_three_short_lives_are_a_crash_loop_whoever_sent_the_signal(outcome):
    world = world_of()
    began = world.now
    for _ in range(3):
        assert world.state.verdict is None
        end(world, outcome, after=0.5)
    assert (world.state.phase, world.state.verdict.reason) == (Phase.FAILED, reasons.CRASH_LOOP)
    assert "3 incarnations in a row ended within 30 s of their start" in world.state.verdict.message
    assert world.now - began < 60.0


def test_short_lives_with_progress_or_a_long_one_between_are_no_crash_loop():
    world = world_of()
    for number in range(6):  # rollout/1 of a job whose trainer steps on
        end(world, dataclasses.replace(SIGKILL, advanced=world.now + 4.0), after=5.0)
        assert world.state.verdict is None, number
    world = world_of()
    for after in (5.0, 5.0, 31.0, 5.0, 5.0):
        end(world, SIGKILL, after=after)
    assert world.state.verdict is None


def test_a_life_that_gets_more_memory_is_no_repetition():
    role = {"name": "w", "resources": {"cpu": "1", "memory": "4Gi"}}
    grows = {"restartPolicy": {"outOfMemory": {"maxMemory": "256Gi", "memoryFactor": "1.1"}}}
    total = (("CPU", 64 * GRAIN), ("memory", 512 * 2**30 * GRAIN))
    node = NodeView("n0", total, total, (("dljob.io/node-group", "any"),))
    world = World(job({**role, **grows}), views=(node,)).boot()
    for _ in range(4):
        end(world, BY_KERNEL, after=1.0)
    assert world.state.verdict is None
    world = World(job(role), views=(node,)).boot()
    for _ in range(3):
        end(world, BY_KERNEL, after=1.0)
    assert world.state.verdict.reason == reasons.CRASH_LOOP


def test_a_rule_that_names_the_exit_code_goes_before_a_general_one_does_not():
    named = {"rules": [{"name": "again", "onExitCodes": [3], "action": "RestartProcess"}]}
    world = world_of(**named)
    for _ in range(4):
        end(world, EXIT)
    assert world.state.verdict is None
    general = {"rules": [{"name": "again", "action": "RestartProcess"}]}
    assert end(end(world_of(**general), EXIT), EXIT).state.verdict.reason == reasons.USER_ERROR_REPEATS


@pytest.mark.parametrize("named", ["Unknown", "Killed"])
def test_a_rule_about_unknown_ends_is_about_killed_ones_too(named):
    rules = {"rules": [{"name": "gone", "onReasons": [named], "action": "Fail"}]}
    assert end(world_of(**rules), SIGKILL).state.verdict.reason == reasons.FAIL_RULE
    hang_rule = {"rules": [{"name": "gone", "onReasons": ["Hang"], "action": "Fail"}]}
    world = end(world_of(**hang_rule), SIGKILL)
    assert (world.state.verdict, world.state.faults[-1].reason) == (None, "Killed")


def test_a_process_that_cannot_be_made_is_no_life_that_ends_in_the_same_way():
    world = World(job({"name": "w"}, faultTolerance={"backoff": {"initialSeconds": 0}}))
    world.send(ev.NodesSeen(world.views))
    for life in (1, 2):
        while world.state.ranks["w", 0].phase is not RankPhase.STARTING:
            world.deliver()
        world.pending.clear()
        world.now += 40.0
        if life == 1:
            world.send(ev.HostLost(host("w", 0), life, KILLED))
    world.send(ev.Commanded("c", "restart", "w/0"))
    world.pending.clear()
    world.send(ev.HostLost(host("w", 0), 3, KILLED), after=6.0)
    assert world.state.verdict is None
    assert world.state.hosts[host("w", 0)].incarnation == 4


STANDS = "caller/0 has waited 181 s for w/0.f, which runs at h.py:9 in f"
AGAIN = "it stood at the same line before its restart, with no progress between"


def hang(world, *, role="w", rank=0, line="h.py:9 in f", of_role=False, **done):
    world.now += 600.0
    incarnation = world.state.ranks[role, rank].incarnation
    world.send(ev.HangFound(role, rank, incarnation, "Hang", STANDS, whole=of_role, line=line, **done))
    return settled(world)


def test_a_rank_that_hangs_again_at_the_same_line_ends_the_job():
    world = hang(world_of(), finished=20, step=None)
    assert world.state.phase is Phase.RUNNING
    hang(world, finished=20)
    assert (world.state.phase, world.state.verdict.reason) == (Phase.FAILED, reasons.HANG_REPEATS)
    assert world.state.verdict.message == f"w/0: Hang: {STANDS}; {AGAIN}"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"line": "h.py:10 in f"}),
        ({"line": ""}, {"line": ""}),
        ({}, {"rank": 1}),
        ({"finished": 20}, {"finished": 21}),
        ({"step": 7}, {"step": 8}),
        ({}, {"step": 0}),
        ({}, {"advanced": 1e12}),
    ],
    ids=["another line", "no line", "another rank", "one more call", "one more step", "a first step", "a role's step"],
)
def test_a_rank_that_hangs_elsewhere_or_after_more_was_done_restarts(first, second):
    world = hang(hang(world_of(), **first), **second)
    assert (world.state.phase, world.state.restarts["Process"]) == (Phase.RUNNING, 2)


def test_the_same_step_and_fewer_calls_are_no_progress_and_an_error_between_breaks_the_row():
    steps = {"finished": 20, "step": 7, "advanced": 1.0}
    world = hang(hang(world_of(), **steps), finished=19, step=7, advanced=1.0)
    assert world.state.verdict.reason == reasons.HANG_REPEATS
    world = hang(end(hang(world_of(), **steps), error(frame="h.py:9 in f")), **steps)
    assert world.state.verdict is None
    world = end(hang(end(world_of(), EXIT), **steps), EXIT)
    assert world.state.verdict is None, "a hang breaks a row of exits"


def test_a_save_between_two_hangs_is_progress():
    world = hang(world_of({"name": "w", "type": "Elastic", "replicas": 2}))
    world.now += 60.0
    world.send(ev.CheckpointCommitted("w", CheckpointId(RunId(1, 1), 5)))
    assert hang(world).state.verdict is None


def test_a_circle_that_stands_at_the_same_line_again_ends_the_job_and_so_does_a_world():
    world = hang(hang(world_of(), of_role=True), of_role=True)
    assert world.state.verdict.reason == reasons.HANG_REPEATS
    torch = {"name": "w", "type": "Elastic", "replicas": 2, "replicasPerGroup": 2}
    world = end(world_of(torch), SCRIPT_EXIT)
    hang(world, rank=1)
    assert end(world, SCRIPT_EXIT).state.verdict is None, "a hang breaks a row of exits"
    assert hang(world, rank=1).state.verdict.reason == reasons.HANG_REPEATS


def test_a_rule_that_names_the_hang_goes_before_and_a_policy_that_only_tells_counts_nothing():
    rules = {"rules": [{"name": "again", "onReasons": ["Hang"], "action": "RestartProcess"}]}
    assert hang(hang(world_of(**rules))).state.verdict is None
    assert hang(hang(world_of(hang={"action": "Report"}))).state.verdict is None


# -- stores and SubMasters

RAISED = error("KeyError", message="'ring' (in setup)", code=1)
STORE_GONE = Outcome(ok=False, reason=Reason.UNKNOWN, detail="its worker process has died")


def world_without_store(outcome, starts):
    """A world whose store ends in each of its starts, before it is up; also the seconds until its next start."""
    world = World(job({"name": "t", "type": "Elastic", "replicas": 2}))
    world.send(ev.MasterStarted(1))
    world.send(ev.NodesSeen(world.seen()))
    store, waits = host("t", -1), []
    for _ in range(starts):
        lost_at = world.now
        while (state := world.state.hosts[store]).phase is not HostPhase.SPAWNING or world.pending:
            arrived = [event for event in world.pending if getattr(event, "host", None) != store]
            world.pending = []
            for event in arrived:
                world.send(event)
            if not world.pending and world.state.hosts[store].phase is not HostPhase.SPAWNING:
                world.tick()
        waits.append(world.now - lost_at)
        world.send(ev.HostLost(store, state.incarnation, outcome), after=0.2)
        if world.state.verdict is not None:
            break
    return world, waits


def test_a_store_that_ends_in_each_start_is_started_ever_more_rarely_and_costs_the_budget():
    world, waits = world_without_store(STORE_GONE, 7)
    assert waits == pytest.approx([0, 0, 1, 2, 4, 8, 16], abs=0.1)
    assert len(world.notes(reasons.RESTARTING)) == 7
    assert world.state.verdict is None


@pytest.mark.parametrize(
    ("outcome", "starts", "words"),
    [
        (dataclasses.replace(RAISED, fatal=True), 1, "it would fail again in the same way"),
        (RAISED, 2, SECOND),
        (dataclasses.replace(RAISED, reason=Reason.IMPORT_ERROR, fatal=True), 1, "it would fail again in the same way"),
    ],
)
def test_an_error_of_a_sub_master_ends_the_job_as_one_of_a_rank_does(outcome, starts, words):
    world, waits = world_without_store(outcome, 9)
    assert len(waits) == starts
    assert world.state.verdict.reason == reasons.USER_ERROR_REPEATS
    assert world.state.verdict.message.startswith("t/store: ")
    assert words in world.state.verdict.message


def test_an_error_of_a_sub_master_is_not_repeated_where_the_group_met_in_between_or_at_another_line():
    world = World(job({"name": "t", "type": "Elastic", "replicas": 2})).boot()
    for _ in range(3):
        world.kill_host(host("t", -1), RAISED)
        world.deliver()
        world.now += 1.0
        settled(world)
    assert world.state.phase is Phase.RUNNING
    world, _ = world_without_store(RAISED, 1)
    store = host("t", -1)
    while world.state.hosts[store].phase is not HostPhase.SPAWNING:
        world.settle()
    world.send(
        ev.HostLost(store, world.state.hosts[store].incarnation, dataclasses.replace(RAISED, frame="other.py:1"))
    )
    assert world.state.verdict is None
