"""Ends that only report the loss of a peer: who is the cause, and how long it is looked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from master_kit import World, error, host, job, nodes

from dljob.master.failure import lost_peers
from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state import limits
from dljob.master.state.checkpoint_ids import CheckpointId, RunId
from dljob.master.state.evolve import evolve
from dljob.master.state.hang import ProcessSample, SamplePair, Where
from dljob.master.state.ledger import Account
from dljob.master.state.stalls import Stall
from dljob.master.state.state import Phase, RankPhase
from dljob.master.state.views import Clue, Outcome, PeerSample, Reason
from dljob.telemetry import reasons
from dljob.telemetry.remedies import CauseKind, of_fault

SCRIPTS = {"name": "t", "type": "Elastic", "replicas": 3, "replicasPerGroup": 3, "entrypoint": {"module": "train"}}
CLASSES = {"name": "t", "type": "Elastic", "replicas": 3}
TRACEBACK = """  File "/w/train.py", line 6, in step
  File "/lib/torch/distributed/c10d_logger.py", line 83, in wrapper
  File "/lib/torch/distributed/distributed_c10d.py", line 4181, in all_reduce
"""
PEER = error("RuntimeError", message="[pair.cc:598] Connection closed by peer [127.0.0.1]:4", detail=TRACEBACK)
WATCHDOG = "Watchdog caught collective operation timeout"
ABORTED = Outcome(ok=False, reason=Reason.USER_ERROR, code=134, error_type="c10::DistBackendError", message=WATCHDOG)
BUSY = "it works in user code at eval.py:3 in evaluate"


def started(*roles, **spec) -> World:
    return World(job(*(roles or (SCRIPTS,)), **spec), views=nodes(3)).boot()


def end(world: World, rank: int, outcome: Outcome, *, after: float = 0.0) -> None:
    world.now += after
    world.end("t", rank, outcome)
    world.deliver()


def look(world: World, *samples: PeerSample) -> None:
    present_samples = tuple(
        replace(entry, incarnation=world.state.ranks["t", entry.rank].incarnation) for entry in samples
    )
    world.send(ev.PeersSeen("t", present_samples), after=limits.PEER_SAMPLE_DELAY_S)


def first_cause(world: World) -> str:
    (fault,) = [fault for fault in world.state.faults if not fault.root_number and fault.recovered_at is None]
    return fault.cause


def recovered(world: World) -> World:
    world.settle()
    while world.state.incidents and world.state.verdict is None:
        world.tick()
        world.settle()
    return world


@pytest.mark.parametrize("role", [SCRIPTS, CLASSES], ids=["scripts", "classes"])
def test_a_rank_that_ended_with_code_0_is_the_cause_and_not_the_peers_that_waited_for_it(role):
    world = started(role)
    end(world, 1, Outcome(ok=True, code=0, step=8))
    end(world, 2, PEER)
    end(world, 0, PEER, after=0.1)
    assert first_cause(world) == (
        "t/1: UserError: ended with code 0 at step 8; t/0 and 2 wait for it in all_reduce: uneven data?"
    )
    (fault,) = [fault for fault in world.state.faults if not fault.root_number]
    assert {entry.rank for entry in fault.consequences} == {"t/0", "t/2"}
    assert of_fault(fault.reason, fault.cause).kind is CauseKind.USER_CODE
    assert recovered(world).state.phase is Phase.RUNNING


def test_the_end_with_code_0_may_be_reported_after_the_peers_and_before_another_one_fails():
    world = started()
    end(world, 2, PEER)
    end(world, 1, Outcome(ok=True, code=0), after=0.1)
    assert not world.state.faults, "a death may still be reported"
    world.tick()
    assert world.now == pytest.approx(world.state.faults[0].detected_at)
    assert first_cause(world).startswith("t/1: UserError: ended with code 0; t/2 waits for it in all_reduce")


def test_the_end_that_came_first_says_whether_a_rank_with_code_0_was_waited_for():
    """Whatever order a Map has them in, which changes with the hash seed of PrimeMaster's process."""
    world = started({**SCRIPTS, "replicas": 10, "replicasPerGroup": 10})
    end(world, 9, evolve(PEER, step=20, advanced=world.now + 100))
    for rank in range(8, 1, -1):
        end(world, rank, PEER)
    until = world.state.inquiries["t"].ends_at
    end(world, 0, Outcome(ok=True, code=0, step=8))
    assert world.state.inquiries["t"].ends_at == until


def test_a_death_that_is_reported_last_is_the_cause_although_another_rank_has_ended_with_code_0():
    world = started()
    end(world, 1, Outcome(ok=True, code=0))
    end(world, 2, PEER)
    end(world, 0, error("ValueError"), after=0.3)
    assert first_cause(world).startswith("t/0: UserError: ValueError")


def test_a_rank_without_which_the_others_went_on_is_not_the_cause():
    world = started()
    end(world, 1, Outcome(ok=True, code=0, step=8))
    later = replace(PEER, step=20, advanced=world.now + limits.SAME_FAILURE_WINDOW_S + 9)
    end(world, 2, later, after=limits.SAME_FAILURE_WINDOW_S + 10)
    end(world, 0, later, after=0.1)
    assert first_cause(world).startswith("t/2: cause unknown, it lost its peer: RuntimeError")


@pytest.mark.parametrize(("steps", "ends"), [((8, 8), True), ((8, 9), False), ((None, None), True), ((8, None), True)])
def test_the_second_end_with_code_0_at_the_same_step_ends_the_job(steps, ends):
    world = started()
    for step in steps:
        assert world.state.verdict is None
        end(world, 1, Outcome(ok=True, code=0, step=step), after=1.0)
        end(world, 0, replace(PEER, step=step))
        end(world, 2, PEER)
        recovered(world)
    assert (world.state.verdict is not None) is ends
    if ends:
        assert world.state.verdict.reason == reasons.USER_ERROR_REPEATS
        assert world.state.verdict.message.startswith("t/1: UserError: ended with code 0")


def test_a_save_between_two_ends_without_steps_is_progress():
    world = started()
    for number in (1, 2):
        world.send(ev.CheckpointCommitted("t", CheckpointId(RunId(1, number), number)), after=1.0)
        end(world, 1, Outcome(ok=True, code=0), after=1.0)
        end(world, 0, PEER)
        end(world, 2, PEER)
        recovered(world)
    assert world.state.verdict is None


def test_a_rank_that_ends_slowly_is_the_cause_when_its_own_end_comes():
    world = started()
    end(world, 0, PEER)
    end(world, 2, PEER, after=0.01)
    assert world.state.ranks["t", 0].phase is RankPhase.READY
    assert not world.of(act.StopRanks), "nobody is told to stop before the cause is known"
    end(world, 1, error("AssertionError"), after=1.5)
    assert first_cause(world).startswith("t/1: UserError: AssertionError")
    assert [entry.rank for entry in world.state.faults[0].consequences] == ["t/0", "t/2"]


@pytest.mark.parametrize("role", [SCRIPTS, CLASSES], ids=["scripts", "classes"])
def test_an_error_that_the_host_knows_of_a_rank_that_has_not_ended_is_the_cause(role):
    world = started(role)
    end(world, 0, PEER)
    look(world, PeerSample(1, 0, BUSY, failure=error("AssertionError")), PeerSample(2, 0))
    assert first_cause(world).startswith("t/1: UserError: AssertionError")
    assert recovered(world).state.phase is Phase.RUNNING


def test_a_rank_that_is_busy_elsewhere_is_the_cause_of_the_timeout_of_its_peers():
    world = started()
    end(world, 0, PEER)
    end(world, 2, PEER)
    look(world, PeerSample(1, 0, BUSY, "/stacks.txt"))
    assert first_cause(world) == f"t/1: Hang: {BUSY}, while t/0 and 2 waited for it in all_reduce, in vain"
    assert world.state.faults[0].outcome.clues[1] == Clue("stacks", "/stacks.txt")
    assert recovered(world).state.phase is Phase.RUNNING


def test_most_ranks_busy_elsewhere_are_not_blamed():
    world = started({**SCRIPTS, "replicas": 4, "replicasPerGroup": 4})
    end(world, 0, PEER)
    look(world, PeerSample(1, 0, BUSY), PeerSample(2, 0, BUSY), PeerSample(3, 0))
    assert first_cause(world).startswith(
        "t/1: Hang: it works in user code at eval.py:3 in evaluate, as does t/2, while"
    )
    world = started()
    end(world, 0, PEER)
    look(world, PeerSample(1, 0, BUSY), PeerSample(2, 0, BUSY))
    assert not world.state.faults
    world.tick()
    assert first_cause(world).startswith("t/0: cause unknown, it lost its peer")


def test_a_rank_elsewhere_is_not_the_cause_of_a_connection_that_is_not_of_their_group():
    world = started()
    remote = (Clue("connection", "to another machine, 10.0.0.2:4"),)
    reset = error("ConnectionResetError", message="[Errno 104] Connection reset by peer", detail='File "t.py", line 9')
    end(world, 0, evolve(reset, clues=remote))
    assert ("t", 0) in world.state.held_ends
    look(world, PeerSample(1, 0, BUSY), PeerSample(2, 0))
    world.tick()
    assert not any("t/1" in fault.cause for fault in world.state.faults)


def test_what_was_seen_of_another_process_or_another_role_says_nothing():
    world = started()
    world.send(ev.PeersSeen("t", (PeerSample(1, 1, BUSY),)))
    end(world, 0, PEER)
    world.send(ev.PeersSeen("t", (PeerSample(1, 9, BUSY), PeerSample(0, 1, BUSY), PeerSample(77, 1, BUSY))))
    assert not world.state.faults


@pytest.mark.parametrize("shown", [False, True])
def test_without_a_cause_the_words_blame_nobody_and_not_the_network(shown):
    world = started()
    end(world, 0, PEER)
    if shown:
        look(world, PeerSample(1, 0), PeerSample(2, 0))
    world.tick()
    assert first_cause(world).startswith("t/0: cause unknown, it lost its peer: RuntimeError: [pair.cc:598]")
    fault = world.state.faults[0]
    assert (fault.reason, of_fault(fault.reason, fault.cause).kind) == ("Unknown", CauseKind.UNKNOWN)
    assert "no rank, node or network" in of_fault(fault.reason, fault.cause).advice


def test_a_missing_route_is_the_network():
    world = started()
    for rank in range(3):
        end(world, rank, error("OSError", message="[Errno 113] No route to host"))
    assert world.state.faults[0].reason == "Network"


def test_when_all_ranks_have_lost_a_peer_nobody_is_waited_for():
    world = started()
    for rank in (2, 0, 1):
        end(world, rank, PEER)
    assert first_cause(world).startswith("t/2: cause unknown, it lost its peer")


def test_an_echo_beside_a_failure_that_is_known_waits_for_nothing():
    world = World(job(CLASSES), views=nodes(3), hold=True).boot()
    world.pending.clear()
    world.send(ev.RankEnded("t", 1, 1, error("KeyError")))
    world.send(ev.RankEnded("t", 0, 1, PEER), after=0.1)
    assert not world.state.inquiries
    assert [entry.rank for entry in world.state.faults[0].consequences] == ["t/0"]


def test_a_second_life_is_looked_into_although_the_failure_of_the_first_is_seconds_old():
    world = started()
    for _ in range(2):
        end(world, 1, Outcome(ok=True, code=0, step=8))
        end(world, 0, PEER)
        assert world.state.inquiries
        end(world, 2, PEER)
        recovered(world)
    assert world.state.verdict is not None


def test_only_worlds_are_waited_for_and_only_for_peers_of_the_same_role():
    world = started({"name": "t", "replicas": 2})
    end(world, 0, PEER)
    assert first_cause(world).startswith("t/0: cause unknown, it lost its peer")
    world = started({**SCRIPTS, "replicas": 1, "replicasPerGroup": 1})
    end(world, 0, PEER)
    assert not world.state.inquiries
    called = error("PeerLostError", message="r/1.generate: the process of r/1 (incarnation 1) died with the call")
    world = started()
    end(world, 0, called)
    assert not world.state.inquiries
    end(world, 1, replace(PEER, message="Connection closed by peer: t/2"))


def test_the_host_of_a_rank_may_die_with_its_echo_or_after_it():
    world = started(CLASSES)
    world.kill("t", 0, ABORTED)
    world.deliver()
    assert world.state.held_ends["t", 0].ended_host_incarnation == 1
    end(world, 2, PEER)
    world.kill("t", 2, ABORTED)
    world.deliver()
    assert not world.state.faults
    end(world, 1, error("KeyError"))
    assert first_cause(world).startswith("t/1: UserError: KeyError")
    assert recovered(world).state.phase is Phase.RUNNING


def test_the_store_and_the_host_of_several_ranks_are_handled_at_once():
    world = started(CLASSES)
    end(world, 0, PEER)
    world.kill_host(host("t", -1))
    world.deliver()
    assert first_cause(world).startswith("t/store: ")
    world = started()
    end(world, 0, PEER)
    world.kill("t", 1)
    world.deliver()
    assert not world.state.inquiries
    assert recovered(world).state.phase is Phase.RUNNING


@pytest.mark.parametrize("kind", ["restart", "stop"])
def test_a_command_in_the_meantime_ends_the_inquiry(kind):
    world = started(CLASSES)
    end(world, 0, PEER)
    world.send(ev.Commanded("c", kind, "t" if kind == "restart" else "job"))
    assert not world.state.inquiries
    assert not world.state.held_ends
    recovered(world)
    assert world.state.phase is (Phase.RUNNING if kind == "restart" else Phase.STOPPED)


def test_a_report_that_comes_twice_is_held_once_and_outlives_primemaster():
    world = started()
    end(world, 0, PEER)
    world.send(ev.RankEnded("t", 0, 1, PEER))
    assert world.state.inquiries["t"].held_end_count == 1
    world.crash_master()
    world.settle()
    assert world.state.inquiries["t"].held_end_count == 1
    world.tick()
    assert recovered(world).state.phase is Phase.RUNNING


def test_evidence_is_kept_of_the_first_ends_alone():
    world = started({**SCRIPTS, "replicas": 40, "replicasPerGroup": 40})
    for rank in range(39):
        end(world, rank, PEER)
    details = [entry.outcome.detail for entry in world.state.held_ends.values()]
    assert sum(map(bool, details)) == 16
    world.tick()
    assert first_cause(world).startswith("t/0: cause unknown")


def test_a_rule_that_ignores_the_failure_of_the_cause_leaves_the_others_to_be_handled():
    rules = [{"name": "leave", "onReasons": ["UserError"], "action": "Ignore"}]
    world = started(faultTolerance={"rules": rules})
    end(world, 1, Outcome(ok=True, code=0))
    end(world, 0, PEER)
    end(world, 2, PEER)
    assert world.state.ranks["t", 1].phase is not RankPhase.READY
    assert first_cause(world).startswith("t/0: cause unknown, it lost its peer")


def test_the_time_of_the_search_is_that_of_a_loss():
    world = started()
    end(world, 0, PEER)
    assert {account for account, _ in world.state.ledger.clocks.values()} == {Account.DETECT}


def test_living_ranks_are_looked_at_once_after_a_moment():
    world = started()
    end(world, 0, PEER)
    look_time = world.now + limits.PEER_SAMPLE_DELAY_S
    assert lost_peers.ranks_to_sample(world.state, "t", world.now) == ()
    assert lost_peers.ranks_to_sample(world.state, "t", look_time) == (1, 2)
    assert lost_peers.ranks_to_sample(world.state, "x", look_time) == ()
    look(world, PeerSample(1, 0), PeerSample(2, 0))
    assert lost_peers.ranks_to_sample(world.state, "t", look_time) == ()


def test_what_a_rank_does_outside_of_the_collective_in_words():
    def pair_of(activity: Where, *, cpu: float = 0.0, line: str = "", stopped: str = "") -> SamplePair:
        return SamplePair(ProcessSample(stopped, 0.0, activity, line), ProcessSample(stopped, cpu, activity, line), 1.0)

    words = lost_peers.describe_absence
    assert words(pair_of(Where.USER, cpu=1.0, line="e.py:3 in f")) == "it works in user code at e.py:3 in f"
    assert words(pair_of(Where.CHECKPOINT)) == "it waits in a checkpoint"
    assert words(pair_of(Where.USER, stopped="process 7 is stopped")) == "process 7 is stopped"
    assert words(pair_of(Where.COLLECTIVE)) == words(pair_of(Where.UNKNOWN)) == ""


@pytest.mark.parametrize("role", [SCRIPTS, CLASSES], ids=["scripts", "classes"])
@pytest.mark.parametrize("action", ["Restart", "Report"])
def test_a_rank_that_ended_is_named_where_nobody_sees_a_closed_connection(role, action):
    message = "ended with code 0 at step 8; t/0 and 2 wait for it in barrier: uneven data?"
    world = started(role, faultTolerance={"hang": {"action": action}})
    for incarnation in (1, 2):
        end(world, 1, Outcome(ok=True, code=0, step=8))
        world.send(ev.HangFound("t", 1, incarnation, "Hang", message, "/stacks.txt", silent_s=200.0))
        assert world.notes(reasons.HANG_FOUND)[-1].message == f"{message}; stacks: /stacks.txt"
        if action == "Report":
            assert not world.state.faults
            return
        assert first_cause(world) == f"t/1: UserError: {message}"
        recovered(world)
    assert world.state.verdict.reason == reasons.USER_ERROR_REPEATS


def test_a_rank_that_ended_is_no_straggler_and_hangs_in_no_role_without_a_world():
    world = started()
    end(world, 1, Outcome(ok=True, code=0))
    world.send(ev.HangFound("t", 1, 1, "Straggler", "it is slow"))
    rankless_world = started({"name": "t", "replicas": 2})
    end(rankless_world, 1, Outcome(ok=True, code=0))
    rankless_world.send(ev.HangFound("t", 1, 1, "Hang", "it stands still"))
    assert not world.state.faults
    assert not rankless_world.state.faults


def stalled(world: World, *ranks: tuple[str, int], root: str = "r/0") -> str:
    sentence = "t/2 has waited {} for r/0.score, which runs at h.py:9 in score"
    world.send(ev.StallsFound((Stall("r/0 1 x", world.now - 90.0, sentence, root, ranks),)))
    return "r/0: Hang: t/2 has waited 1m3{}s for r/0.score, which runs at h.py:9 in score; it ended t/2"


@pytest.mark.parametrize("sampled", [True, False], ids=["stacks", "no right to read stacks"])
def test_a_collective_times_out_for_a_rank_that_another_role_keeps_waiting(sampled):
    world = started(SCRIPTS, {"name": "r", "driver": False})
    stalled(world, ("t", 2), ("r", 0))
    for rank in (0, 1):
        end(world, rank, replace(ABORTED, detail=TRACEBACK))
    if sampled:
        look(world, PeerSample(2, 1, "it waits in a call of another role at t.py:9 in step"))
    else:
        world.tick()
    assert first_cause(world).startswith("r/0: Hang: t/2 has waited 1m3")
    assert first_cause(world).endswith(" for r/0.score, which runs at h.py:9 in score; it ended t/2")
    (fault,) = [fault for fault in world.state.faults if not fault.root_number]
    assert {entry.rank for entry in fault.consequences} == {"t/0", "t/1"}


def test_a_stall_of_nobody_known_explains_no_lost_peer():
    world = started(SCRIPTS, {"name": "r", "driver": False})
    stalled(world, ("t", 2), root="")
    end(world, 0, PEER)
    world.tick()
    assert first_cause(world).startswith("t/0: cause unknown, it lost its peer")


RESET = Outcome(
    ok=False,
    reason=Reason.USER_ERROR,
    code=1,
    error_type="ConnectionResetError",
    message="[Errno 104] Connection reset by peer",
    clues=(Clue("connection", "within this machine, at 127.0.0.1"),),
)


def test_a_rank_that_ends_long_after_it_closed_a_connection_within_its_machine_is_the_cause():
    world = started()
    end(world, 0, RESET)
    assert not world.state.faults
    end(world, 1, error("ZeroDivisionError"), after=limits.PEER_WAIT_S + 1.0)
    assert first_cause(world).startswith("t/1: UserError: ZeroDivisionError")
    assert [entry.rank for entry in world.state.faults[0].consequences] == ["t/0"]


def test_a_connection_within_the_machine_is_the_users_own_affair_when_no_rank_fails():
    world = started()
    end(world, 0, RESET)
    look(world, PeerSample(1, 0, BUSY), PeerSample(2, 0, BUSY))
    world.send(ev.Tick(), after=limits.LOCAL_PEER_WAIT_S)
    assert first_cause(world).startswith("t/0: UserError: ConnectionResetError: [Errno 104]")


def test_a_rank_that_ended_well_is_not_blamed_for_a_connection_of_the_users_own():
    world = started()
    end(world, 1, Outcome(ok=True, code=0, step=8))
    end(world, 2, Outcome(ok=True, code=0, step=8))
    end(world, 0, RESET)
    assert first_cause(world).startswith("t/0: UserError: ConnectionResetError")


def test_nothing_that_a_killed_rank_closed_is_held_for_it():
    world = started()
    world.end("t", 1, Outcome(ok=False, reason=Reason.UNKNOWN, code=137, message="ended by SIGKILL"))
    end(world, 0, RESET)
    assert first_cause(world).startswith("t/1: Killed")


def test_two_ranks_of_one_network_that_does_not_acknowledge_blame_it():
    world = started()
    silent = "Timed out waiting 30000ms for recv operation to complete (in run); what it sent to 10.0.0.7:4 is not"
    timed_out = error("RuntimeError", message=f"{silent} acknowledged for 28 s")
    for rank in range(3):
        end(world, rank, timed_out)
    assert first_cause(world).startswith("t/0: Network: RuntimeError: Timed out")
