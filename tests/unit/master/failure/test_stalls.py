"""Stalls: each is reported once, ends by itself or with its ranks, and never with a rank that is not there."""

from __future__ import annotations

import pytest
from master_kit import KILLED, World, error, job, nodes

from dljob.master.failure.stalling import hang_sentence, standing_stalls
from dljob.master.persistence.codec import decode_state, encode_state
from dljob.master.state import events as ev
from dljob.master.state.evolve import evolve
from dljob.master.state.stalls import RootState, Stall, describe, describe_since
from dljob.master.state.state import RankPhase
from dljob.master.state.views import Clue, Outcome, Reason
from dljob.master.status import status
from dljob.reconcile.state.snapshot import digest
from dljob.telemetry import reasons
from dljob.telemetry.evidence import Source

TRAINER, REWARD = ("trainer", 0), ("reward", 0)


def a_world(**options):
    roles = [{"name": "trainer", "replicas": 2}, {"name": "reward", "driver": False}]
    return World(job(*roles, **options), views=nodes(1)).boot()


def a_stall(world, waited=60.0, ranks=(TRAINER, REWARD), root="reward/0", **fields):
    sentence = "trainer/0 has waited {} for reward/0.score, which runs at h.py:9 in {x}"
    return Stall("reward/0.score@5", world.now - waited, sentence, root, ranks, **fields)


def notes(world):
    stall_reasons = reasons.STALL_FOUND, reasons.STALL_ENDED
    return [(note.reason, note.target, note.message) for reason in stall_reasons for note in world.notes(reason)]


def test_a_stall_is_noted_once_with_its_sentence_and_ends_by_itself():
    world = a_world()
    stall = a_stall(world)
    for _ in range(2):
        world.send(ev.StallsFound((stall,)))
    assert world.state.stalls == (stall,)
    assert dict(world.state.stalled) == {TRAINER: stall.since, REWARD: stall.since}
    sentence = "trainer/0 has waited 1m00s for reward/0.score, which runs at h.py:9 in {x}"
    assert notes(world) == [(reasons.STALL_FOUND, "reward/0", sentence)]
    world.now += 15
    world.send(ev.StallsFound())
    assert notes(world)[1:] == [(reasons.STALL_ENDED, "reward/0", "reward/0 goes on after 1m15s")]
    assert not world.state.stalls
    assert not world.state.stalled


def test_a_job_that_is_ended_while_it_stands_still_says_so():
    world = a_world()
    world.send(ev.StallsFound((a_stall(world),)))
    world.send(ev.Commanded("s", "stop", by="ctrl-c"))
    began = describe_since(a_stall(world))
    assert world.state.verdict.message == f"stopped by ctrl-c; it stood still: {began}"


def test_a_length_of_time_becomes_the_moment_at_which_it_began():
    circle = Stall("a", 0.0, "a/0.f -> a/0.f: a circle, for {}, nobody in it can go on")
    since = "a/0.f -> a/0.f: a circle, since 1970-01-01T00:00:00Z, nobody in it can go on"
    assert describe_since(circle) == since


def test_a_known_stall_keeps_its_age_and_only_what_changed_is_news():
    world = a_world()
    stall = a_stall(world)
    world.send(ev.StallsFound((stall,)))
    version = world.state.version
    later = evolve(stall, since=stall.since + 3)  # a clock that was set, or another estimate
    assert standing_stalls(world.state, (later,)) == world.state.stalls
    world.send(ev.StallsFound((later,)))
    assert world.state.version == version
    world.send(ev.StallsFound((evolve(later, ranks=(TRAINER, REWARD, ("trainer", 1))),)))
    assert world.state.stalls[0].since == stall.since
    assert world.state.stalled["trainer", 1] == stall.since
    assert len(notes(world)) == 1
    assert decode_state(encode_state(world.state), world.state.job) == world.state


def test_ranks_that_are_not_there_or_have_ended_are_in_no_stall():
    world = a_world()
    world.end("trainer", 1)
    world.settle()
    lies = (("trainer", 1), ("trainer", 9), ("nobody", 0))
    world.send(ev.StallsFound((a_stall(world, ranks=lies),)))
    assert not world.state.stalls
    # An ended rank may well be the one that the others wait for.
    world.send(ev.StallsFound((a_stall(world, ranks=(TRAINER, *lies), root="trainer/1"),)))
    assert world.state.stalls[0].ranks == (TRAINER,)
    world.send(ev.Tick())
    assert world.state.stalls


def test_a_root_that_turns_out_to_wait_is_the_same_stall_under_another_name():
    world = a_world()
    world.send(ev.StallsFound((a_stall(world),)))
    deeper = evolve(a_stall(world, 61, ranks=(TRAINER, REWARD, ("trainer", 1)), root="trainer/1"), name="trainer/1@4")
    world.send(ev.StallsFound((deeper,)))
    assert [reason for reason, _, _ in notes(world)] == [reasons.STALL_FOUND, reasons.STALL_FOUND]


@pytest.mark.parametrize("outcome", [KILLED, error()], ids=["killed", "failed"])
def test_the_end_of_its_root_ends_a_stall_and_the_restart_says_so(outcome):
    world = a_world()
    world.send(ev.StallsFound((a_stall(world),)))
    world.end("reward", 0, outcome)
    world.settle()
    assert not world.state.stalls
    assert [reason for reason, _, _ in notes(world)] == [reasons.STALL_FOUND]


def test_a_root_that_ends_well_has_gone_on():
    world = a_world()
    world.send(ev.StallsFound((a_stall(world),)))
    world.end("reward", 0, Outcome(ok=True))
    world.settle()
    assert notes(world)[1][:2] == (reasons.STALL_ENDED, "reward/0")


def test_a_waiting_rank_that_ends_leaves_the_stall_to_the_others():
    world = a_world()
    other_key = ("trainer", 1)
    world.send(ev.StallsFound((a_stall(world, ranks=(TRAINER, other_key), root=""),)))
    world.end("reward", 0, error())
    world.settle()
    assert world.state.stalls[0].ranks == (TRAINER, other_key)
    world.end("trainer", 0, error())
    world.settle()
    (stall,) = world.state.stalls
    assert (stall.ranks, dict(world.state.stalled)) == ((other_key,), {other_key: stall.since})
    world.end("trainer", 1)
    world.settle()
    assert not world.state.stalls


def test_a_circle_ends_with_any_of_its_ranks():
    world = a_world()
    circle = a_stall(world, root="", root_state=RootState.CIRCLE)
    circle = evolve(circle, sentence="trainer/0 -> reward/0 -> trainer/0 for {}")
    world.send(ev.StallsFound((circle,)))
    assert notes(world)[0][1:] == ("trainer/0 and reward/0", "trainer/0 -> reward/0 -> trainer/0 for 1m00s")
    world.end("trainer", 0, error())
    world.settle()
    assert not world.state.stalls
    assert len(notes(world)) == 1


def test_the_end_of_the_job_ends_all_stalls():
    world = a_world()
    stall = a_stall(world)
    world.send(ev.StallsFound((stall,)))
    world.send(ev.Commanded("c", "stop"))
    assert not world.state.stalls
    world.send(ev.StallsFound((stall,)))
    assert not world.state.stalls


def test_whom_a_stall_is_about():
    stall = Stall("x", 0.0, "{}")
    assert (stall.blocker_text, describe(stall, -1.0)) == ("job", "0.00 s")
    ranks = tuple(("w", rank) for rank in range(4))
    assert evolve(stall, ranks=ranks).blocker_text == "w/0"
    assert evolve(stall, ranks=ranks, root_state=RootState.CIRCLE).blocker_text == "w/0"
    assert evolve(stall, ranks=ranks[:3], root_state=RootState.CIRCLE).blocker_text == "w/0 and w/1 and w/2"


def test_the_status_of_a_job_that_stands_still_says_so_with_a_text_that_does_not_change():
    world = a_world()
    stall = a_stall(world)
    world.send(ev.StallsFound((stall,)))
    shown = status(world.state, world.now + 5, {})
    assert (shown["phase"], shown["reason"]) == ("Running", reasons.STALL_FOUND)
    assert shown["message"] == status(world.state, world.now + 50, {})["message"] == describe_since(stall)
    (row,) = shown["stalls"]
    assert (row["root"], row["seconds"], row["sentence"]) == ("reward/0", 65.0, describe(stall, world.now + 5))
    (shown_stall,) = digest(shown)["stalls"]
    assert shown_stall == {"name": stall.name, "words": describe_since(stall), "hung": False}


LATE = error("CallTimeoutError", "t.py:8 in run", message="reward/0.score: no answer within 70 s (in run)", code=1)
SENTENCE = "trainer/0 has waited 1m10s for reward/0.score, which runs at h.py:9 in {x}"


def cause_of(world, outcome, key=TRAINER):
    world.end(*key, outcome)
    world.deliver()
    return world.state.faults[-1]


def test_a_time_out_of_a_waiting_rank_is_a_consequence_of_its_stall_and_of_no_other_end():
    world = a_world()
    world.send(ev.StallsFound((a_stall(world, 70.0),)))
    fault = cause_of(world, LATE)
    assert fault.cause == f"reward/0: Hang: {SENTENCE}; it ended trainer/0 (at t.py:8 in run), exit code 1"
    last = status(world.state, world.now, {})["recentFaults"][-1]
    assert (last["rank"], last["incarnation"], last["caller"]) == ("reward/0", 1, "trainer/0")
    for outcome, key in ((error(), TRAINER), (error("PeerLostError"), TRAINER), (LATE, ("trainer", 1)), (LATE, REWARD)):
        world = a_world()
        world.send(ev.StallsFound((a_stall(world, 70.0),)))
        assert cause_of(world, outcome, key).outcome.origin is None, (outcome, key)


@pytest.mark.parametrize("chain", [Source.CAUSE, Source.HANDLED])
def test_an_error_that_was_raised_from_a_time_out_is_a_consequence_too(chain):
    world = a_world()
    world.send(ev.StallsFound((a_stall(world, 70.0),)))
    raised = evolve(error("RuntimeError", code=1), clues=(Clue(chain, "CallTimeoutError: reward/0.score: no answer"),))
    assert cause_of(world, raised).cause.startswith(f"reward/0: Hang: {SENTENCE}; it ended trainer/0")


def test_the_root_of_a_stall_may_have_ended_or_be_a_circle_or_nobody():
    world = a_world()
    stall = a_stall(world, 70.0, ranks=(TRAINER,))
    world.send(ev.StallsFound((stall,)))
    assert cause_of(world, LATE).cause.startswith(f"reward/0: Hang: {SENTENCE}; it ended trainer/0")
    world = a_world()
    world.send(ev.StallsFound((a_stall(world, 70.0, root="", root_state=RootState.CIRCLE),)))
    assert cause_of(world, LATE).cause.startswith("reward/0: Hang: ")
    for circumstances in ({"root_state": RootState.CIRCLE, "ranks": (TRAINER,)}, {}):
        world = a_world()
        world.send(ev.StallsFound((a_stall(world, 70.0, root="", **circumstances),)))
        assert cause_of(world, LATE).cause.startswith("trainer/0: UserError: CallTimeoutError")


def test_a_process_that_was_ended_for_a_hang_has_its_sentence_and_no_other_has():
    world = a_world()
    assert hang_sentence(world.state, REWARD, 1) == ""
    world.send(ev.HangFound(*REWARD, 1, "Hang", "trainer/0 has waited 181 s for reward/0.score", "/stacks.txt"))
    world.send(ev.Commanded("c", "restart", "trainer/0"))
    sentence = "trainer/0 has waited 181 s for reward/0.score"
    assert hang_sentence(world.state, REWARD, 1) == sentence
    world.settle()
    while world.state.incidents:
        world.tick()
        world.settle()
    assert hang_sentence(world.state, REWARD, 1) == sentence
    assert hang_sentence(world.state, REWARD, 2) == sentence, (
        "a caller may ask before PrimeMaster knows of the next end"
    )
    for key, incarnation in ((TRAINER, 1), (("nobody", 0), 1), (REWARD, 5)):
        assert hang_sentence(world.state, key, incarnation) == ""


def test_a_hang_of_a_role_ends_all_its_processes_and_a_consequence_says_its_root():
    world = a_world()
    world.send(ev.HangFound("trainer", 0, 1, "Hang", "trainer/0 -> trainer/1 -> trainer/0: a circle", whole=True))
    assert hang_sentence(world.state, ("trainer", 1), 1) == "trainer/0 -> trainer/1 -> trainer/0: a circle"
    world = a_world()
    world.send(ev.StallsFound((a_stall(world, 70.0),)))
    cause_of(world, LATE)
    assert hang_sentence(world.state, TRAINER, 1) == SENTENCE


@pytest.mark.parametrize("of_role", [True, False])
def test_a_circle_of_ranks_in_setup_restarts_them_and_any_other_hang_waits_until_they_are_ready(of_role):
    world = a_world()
    world.kill(*REWARD)
    while world.state.ranks[REWARD].phase is not RankPhase.STARTING:
        world.deliver()
    world.send(ev.HangFound(*REWARD, 2, "Hang", "reward/0 -> trainer/0 -> reward/0: a circle", whole=of_role))
    assert len(world.notes(reasons.HANG_FOUND)) == of_role
    assert len(world.notes(reasons.RESTARTING)) == 1 + of_role


@pytest.mark.parametrize("hang_first", [True, False])
def test_a_hang_that_is_only_reported_marks_its_stall_whichever_is_found_first(hang_first):
    world = a_world(faultTolerance={"hang": {"action": "Report"}})
    stall = a_stall(world)
    events = ev.HangFound(*REWARD, 1, Reason.HANG.value, "process 7 is stopped"), ev.StallsFound((stall,))
    for event in events if hang_first else reversed(events):
        world.send(event)
    assert world.state.stalls == (evolve(stall, hung=True),)
    world.send(ev.StallsFound())
    world.now += 70
    later = evolve(a_stall(world), name="reward/0@9")
    world.send(ev.StallsFound((later,)))
    assert world.state.stalls == (later,), "it went on between"
