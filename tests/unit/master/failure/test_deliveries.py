"""Items of queues pay for the failures of ranks that held them, in place of the budget of the ranks' role."""

from __future__ import annotations

import pytest
from master_kit import KILLED, World, error, job

from dljob.master.failure import budget
from dljob.master.state import events as ev
from dljob.master.state.state import Phase, RankPhase
from dljob.master.state.views import Outcome, Reason
from dljob.master.status import rfc3339, status
from dljob.telemetry import reasons
from dljob.telemetry.wording import moment

ENGINE = {"name": "e", "replicas": 2, "driver": False, "restartPolicy": {"maxRestarts": 2}}
BAD = error("ValueError", message="no (in run)")


def boot(*roles, queue=True):
    world = World(job({"name": "w"}, *(roles or (ENGINE,)))).boot()
    if queue:
        world.send(ev.QueueOpened("tasks"))
    return world


def fail(world, outcome=BAD, *, rank=0, items=(("20", 1, False),), row=0, is_told=True):
    """A rank fails, and its queue tells which items pay."""
    world.now += 60.0
    incarnation = world.state.ranks["e", rank].incarnation
    world.end("e", rank, outcome)
    world.settle()
    if is_told:
        world.send(ev.DeliveriesFailed("tasks", "e", rank, incarnation, items, row))
    world.settle()
    while world.state.incidents and world.state.verdict is None:
        world.tick()
        world.settle()


def messages(world, reason):
    return [note.message for note in world.notes(reason)]


def test_the_same_error_of_items_that_pay_ends_no_job_and_uses_no_budget():
    world = boot()
    for count in range(1, 8):
        fail(world, items=((f"k{count}", 3, True),) if count % 3 == 0 else ((f"k{count}", count % 3, False),))
        assert world.state.phase is Phase.RUNNING
        assert not world.state.last_errors
        assert all(not world.state.marks.get(key) for key in ("e", budget.JOB_BUDGET_KEY, budget.backoff_key("e")))
    cause = "e/0: UserError: ValueError: no (in run) (at train.py:7 in step)"
    assert messages(world, reasons.ITEM_FAILED)[:2] == [
        f"item k1 of queue tasks has 1 failed delivery, another rank gets it next, if one asks: {cause}",
        f"item k2 of queue tasks has 2 failed deliveries, another rank gets it next, if one asks: {cause}",
    ]
    assert messages(world, reasons.ITEM_SET_ASIDE)[0] == (
        f"item k3 of queue tasks is set aside after 3 failed deliveries: {cause}"
    )
    (problem,) = world.state.problems
    assert (problem.target, problem.message[:7], problem.count) == ("queue/tasks", "item k6", 2)


def test_all_items_that_were_set_aside_are_counted_since_the_first_and_the_first_are_named():
    world = boot()
    fail(world, items=(("k0", 1, True), ("x" * 500, 1, True)))
    first = world.state.problems[0].since
    for number in range(2, 30):
        fail(world, items=((f"k{number}", 1, True),))
    (problem,) = status(world.state, world.now, {})["problems"]
    assert (problem["count"], problem["since"]) == (30, rfc3339(first))
    words = f"30 times (k0, {'x' * 60}, k2, ...), the last at {moment(world.now)}: item k29 of queue tasks is set aside"
    assert problem["message"].startswith(words)


@pytest.mark.parametrize("earlier_failures", [1, 3])
def test_a_restart_that_items_pay_for_does_not_wait_for_earlier_failures_of_the_role(earlier_failures):
    world = boot({**ENGINE, "restartPolicy": {"maxRestarts": 9}})
    for _ in range(earlier_failures):
        fail(world, KILLED, rank=1, is_told=False)
    world.now += 20.0
    world.end("e", 0, BAD)
    world.settle()
    assert [incident.is_backoff_over for incident in world.state.incidents.values()] == [False]
    world.send(ev.DeliveriesFailed("tasks", "e", 0, 1, (("k", 1, False),)))
    world.settle()
    assert world.state.ranks["e", 0].phase is RankPhase.READY
    assert not world.state.incidents
    world.now += 20.0
    world.end("e", 1, KILLED)
    world.settle()
    world.send(ev.DeliveriesFailed("tasks", "e", 0, 1, (("k", 1, False),)))
    assert [incident.is_backoff_over for incident in world.state.incidents.values()] == [False], "that one waits"
    waits = [message.rpartition("; ")[2] for message in messages(world, reasons.RESTARTING)[-2:]]
    seconds = 2 ** (earlier_failures - 1)
    assert waits == [f"restarting 1 rank in at most {seconds} s", f"restarting 1 rank in {seconds} s"]


def test_without_a_payment_the_role_pays_as_ever():
    world = boot()
    fail(world, is_told=False)
    fail(world, is_told=False)
    assert world.state.verdict.reason == reasons.USER_ERROR_REPEATS


def test_a_queue_of_bad_items_alone_ends_the_job_in_words():
    world = boot()
    fail(world, items=(), row=3)
    assert world.state.roles["e"].failing_items_text
    assert [problem.reason for problem in world.state.problems] == [reasons.ITEMS_KEEP_FAILING]
    fail(world, items=(), row=3)
    row = "3 items of queue tasks in a row were set aside, and none was finished between"
    assert world.state.verdict.message.endswith(f"with no progress between; {row}")
    assert messages(world, reasons.ITEMS_KEEP_FAILING) == [f"{row}: the code is at fault, and the budget of e pays"]


def test_the_budget_that_a_row_of_bad_items_uses_up_says_why():
    world = World(job({"name": "w"}, ENGINE, faultTolerance={"maxRestarts": 0})).boot()
    world.send(ev.QueueOpened("tasks"))
    for count in range(3):
        fail(world, error(f"Error{count}", message="no"), items=(), row=3)
    assert world.state.verdict.reason == reasons.BUDGET_EXHAUSTED
    assert world.state.verdict.message.endswith("and none was finished between")


def test_an_item_that_pays_again_ends_the_row():
    world = boot()
    fail(world, items=(), row=3)
    fail(world, error("KeyError", message="other"))
    assert world.state.roles["e"].failing_items_text == ""
    assert [problem.reason for problem in world.state.problems] == []
    assert world.state.phase is Phase.RUNNING


@pytest.mark.parametrize(
    "outcome",
    [
        KILLED,
        Outcome(ok=False, reason=Reason.PREEMPTED, message="its pod was deleted"),
        Outcome(ok=False, reason=Reason.IMPORT_ERROR, error_type="ImportError", message="no module"),
        error("PeerLostError", message="w/0 is gone"),
    ],
)
def test_who_is_not_to_blame_for_its_end_leaves_its_items_clean(outcome):
    world = boot()
    world.end("e", 0, outcome)
    world.settle()
    assert world.state.ranks["e", 0].own_failure is None


def test_a_job_without_queues_remembers_nothing_and_late_news_change_nothing():
    world = boot(queue=False)
    world.end("e", 0, BAD)
    world.settle()
    assert world.state.ranks["e", 0].own_failure is None
    before = world.state
    for event in (
        ev.DeliveriesFailed("tasks", "e", 0, 1, (("20", 1, False),)),
        ev.DeliveriesFailed("tasks", "e", 9, 1, (("20", 1, False),)),
    ):
        world.send(event)
    assert world.state.marks == before.marks
    assert not messages(world, reasons.ITEM_FAILED)


def test_the_items_of_a_rank_that_a_rule_leaves_failed_count_too():
    rule = {"name": "leave", "roles": ["e"], "action": "Ignore"}
    world = World(job({"name": "w"}, ENGINE, faultTolerance={"rules": [rule]})).boot()
    world.send(ev.QueueOpened("tasks"))
    world.end("e", 0, BAD)
    world.settle()
    assert world.state.ranks["e", 0].phase is RankPhase.FAILED
    assert world.state.ranks["e", 0].own_failure.incarnation == 1
