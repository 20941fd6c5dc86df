"""Restarts by annotation happen once."""

from __future__ import annotations

import pytest
from reconcile_kit import World

from dljob.reconcile.state import names
from dljob.reconcile.state.model import Command, Trouble, label
from dljob.runtime.job.gateway_app import ID

AT = "2027-01-15T08:02:00.123456Z"


def ordered(world: World, target: str | None = None, at: str = AT) -> World:
    world.job["metadata"]["annotations"] |= {names.RESTART: at}
    if target:
        world.job["metadata"]["annotations"] |= {names.RESTART_TARGET: target}
    return world


def states(world: World) -> list[tuple[str, str]]:
    return [(entry["target"], entry["state"]) for entry in world.status["lastCommands"]]


def test_a_restart_is_sent_once_and_settled():
    world = ordered(World().running(), "worker/1")
    (command,) = world.look().actions
    assert command == Command(f"restart/worker/1/{AT}", world.name, "10.0.0.1", "restart", "worker/1", "annotation")
    world.settle()
    assert len(world.commands) == 1
    (entry,) = world.status["lastCommands"]
    assert entry == {
        "id": f"restart/worker/1/{AT}",
        "kind": "restart",
        "target": "worker/1",
        "at": AT,
        "state": "Sent",
        "message": "PrimeMaster accepted it",
        "time": "2027-01-15T08:00:00Z",
    }
    assert "CommandSent" in world.reasons()
    assert world.restarted().settle().look().actions == ()


def test_a_checkpoint_is_ordered_once_and_settled_beside_a_restart():
    world = World().running()
    world.job["metadata"]["annotations"] |= {names.CHECKPOINT_NOW: AT}
    (command,) = world.look().actions
    assert command == Command(f"checkpoint/job/{AT}", world.name, "10.0.0.1", "checkpoint", "job", "annotation")
    ordered(world.settle(), "worker/1").settle()
    assert [(entry["kind"], entry["state"]) for entry in world.status["lastCommands"]] == [
        ("checkpoint", "Sent"),
        ("restart", "Sent"),
    ]
    assert any(event.message == "checkpoint of job: PrimeMaster accepted it" for event in world.events)
    assert world.restarted().settle().look().actions == ()


def test_a_restart_without_a_target_restarts_the_job():
    world = ordered(World().running()).settle()
    assert [command.target for command in world.commands] == ["job"]


def test_another_time_or_target_is_another_restart():
    world = ordered(World().running(), "worker").settle()
    ordered(world, at="later").settle()
    ordered(world, "worker/0", at="later").settle()
    assert states(world) == [("worker", "Sent"), ("worker", "Sent"), ("worker/0", "Sent")]


def test_a_job_that_does_not_run_is_not_restarted():
    world = ordered(World()).settle()
    assert states(world) == [("job", "Ignored")]
    assert world.calm().commands == []


def test_a_silent_master_is_waited_for():
    world = ordered(World().running().silent(3)).settle()
    assert "lastCommands" not in world.status
    assert states(world.master().settle()) == [("job", "Sent")]


def test_an_operator_that_died_after_sending_sends_it_again_under_the_same_id():
    world = ordered(World().running())
    world.execute(world.look().actions[0])
    world.restarted().settle().master().settle()
    assert len({command.id for command in world.commands}) == 1
    assert states(world) == [("job", "Sent")]


def test_a_target_that_is_not_there_is_refused_in_the_gateways_words():
    world = ordered(World().running(), "critic")
    words = "the job has no 'critic'; targets are job, a role (worker), or a rank as worker/0"
    world.troubles = (Trouble(f"Command restart/critic/{AT}", 400, words, 1),)
    world.step()
    assert states(world) == [("critic", "Refused")]
    assert world.status["lastCommands"][0]["message"] == words
    assert ("Warning", "CommandRefused") in [(event.type, event.reason) for event in world.events]
    ordered(world, "worker", at="later").settle()
    assert states(world) == [("critic", "Refused"), ("worker", "Sent")]


@pytest.mark.parametrize("words", ["the id of a command is 1 to 253 letters", "the job has no 'worker'", ""])
def test_a_refused_restart_is_not_sent_again_whatever_the_words(words: str):
    world = ordered(World().running(), "worker")
    world.troubles = (Trouble(label(world.look().actions[0]), 400, words, 1),)
    world.settle()
    assert (states(world), world.commands) == ([("worker", "Refused")], [])


def test_the_refusal_of_another_command_changes_nothing():
    world = ordered(World().running(), "worker")
    world.troubles = (Trouble("Command restart/worker/before", 400, "the job has no 'worker'", 1),)
    assert states(world.settle()) == [("worker", "Sent")]


@pytest.mark.parametrize("at", ["Mon Jan  5 12:00:00 UTC 2026", "lundi à midi", "x" * 65, "\ud800"])
def test_any_text_in_the_restart_annotation_makes_a_valid_command_id(at: str):
    world = ordered(World().running(), at=at).settle()
    ordered(world, at=f"{at}!").settle()
    first, second = (command.id for command in world.commands)
    assert first != second
    assert all(ID.fullmatch(id_) for id_ in (first, second))
    assert states(world) == [("job", "Sent"), ("job", "Sent")]


@pytest.mark.parametrize("target", ["worker 1", "Ärger", "w" * 65])
def test_any_target_makes_an_id_that_the_gateway_takes(target: str):
    (command,) = ordered(World().running(), target).look().actions
    assert isinstance(command, Command)
    assert ID.fullmatch(command.id)


def test_a_gateway_that_is_away_is_no_refusal():
    world = ordered(World().running())
    world.troubles = (Trouble(f"Command restart/job/{AT}", 503, "PrimeMaster is not running now", 1),)
    assert [type(action) for action in world.look().actions] == [Command]


def test_the_last_ten_are_kept_and_long_words_cut():
    world = World().running()
    for number in range(12):
        ordered(world, "w" * 100, at=f"{number:02}" + "x" * 100).settle()
    assert len(world.status["lastCommands"]) == 10
    entry = world.status["lastCommands"][-1]
    assert (len(entry["target"]), len(entry["at"])) == (64, 64)
    assert entry["at"].startswith("11")
