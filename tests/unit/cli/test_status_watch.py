"""`dljob status --watch` of local jobs, and a step that stands still."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dljob.api import registry
from dljob.api.local import views
from dljob.api.registry import RegistryEntry
from dljob.cli import main, output
from dljob.cli.commands.observe import status as command

NOW = 1_000_000.0
OVER: dict[str, Any] = {"phase": "Succeeded", "roles": [{"desired": 2, "ready": 0, "succeeded": 2}], "restarts": {}}


class Clock:
    """The time of a command; each sleep does what is next."""

    def __init__(self) -> None:
        self.now = NOW
        self.then: list[Callable[[], object]] = []

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.then.pop(0)()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for each in (command, views):
        monkeypatch.setattr(each, "time", made)
    return made


def running(step: int, *, ago: float = 0.0, usual: float | None = 0.4) -> dict[str, Any]:
    """A status of a job whose step rose so long before NOW, and usually does so often."""
    at = datetime.fromtimestamp(NOW - ago, UTC).isoformat()
    usually = {} if usual is None else {"secondsPerStep": usual}
    roles = [{"name": "a", "desired": 2, "ready": 2, "succeeded": 0}]
    return {"phase": "Running", "roles": roles, "progress": {"step": step, "stepTime": at, **usually}, "restarts": {}}


def job(home: Path, **more: Any) -> RegistryEntry:
    folder = str(home / "jobs" / "ppo-01234567")
    return registry.register(RegistryEntry(name="ppo", uid="0123456789abcdef" * 2, dir=folder, started=100.0, **more))


def alive(home: Path) -> RegistryEntry:
    return job(home, runner=os.getpid(), runner_started=registry.start_of(os.getpid()))


def files(record: RegistryEntry, *told: dict[str, Any]) -> list[Callable[[], object]]:
    """What writes these statuses into the folder, one after the other."""
    path = record.folder / "status.json"
    return [functools.partial(path.write_text, json.dumps(each)) for each in told]


def test_a_step_that_stands_still_is_told(home, clock, capsys):
    (write,) = files(alive(home), running(20, ago=46))
    write()
    assert main.run(["status"]) == 0
    assert "  20, 46 s ago (usually every 0.4 s)  " in capsys.readouterr().out.splitlines()[1]


@pytest.mark.parametrize(
    ("ago", "usual", "said"),
    [
        (1.9, 0.4, ""),
        (46, 0.4, ", 46 s ago (usually every 0.4 s)"),
        (46, 20.0, ""),
        (200, 20.0, ", 3m20s ago (usually every 20 s)"),
        (29, None, ""),
        (31, None, ", 31 s ago"),
    ],
)
def test_a_step_counts_as_standing_still_after_several_usual_step_times(ago, usual, said):
    assert output.standing(running(1, ago=ago, usual=usual)["progress"], NOW) == said
    assert output.standing({"step": 1}, NOW) == ""


def test_a_local_job_gives_a_row_for_every_change_until_it_ends(home, clock, capsys):
    first, *clock.then = files(alive(home), *[running(20)] * 15, running(21, ago=-15), OVER)
    first()
    assert main.run(["status", "ppo", "--watch"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == list(command.HEAD)
    assert [row[row.index("2/2") :].rpartition("  ")[0].split(maxsplit=2)[2].strip() for row in rows] == [
        "20",
        "20, 2 s ago (usually every 0.4 s)",
        "20, 12 s ago (usually every 0.4 s)",
        "21",
        "-",
    ]
    assert [row.split()[2] for row in rows] == ["Running"] * 4 + ["Succeeded"]


def test_a_job_whose_runner_goes_is_lost(home, capsys):
    job(home, runner=os.getpid(), runner_started=registry.start_of(os.getpid()) - 1)
    assert main.run(["status", "ppo", "-w", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["phase"] == "Lost"


def test_all_jobs_are_watched_until_ctrl_c(home, clock, capsys):
    (write,) = files(alive(home), OVER)
    write()

    def interrupted() -> None:
        raise KeyboardInterrupt

    clock.then = [lambda: None, interrupted]
    assert main.run(["status", "--watch"]) == 130
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_the_primemaster_of_a_job_on_a_ray_of_others_is_asked(home, clock, monkeypatch, capsys):
    job(home, address="10.0.0.1:6379")
    told = [{**running(20), "version": 7}, {**OVER, "version": 8}]
    asked: list[int] = []

    class Connection:
        def status(self, after_version: int = 0, timeout_s: float = 0.0) -> dict[str, Any]:
            assert timeout_s > 0
            asked.append(after_version)
            return told.pop(0)

    @contextmanager
    def reach(_: RegistryEntry) -> Iterator[Connection]:
        yield Connection()

    monkeypatch.setattr("dljob.api.local.connection.reach", reach)
    assert main.run(["status", "ppo", "-w"]) == 0
    assert asked == [0, 7]
    assert [row.split()[2] for row in capsys.readouterr().out.splitlines()[1:]] == ["Running", "Succeeded"]
