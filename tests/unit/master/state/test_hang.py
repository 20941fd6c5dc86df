"""Hangs: whom a silence makes suspect, what convicts, and what is none however long it lasts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map
from master_kit import World, job

from dljob.master import status
from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state import hang
from dljob.master.state.hang import Pace, ProcessSample, SamplePair, Where, judge, paced
from dljob.master.state.state import Phase
from dljob.master.state.views import Outcome, Reason
from dljob.spec.policy import HangPolicy
from dljob.telemetry import reasons

POLICY = HangPolicy(idle_seconds=60, busy_seconds=600)


def told(*at, incarnation=1, first=1):
    """The pace of a rank that told a step at each of these times."""
    pace = None
    for step, when in enumerate(at, first):
        pace = paced(pace, incarnation, step, when)
    return pace


def steady(median=1.0, count=9, step=None):
    """The last of these steps was told at time 0."""
    made = told(*(-median * (count - 1 - i) for i in range(count)))
    return made if step is None else Pace(1, step, made.at, made.times, made.longest)


def seen(where=Where.USER, cpu=0.0, stopped="", line=""):
    """Two looks, a second apart, at a process that used so many CPU seconds between them."""
    return SamplePair(ProcessSample(stopped, 1.0, where, line), ProcessSample(stopped, 1.0 + cpu, where, line), 1.0)


WAITS, BUSY, IDLE, STOPPED = (
    seen(Where.COLLECTIVE),
    seen(cpu=1.0, line="train.py:7 in step"),
    seen(),
    seen(stopped="it is stopped (SIGSTOP)"),
)


# -- pace


def test_the_median_of_a_processs_own_steps_is_its_measure_and_another_process_begins_anew():
    pace = told(0, 1, 2, 3, 13, 14)
    assert (pace.median, pace.longest, pace.measured) == (1, 10, True)
    again = paced(pace, 2, 4, 20)
    assert (again.times, again.longest, again.measured, again.median) == ((), 0, False, 0)


def test_steps_that_one_beacon_tells_share_its_time_and_a_step_told_again_is_a_sign_of_life():
    pace = paced(Pace(1, 10, 0.0), 1, 14, 2.0)
    assert pace.times == (0.5,)
    assert paced(pace, 1, 14, 3.0).at == 3.0
    assert paced(pace, 1, 2, 3.0).step == 2, "an epoch may count its steps anew"


def test_only_the_last_steps_count_for_the_median():
    assert len(told(*range(100)).times) == hang.RECENT


# -- suspicion


def test_a_rank_is_looked_at_after_three_median_steps_and_half_a_second():
    paces = {0: steady(2.0), 1: steady(2.0, count=hang.FEWEST)}
    assert hang.silent(paces, 6.5) == ()
    assert hang.silent(paces, 6.6) == (0,), "the other has not told enough steps"


def test_nobody_is_looked_at_who_is_only_heard_rarely_because_there_are_many():
    pace = None
    for turn in range(9):
        pace = paced(pace, 1, 20 * turn, 2.0 * turn)
    assert (pace.median, pace.gap) == (0.1, 2.0)
    assert hang.silent({0: pace}, 16.0 + 3.5) == ()
    assert hang.silent({0: pace}, 16.0 + 3.6) == (0,)
    late = paced(pace, 1, 200, 116.0)
    assert late.gap == 2.0, "one pause is no habit"


def test_a_silent_rank_is_looked_at_ever_more_rarely():
    assert hang.look_again_at(1.0) == 2.0
    assert hang.look_again_at(10.0) == 15.0


def test_ranks_without_steps_are_looked_at_as_often_as_primemaster_can_afford():
    assert [hang.quiet_every(nodes) for nodes in (0, 1, 64, 640)] == [3.0, 3.0, 3.0, 30.0]


def test_stacks_are_wanted_once_the_silence_is_long():
    paces = {0: steady(), 1: Pace(1, 1, 0.0)}
    assert not hang.wants_stacks(paces, 60, POLICY)
    assert hang.wants_stacks(paces, 61, POLICY)
    assert not hang.wants_stacks({1: Pace(1, 1, 0.0)}, 1e9, POLICY)


# -- verdicts


def who(paces, looks, now, *, world=True, policy=POLICY):
    return [verdict.rank for verdict in judge(paces, looks, now, policy, world=world)]


def test_a_stopped_process_is_proof_at_once_also_of_a_rank_that_never_told_a_step():
    paces = {0: steady(), 1: steady()}
    (verdict,) = judge(paces, {0: WAITS, 1: STOPPED}, 3.6, POLICY, world=True)
    assert (verdict.rank, verdict.message) == (
        1,
        "no step for 3.6 s after step 9, median step 1 s: it is stopped (SIGSTOP)",
    )
    (verdict,) = judge(paces, {0: WAITS, 2: STOPPED}, 3.6, POLICY, world=False)
    assert (verdict.rank, verdict.message) == (2, "it is stopped (SIGSTOP)")


def test_a_process_that_was_stopped_for_one_of_two_looks_is_no_proof():
    moved = SamplePair(ProcessSample("stopped"), ProcessSample(""), 1.0)
    assert who({0: steady()}, {0: moved}, 3.6) == []


@pytest.mark.parametrize(("culprit", "bound"), [(IDLE, 60), (BUSY, 600)])
def test_the_one_for_whom_the_others_wait_is_named_after_its_bound(culprit, bound):
    paces = {rank: steady() for rank in range(4)}
    looks = {0: WAITS, 1: WAITS, 2: culprit, 3: WAITS}
    assert who(paces, looks, bound) == []
    (verdict,) = judge(paces, looks, bound + 1, POLICY, world=True)
    assert verdict.rank == 2
    assert "3 of 4 ranks wait for it in a collective" in verdict.message
    assert ("train.py:7 in step" in verdict.message) == (culprit is BUSY)
    calls = ProcessSample(activity=Where.COLLECTIVE, call="all_reduce")
    (verdict,) = judge(paces, {**looks, 3: SamplePair(calls, calls, 1.0)}, bound + 1, POLICY, world=True)
    assert "3 of 4 ranks wait for it in all_reduce" in verdict.message


def test_bounds_grow_with_the_steps_and_with_the_longest_silence_that_ended_by_itself():
    assert hang.idle_after(steady(10.0), POLICY) == 300
    assert hang.busy_after(steady(10.0), POLICY) == 3000
    paused = told(*range(9), 208)
    assert hang.idle_after(paused, POLICY) == hang.busy_after(paused, POLICY) == 600
    assert hang.idle_after(told(*range(9), 308), POLICY) == 900


@pytest.mark.parametrize("where", [Where.CALL, Where.CHECKPOINT, Where.ORDER, Where.UNKNOWN])
def test_nobody_hangs_while_somebody_waits_for_what_is_no_rank_of_the_role_or_cannot_be_looked_at(where):
    paces = {rank: steady() for rank in range(4)}
    assert who(paces, {0: WAITS, 1: WAITS, 2: IDLE, 3: seen(where)}, 1e6) == []
    assert who(paces, {0: seen(where)}, 1e6, world=False) == []


def test_a_rank_without_a_stack_is_reported_where_only_its_stack_is_missing_to_judge_a_long_silence():
    paces = {rank: steady() for rank in range(3)}
    looks = {0: WAITS, 1: IDLE, 2: seen(Where.UNKNOWN)}
    assert hang.unjudged(paces, looks, 600, POLICY, world=True) == ()
    assert hang.unjudged(paces, looks, 601, POLICY, world=True) == (2,)
    assert hang.unjudged({}, looks, 601, POLICY, world=True) == ()
    calls = looks | {1: seen(Where.CALL)}
    assert hang.unjudged(paces, calls, 601, POLICY, world=True) == (), "a call of another role explains the silence"
    assert hang.unjudged(paces, {0: WAITS, 1: IDLE}, 601, POLICY, world=True) == ()


def test_of_ranks_that_step_alone_those_without_a_stack_are_reported_alone():
    paces = {0: steady(), 1: steady(), 2: Pace(1, 1, 0.0)}
    looks = {0: IDLE, 1: seen(Where.UNKNOWN), 2: seen(Where.UNKNOWN), 3: seen(Where.UNKNOWN)}
    assert hang.unjudged(paces, looks, 600, POLICY, world=False) == ()
    assert hang.unjudged(paces, looks, 601, POLICY, world=False) == (1,)


def test_a_rank_that_moved_between_two_looks_is_in_user_code():
    moved = SamplePair(ProcessSample(activity=Where.COLLECTIVE), ProcessSample(activity=Where.CALL), 1.0)
    assert moved.activity is Where.USER
    assert SamplePair(ProcessSample(activity=Where.CALL), ProcessSample(), 1.0).activity is Where.UNKNOWN


def test_a_process_that_waits_for_a_cpu_all_the_while_works_though_it_used_none():
    waits, idle = ProcessSample(activity=Where.USER, runs=True), ProcessSample(activity=Where.USER)
    assert SamplePair(waits, waits, 1.0).works
    assert not SamplePair(waits, idle, 1.0).works
    assert not SamplePair(idle, waits, 1.0).works


def test_when_all_wait_in_a_collective_the_one_behind_is_named_and_else_the_role():
    paces = {0: steady(), 1: steady(step=8), 2: steady()}
    looks = dict.fromkeys(range(3), WAITS)
    assert who(paces, looks, 60) == []
    (verdict,) = judge(paces, looks, 61, POLICY, world=True)
    assert (verdict.rank, "it is behind them, at step 8" in verdict.message) == (1, True)
    level = {rank: steady() for rank in range(3)}
    (verdict,) = judge(level, looks, 61, POLICY, world=True)
    assert verdict.rank is None
    assert verdict.message == "no step for 61.0 s, median step 1 s: all ranks wait in a collective"
    assert who({0: steady()}, {0: WAITS, 1: WAITS}, 61) == [None], "only one tells steps"


def test_a_role_in_which_nobody_waits_stands_still_only_after_the_longest_bound():
    paces = {rank: steady() for rank in range(4)}
    looks = {0: WAITS, 1: IDLE, 2: IDLE, 3: BUSY}
    assert who(paces, looks, 600) == []
    assert who(paces, looks, 601) == [None]


def test_ranks_that_step_alone_are_judged_alone_and_by_the_longest_bound():
    paces = {0: steady(), 1: steady(), 2: Pace(1, 1, 0.0)}
    looks = {0: IDLE, 2: IDLE, 3: IDLE}
    assert who(paces, looks, 600, world=False) == []
    assert who(paces, looks, 601, world=False) == [0]
    assert who({1: steady()}, {1: WAITS}, 601, world=False) == []


def test_a_role_that_told_no_step_or_one_never_hangs():
    assert who({}, {0: IDLE}, 1e9) == []
    assert who({0: Pace(1, 1, 0.0)}, {0: IDLE}, 1e9) == []
    assert who({0: steady()}, {}, 1e9) == []


@given(st.lists(st.floats(0.01, 59.0), min_size=1, max_size=60), st.sampled_from([True, False]), st.randoms())
def test_no_trace_of_steps_alarms_whose_pauses_stay_within_the_bounds(gaps, world, rng: random.Random):
    """Pauses of any pattern up to the idle bound, at whatever place in user code: the watch looks, and says nothing."""
    now, paces = 0.0, {0: paced(None, 1, 0, 0.0), 1: paced(None, 1, 0, 0.0)}
    for step, gap in enumerate(gaps, 1):
        looks = {rank: rng.choice((WAITS, BUSY, IDLE)) for rank in paces}
        assert judge(paces, looks, now + gap, POLICY, world=world) == ()
        now += gap
        paces = {rank: paced(pace, 1, step, now) for rank, pace in paces.items()}


@given(st.floats(0.01, 100.0))
def test_a_compilation_of_a_hundred_steps_alarms_nobody_while_others_wait_for_it(each):
    paces = {rank: steady(each) for rank in range(4)}
    assert who(paces, {0: BUSY, 1: WAITS, 2: WAITS, 3: WAITS}, 100 * each) == []


# -- stragglers


def test_a_rank_twice_as_slow_as_its_role_is_a_straggler_until_it_is_well_faster():
    role = {rank: steady(1.0, 12) for rank in range(4)}
    assert hang.stragglers(role, frozenset()) == {}
    assert hang.stragglers(role | {3: steady(2.0, 12)}, frozenset()) == {3: 2.0}
    assert hang.stragglers(role | {3: steady(1.6, 12)}, frozenset()) == {}
    assert hang.stragglers(role | {3: steady(1.6, 12)}, frozenset({3})) == {3: pytest.approx(1.6)}


def test_nobody_is_slow_among_two_or_before_all_were_measured_or_without_a_measure():
    assert hang.stragglers({0: steady(1, 12), 1: steady(9, 12)}, frozenset()) == {}
    assert hang.stragglers({0: steady(1, 12), 1: steady(1, 12), 2: steady(9, 5)}, frozenset()) == {}
    assert hang.stragglers(dict.fromkeys(range(3), told(*[0] * 12)), frozenset()) == {}


# -- nested timeouts


def test_a_timeout_of_torch_that_comes_before_the_bounds_is_told_when_the_job_runs():
    made = {"type": "Elastic", "replicas": 2, "entrypoint": {"module": "train"}}
    assert not boot(made).notes(reasons.COLLECTIVE_TIMEOUT_TOO_SHORT)
    (note,) = boot({**made, "comm": {"timeoutSeconds": 900}}).notes(reasons.COLLECTIVE_TIMEOUT_TOO_SHORT)
    assert note.target == "w"
    assert "a rank that works elsewhere is named (hang.busySeconds = 900)" in note.message
    assert note.message.endswith("; set comm.timeoutSeconds above it")
    (note,) = boot({**made, "comm": {"timeoutSeconds": 60}}).notes(reasons.COLLECTIVE_TIMEOUT_TOO_SHORT)
    assert "comm.timeoutSeconds = 60, before a rank that is idle is named (hang.idleSeconds = 180)" in note.message
    assert not boot({**made, "comm": {"timeoutSeconds": 60}}, hang={"action": "Ignore"}).notes(
        reasons.COLLECTIVE_TIMEOUT_TOO_SHORT
    )
    assert not boot().notes(reasons.COLLECTIVE_TIMEOUT_TOO_SHORT), "ranks that are no world have no collective"


# -- what the core does


def boot(role=None, **fault_tolerance):
    made = {"name": "w", "replicas": 3, **(role or {})}
    return World(job(made, faultTolerance=fault_tolerance)).boot()


def found(rank=1, incarnation=1, kind="Hang", *, stacks="/job/stacks/w-1.txt", whole=False):
    return ev.HangFound("w", rank, incarnation, kind, "no step for 9 s", stacks, whole)


def test_a_hung_rank_is_ended_and_started_again_at_its_roles_level_and_the_stacks_are_named():
    world = boot()
    at = len(world.all_actions)
    world.send(found())
    world.settle()
    assert [a.host.index for a in world.of(act.KillHost, at)] == [1]
    assert [own.incarnation for _, own in sorted(world.state.ranks.items())] == [1, 2, 1]
    assert world.state.restarts == Map({"Process": 1})
    (note,) = world.notes(reasons.HANG_FOUND)
    assert (note.target, note.message) == ("w/1", "no step for 9 s; stacks: /job/stacks/w-1.txt")
    (fault,) = status.status(world.state, world.now, {})["recentFaults"]
    assert (fault["reason"], fault["target"]) == ("Hang", "w/1")
    assert fault["evidence"] == ["monitor: hang: no step for 9 s", "stacks: /job/stacks/w-1.txt"]


def test_a_hang_of_a_past_or_unknown_rank_changes_nothing():
    world = boot()
    before = world.state
    assert world.send(found(incarnation=9)) == ()
    assert world.send(ev.HangFound("nobody", 0, 1, "Hang", "")) == ()
    world.kill("w", 1)
    world.deliver()
    assert world.send(found()) == (), "it is being restarted already"
    assert world.state is not before
    world.settle()
    world.end_role("w")
    world.settle()
    assert world.send(found(incarnation=2)) == ()


def test_a_role_that_stands_still_as_a_whole_is_restarted_whole():
    world = boot()
    world.send(found(0, whole=True, stacks=""))
    world.settle()
    assert {own.incarnation for own in world.state.ranks.values()} == {2}
    assert world.state.restarts == Map({"Role": 1})
    (note,) = world.notes(reasons.HANG_FOUND)
    assert (note.target, note.message) == ("w", "no step for 9 s")


def test_a_role_restarted_with_the_job_stays_at_the_level_of_the_job():
    world = boot({"restartPolicy": {"level": "Job"}})
    world.send(found(0, whole=True))
    world.settle()
    assert world.state.restarts == Map({"Job": 1})


@pytest.mark.parametrize("whole", [False, True])
def test_a_hang_fails_a_job_whose_role_is_never_restarted(whole):
    world = boot({"restartPolicy": {"level": "Never"}})
    world.send(found(0, whole=whole))
    world.settle()
    assert world.state.phase is Phase.FAILED
    assert "restartPolicy.level of w is Never" in world.state.verdict.message


@pytest.mark.parametrize(
    "policy",
    [
        {"hang": {"action": "Report"}},
        {"rules": [{"name": "leave", "onReasons": ["Hang"], "action": "Ignore"}]},
    ],
)
def test_a_hang_is_only_told_where_the_policy_or_a_rule_says_so(policy):
    world = boot(**policy)
    actions = world.send(found())
    assert [type(action) for action in actions] == [act.Note]
    assert world.state.phase is Phase.RUNNING


def test_a_rule_says_what_a_hang_does_also_where_it_is_else_only_told():
    rule = {"name": "all", "onReasons": ["Hang"], "action": "RestartRole"}
    world = boot(hang={"action": "Report"}, rules=[rule])
    world.send(found(0, whole=True))
    world.settle()
    assert {own.incarnation for own in world.state.ranks.values()} == {2}


@pytest.mark.parametrize(
    ("attempts", "escalates"), [(2, {}), (1, {"action": "RestartProcess", "escalateTo": "ReplaceNode"})]
)
def test_a_hang_that_blames_nobody_leaves_no_node_where_a_rule_replaces_it(attempts, escalates):
    rule = {"name": "leave", "onReasons": ["Hang"], "action": "ReplaceNode", "maxAttempts": attempts, **escalates}
    world = boot(rules=[rule])
    for incarnation in (1, 2):
        world.send(found(0, incarnation, whole=True))
        world.settle()
        while world.state.incidents:
            world.tick()
            world.settle()
    assert not world.state.exclusions
    assert world.notes(reasons.NODE_REPLACED) == []
    assert {own.incarnation for own in world.state.ranks.values()} == {3}
    assert world.state.restarts["Role"] == (1 if escalates else 2)
    assert len(world.state.marks["rule:leave"]) == attempts


def test_a_hang_for_which_a_rule_replaces_the_node_keeps_its_rank_and_its_stacks():
    rule = {"name": "leave", "onReasons": ["Hang"], "action": "ReplaceNode"}
    world = World(job({"name": "w", "replicas": 2}, faultTolerance={"rules": [rule]}), count=2).boot()
    assert len({unit.node for unit in world.state.units.values()}) == 1
    world.send(found(1))
    told = status.brief(world.state, world.now, {})["lastFault"]
    assert (told["target"], told["rank"]) == ("w/1", "w/1")
    assert any(line.startswith("stacks: ") for line in told["evidence"]), told["evidence"]


def test_a_straggler_is_only_told_unless_a_rule_asks_for_it_by_name():
    any_reason = {"name": "any", "action": "RestartRole"}
    world = boot(rules=[any_reason])
    assert [type(action) for action in world.send(found(kind="Straggler"))] == [act.Note]
    (problem,) = world.state.problems
    assert (problem.reason, problem.target, problem.message) == ("Straggler", "w/1", f"w/1: {found().why}")
    world.send(found(kind="Straggler"), after=9)
    assert world.state.problems == (problem,), "since the first report"
    assert status.brief(world.state, world.now, {})["reason"] == "Straggler"
    world.send(ev.ProblemReported("Straggler", "w/1"))
    assert world.state.problems == ()
    by_name = {"name": "slow", "onReasons": ["Straggler"], "action": "RestartProcess"}
    world = boot(rules=[by_name])
    world.send(found(kind="Straggler"))
    world.settle()
    assert world.state.restarts == Map({"Process": 1})
    assert world.notes(reasons.STRAGGLER_FOUND)
    assert status.status(world.state, world.now, {})["recentFaults"][0]["reason"] == "Straggler"


@pytest.mark.parametrize(("kind", "silent"), [("Actor", 1), ("Elastic", 3)])
def test_the_time_since_the_last_step_went_into_finding_out(kind, silent):
    world = boot({"type": kind})
    world.send(ev.HangFound("w", 1, 1, "Hang", "", silent_s=9.0), after=20.0)
    world.settle()
    spent = status.status(world.state, world.now, {})["ledger"]["accounts"]
    assert spent["detect"] == 9.0 * silent, spent


def test_no_time_went_into_finding_out_a_straggler():
    world = boot(rules=[{"name": "slow", "onReasons": ["Straggler"], "action": "RestartProcess"}])
    world.send(found(kind="Straggler"), after=20.0)
    world.settle()
    assert not status.status(world.state, world.now, {})["ledger"]["accounts"].get("detect")


@pytest.mark.parametrize("size", [1, 2])
def test_in_a_world_of_ranks_a_hung_one_takes_its_world_along(size):
    made = {"type": "Elastic", "replicas": 2, "replicasPerGroup": size, "entrypoint": {"module": "train"}}
    world = boot(made)
    at = len(world.all_actions)
    world.send(found(1))
    world.settle()
    assert {own.incarnation for own in world.state.ranks.values()} == {2}
    assert not any(stop.grace_s for stop in world.of(act.StopRanks, at)), "a stopped process does not see SIGTERM"


def test_ranks_that_meet_again_in_process_do_so_without_the_one_that_hung():
    made = {"type": "Elastic", "replicas": 3, "restartPolicy": {"level": "InProcess"}}
    world = boot(made)
    at = len(world.all_actions)
    world.send(found(1))
    world.settle()
    assert [a.host.index for a in world.of(act.KillHost, at)] == [1], "nobody waits for it to leave"
    assert [a.rank for a in world.of(act.LeaveGroup, at)] == [0, 2]
    assert world.state.restarts == Map({"InProcess": 1})
    assert {own.incarnation for own in world.state.ranks.values()} == {2}


# -- outside witnesses and detectors


def accused(kind="Hang", by="xpu-timer", rank=1):
    return ev.HangFound("w", rank, 1, kind, "XPU_TIMER_COMMON_HANG > 0 for 30 s", by=by)


@pytest.mark.parametrize("kind", ["Hang", "Straggler"])
def test_a_witness_that_may_act_restarts_its_rank_alone_whatever_the_policy_of_hangs_says(kind):
    world = boot(hang={"action": "Report"})
    world.send(accused(kind))
    world.settle()
    assert [own.incarnation for _, own in sorted(world.state.ranks.items())] == [1, 2, 1]


def test_a_rule_still_decides_what_a_witness_that_may_act_does():
    world = boot(rules=[{"name": "leave", "onReasons": ["Hang"], "action": "Ignore"}])
    assert [type(one) for one in world.send(accused())] == [act.Note]


def test_the_node_of_a_rank_with_silent_corruption_is_replaced_by_default():
    world = World(job({"name": "w", "replicas": 1}), count=2).boot()
    (node,) = {host.node for host in world.state.hosts.values() if host.node}
    world.send(accused("SilentCorruption", by="w/0", rank=0))
    world.settle()
    assert node in world.state.exclusions
    assert {host.node for host in world.state.hosts.values() if host.pid} - {node}
    assert [note.target for note in world.notes(reasons.CORRUPTION_FOUND)] == ["w/0"]


def test_a_rule_names_silent_corruption_and_takes_the_place_of_the_replacement():
    rule = {"name": "again", "onReasons": ["SilentCorruption"], "action": "RestartProcess"}
    world = World(job({"name": "w", "replicas": 1}, faultTolerance={"rules": [rule]}), count=2).boot()
    world.send(accused("SilentCorruption", rank=0))
    world.settle()
    assert not world.state.exclusions
    assert world.state.restarts == Map({"Process": 1})


def test_an_exception_of_a_declared_type_is_silent_corruption():
    cause = {"name": "sdc", "onLog": "GradientMismatch:", "reason": "SilentCorruption"}
    world = World(job({"name": "w", "replicas": 1}, faultTolerance={"causes": [cause]}), count=2).boot()
    (node,) = {host.node for host in world.state.hosts.values() if host.node}
    world.end("w", 0, Outcome(ok=False, reason=Reason.USER_ERROR, code=1, error_type="GradientMismatch", message="7"))
    world.settle()
    assert node in world.state.exclusions


def test_a_witness_names_the_culprit_of_a_hang_that_blames_nobody():
    whole, one = hang.HangFinding(None, "no step for 9 s"), hang.HangFinding(2, "no step for 9 s")
    said = {1: "witness xpu-timer: it hangs"}
    assert hang.with_witnesses(whole, said, (0, 1)) == hang.HangFinding(
        1, "no step for 9 s; witness xpu-timer: it hangs"
    )
    assert hang.with_witnesses(whole, said, (0, 2)).rank is None, "it was not looked at"
    both = hang.with_witnesses(whole, {1: "a", 0: "b"}, (0, 1))
    assert both == hang.HangFinding(None, "no step for 9 s; witnesses say that ranks 0, 1 hang")
    left = hang.with_witnesses(whole, {1: "a", 0: "b"}, (0, 1, 2))
    assert left.rank == 2, "the others wait for it in their kernels"
    assert left.message.endswith("all others hang: ranks 0, 1")
    assert hang.with_witnesses(one, said, (1, 2)) == one, "steps and stacks name another one"
    assert hang.with_witnesses(one, {2: "witness a: so"}, (2,)).message == "no step for 9 s; witness a: so"
    assert hang.with_witnesses(whole, {}, (0,)) == whole
