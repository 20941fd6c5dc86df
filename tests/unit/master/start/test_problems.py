"""Problems that stand in a job's way: noted once, shown while they stand, and over with the first success."""

from __future__ import annotations

from typing import Any

import pytest
from master_kit import World, job

from dljob.master.state import events as ev
from dljob.master.state.checkpoint_ids import CheckpointId, RunId
from dljob.master.state.views import Outcome
from dljob.master.status import brief
from dljob.telemetry import reasons

MADE = job({"name": "t", "type": "Elastic", "replicas": 2}, {"name": "w", "driver": False, "replicas": 2})
FULL = "w/0: step 3 is not on disk: No space left on device (/data)"


@pytest.fixture
def world() -> World:
    return World(MADE).boot()


def unsaved(world: World, target: str, message: str = FULL) -> None:
    world.send(ev.ProblemReported(reasons.CHECKPOINT_NOT_SAVED, target, message), after=1)


def shown(world: World) -> dict[str, Any]:
    return brief(world.state, world.now, {})


def noted(world: World) -> list[tuple[str, str]]:
    known = (reasons.CHECKPOINT_NOT_SAVED, reasons.VOLUME_FULL, reasons.PROBLEM_OVER)
    return [(note.reason, note.target) for note in world.notes() if note.reason in known]


def test_a_checkpoint_that_is_not_saved_is_noted_once_and_shown_until_a_save_succeeds(world: World) -> None:
    unsaved(world, "w/0")
    unsaved(world, "w/0", "w/0: step 4 is not on disk: Input/output error (/data)")
    assert noted(world) == [(reasons.CHECKPOINT_NOT_SAVED, "w/0")]
    status = shown(world)
    assert (status["phase"], status["reason"]) == ("Running", reasons.CHECKPOINT_NOT_SAVED)
    assert status["message"] == "w/0: step 4 is not on disk: Input/output error (/data)", "the last word counts"
    (problem,) = status["problems"]
    assert problem["since"] == "1970-01-01T00:16:41.000Z", "since the first report"
    world.send(ev.CheckpointCommitted("w/0", CheckpointId(RunId(1, 1), 5)), after=1)
    assert noted(world)[1:] == [(reasons.PROBLEM_OVER, "w/0")]
    assert (shown(world)["reason"], shown(world)["message"]) == ("Running", "")
    assert "problems" not in shown(world)


def test_one_rank_speaks_for_all_of_a_role_that_meet_the_same_disk(world: World) -> None:
    for target in ("w/0", "w/1", "t"):
        unsaved(world, target)
    assert noted(world) == [(reasons.CHECKPOINT_NOT_SAVED, "w/0"), (reasons.CHECKPOINT_NOT_SAVED, "t")]
    world.send(ev.CheckpointCommitted("w/0", CheckpointId(RunId(1, 1), 5)))
    assert len(noted(world)) == 2
    assert len(shown(world)["problems"]) == 2
    world.send(ev.CheckpointCommitted("w/1", CheckpointId(RunId(1, 1), 5)))
    assert noted(world)[2:] == [(reasons.PROBLEM_OVER, "w/1")]


def test_a_volume_that_is_full_is_over_by_a_report_without_a_message(world: World) -> None:
    full = ev.ProblemReported(reasons.VOLUME_FULL, "job", "the volume of /jobs/a is full")
    over = ev.ProblemReported(reasons.VOLUME_FULL, "job")
    world.send(over)
    assert noted(world) == []
    world.send(full)
    assert shown(world)["reason"] == reasons.VOLUME_FULL
    world.send(over)
    assert noted(world) == [(reasons.VOLUME_FULL, "job"), (reasons.PROBLEM_OVER, "job")]


def test_a_pause_of_the_machine_is_shown_but_does_not_colour_the_phase(world: World) -> None:
    for message in ("the machine was suspended for 20.0 s", "the machine was suspended for 30.0 s"):
        world.send(ev.ProblemReported(reasons.MACHINE_PAUSED, "machine", message), after=1)
    assert [note.message for note in world.notes(reasons.MACHINE_PAUSED)][1:] == [
        "the machine was suspended for 30.0 s"
    ]
    status = shown(world)
    assert (status["reason"], status["message"]) == ("Running", "")
    (problem,) = status["problems"]
    assert (problem["since"], problem["count"]) == ("1970-01-01T00:16:41.000Z", 2), "since the first one"
    assert problem["message"] == "2 times, the last at 1970-01-01T00:16:42Z: the machine was suspended for 30.0 s"
    world.send(ev.ProblemReported(reasons.MACHINE_PAUSED, "machine"))
    assert "problems" not in shown(world)
    assert world.notes(reasons.PROBLEM_OVER) == [], "it was over when it was known"


def test_errors_of_shutdown_and_lost_checkpoints_are_counted_and_news_of_a_standing_problem_are_not(
    world: World,
) -> None:
    for reason in (reasons.SHUTDOWN_FAILED, reasons.CHECKPOINT_DAMAGED, reasons.VOLUME_FULL):
        for number in (1, 2, 3):
            world.send(ev.ProblemReported(reason, "w/0", f"error {number}"), after=1)
    rows = shown(world)["problems"]
    assert [(row["count"], row["message"].rpartition(": ")[2]) for row in rows] == [
        (3, "error 3"),
        (3, "error 3"),
        (1, "error 3"),
    ]


def test_more_problems_than_are_shown_are_counted(world: World) -> None:
    for number in range(30):
        unsaved(world, f"w/{number}")
    status = shown(world)
    assert (len(status["problems"]), status["problemCount"]) == (20, 30)
    assert status["message"].endswith("; and 27 more")


def test_slowness_is_shown_while_it_lasts_and_not_of_a_job_that_ended_well(world: World) -> None:
    for reason in (reasons.CPU_THROTTLED, reasons.VOLUME_FULL):
        world.send(ev.ProblemReported(reason, "w", f"{reason} it is"))
    assert [row["reason"] for row in shown(world)["problems"]] == [reasons.CPU_THROTTLED, reasons.VOLUME_FULL]
    assert shown(world)["reason"] == reasons.CPU_THROTTLED
    for rank in (0, 1):
        world.send(ev.RankEnded("t", rank, 1, Outcome(ok=True, code=0)))
    world.settle()
    assert shown(world)["phase"] == "Succeeded"
    assert [row["reason"] for row in shown(world)["problems"]] == [reasons.VOLUME_FULL]
