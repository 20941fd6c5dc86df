"""What a running job shows on a terminal and elsewhere."""

from __future__ import annotations

import compileall
import io
import time
from collections.abc import Mapping, Sequence
from math import inf, nan
from typing import Any

import pytest

from dljob.cli import live, output, watch
from dljob.cli.progress import View, average, describe, outcome_line, sparkline
from dljob.cli.runner import uncompiled


def status(phase: str = "Running", step: int | None = None, message: str = "", **metrics: float) -> dict[str, Any]:
    return {
        "phase": phase,
        "reason": phase,
        "message": message,
        "roles": [{"name": "actor", "desired": 2, "ready": 1, "succeeded": 0, "restarts": 3}],
        "restarts": {"process": 1, "roleGroup": 2, "job": 0},
        "progress": {"step": step, "metrics": metrics},
        "seconds": 72.0,
    }


RESTART = {"reason": "Restarting", "target": "rollout/1", "level": "Process", "message": "killed; restarting 1"}
RECOVERED = {
    "reason": "Recovered",
    "target": "rollout/1",
    "level": "Process",
    "message": "1 rank ready",
    "seconds": 0.2,
}


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([], ""),
        ([1.0], "▁"),
        ([2.0, 2.0], "▁▁"),
        ([0.0, 1.0], "▁█"),
        ([0.0, 0.5, 1.0], "▁▅█"),
        ([3.0, -1.0], "█▁"),
        ([nan], "!"),
        ([1.0, 2.0, nan], "▁█!"),
        ([nan, 1.0, 1.0], "!▁▁"),
        ([1.0, inf], "▁!"),
        ([-inf, 0.0], "!▁"),
        ([-1.7e308, 1.7e308], "▁█"),
    ],
)
def test_a_sparkline_scales_the_values_to_bars(values, bars):
    assert sparkline(values) == bars


def test_a_sparkline_shows_the_last_values_only():
    assert sparkline([9.0] * 50 + [0.0, 1.0], width=2) == "▁█"


def test_the_moving_average_is_over_five():
    assert average([100.0, 1.0, 2.0, 3.0, 4.0, 5.0]) == 3.0
    assert average([1.0, 2.0]) == 1.5


def test_each_phase_is_shown_in_one_line():
    view = View("j")
    assert view.update(status("Pending"), [], 0.0) == ["[   0.0s] Pending"]
    assert view.update(status("Pending", message="1 of 2"), [], 0.1) == []
    assert view.update(status("Scheduling", message="2 of 2"), [], 1.0) == ["[   1.0s] Scheduling: 2 of 2"]
    assert view.update(status("Running"), [], 2.0) == ["[   2.0s] Running"]


def test_a_wait_for_room_says_what_is_missing_each_time_it_changes():
    view = View("j")
    waiting = {**status("Pending", message="2 GPU are missing"), "reason": "NoRoom"}
    assert view.update(waiting, [], 0.0) == ["[   0.0s] Pending: 2 GPU are missing"]
    assert view.update(waiting, [], 1.0) == []
    assert view.update({**waiting, "message": "1 GPU is missing"}, [], 2.0) == ["[   2.0s] Pending: 1 GPU is missing"]


def test_a_journal_that_cannot_be_written_is_told_at_once_though_the_phase_stays():
    view = View("j")
    assert view.update(status("Running"), [], 0.0) == ["[   0.0s] Running"]
    stalled = {**status("Running", message="the journal cannot be written"), "reason": "JournalStalled"}
    assert view.update(stalled, [], 1.0) == ["[   1.0s] Running: the journal cannot be written"]
    assert view.update(stalled, [], 2.0) == []


def test_restarts_are_told_with_level_cause_and_seconds():
    view = View("j", phase="Running")
    assert view.update(status("Recovering"), [RESTART], 5.0) == [
        "[   5.0s] Restarting rollout/1 [Process]: killed; restarting 1"
    ]
    assert view.update(status("Running"), [RECOVERED], 5.2) == [
        "[   5.2s] Recovered rollout/1 [Process] in 0.20 s",
        "[   5.2s] Running",
    ]


def test_notes_that_a_phase_says_already_are_not_told():
    ready = {"reason": "RoleReady", "target": "actor", "message": "all 2 ranks are ready"}
    assert View("j", phase="Running").update(status("Running"), [ready], 5.0) == []
    assert describe({"reason": "Escalated", "target": "job", "message": "m", "level": "Job"}) == "Escalated [Job]: m"


def test_steps_come_at_most_once_a_second_and_the_last_one_always():
    view = View("j", phase="Running")
    assert view.update(status(step=1, reward=0.5), [], 10.0) == ["[  10.0s] step 1  reward 0.5  avg5 0.5  ▁"]
    assert view.update(status(step=2, reward=1.0), [], 10.4) == []
    assert view.update(status(step=3, reward=0.0), [], 10.9) == []
    assert view.update(status(step=4, reward=0.5, kl=0.001), [], 11.1) == [
        "[  11.1s] step 4  reward 0.5  kl 0.001  avg5 0.5  ▅█▁▅"
    ]
    assert view.update(status(step=4, reward=0.5), [], 13.0) == []
    assert view.update(status(step=5, reward=1.0), [], 13.1)[0].endswith("▅█▁▅█")
    assert view.update(status(step=6), [], 13.2) == []
    assert view.last_step(13.3) == ["[  13.3s] step 6  avg5 0.6  ▅█▁▅█"]
    assert view.last_step(13.4) == []


def test_a_small_number_keeps_its_digits():
    (line,) = View("j", phase="Running").update(status(step=1, loss=1.25e-6), [], 1.0)
    assert line == "[   1.0s] step 1  loss 1.25e-06  avg5 1.25e-06  ▁"


def test_a_step_without_metrics_is_shown_alone():
    assert View("j", phase="Running").update(status(step=3), [], 1.0) == ["[   1.0s] step 3"]


def test_the_last_word_counts_the_restarts():
    assert outcome_line(status("Succeeded")) == "Succeeded after 1m12s; restarts: 1 process, 2 role group"
    assert outcome_line({"phase": "Failed"}) == "Failed after 0.00 s; restarts: none"


def test_a_panel_shows_phase_steps_metrics_and_faults():
    from rich.console import Console

    view = View("ppo")
    view.update(status(step=7, reward=0.5), [RESTART], 3.0)
    out = io.StringIO()
    Console(file=out, width=100, no_color=True).print(live.draw(view, 72.0))
    shown = out.getvalue()
    for words in ("ppo  Running  1m12s", "actor  1/2", "step 7  reward 0.5", "Restarting rollout/1 [Process]"):
        assert words in shown


def test_lines_go_to_stderr_where_there_is_no_terminal(capsys):
    with live.screen("j") as shown:
        assert isinstance(shown, live.Lines)
        shown.show(status("Running", step=1, reward=1.0), [])
        shown.show(status("Running", step=2, reward=2.0), [])
        shown.say("fault: kill rollout/1 at step 2")
        shown.end(status("Succeeded"))
    printed = capsys.readouterr()
    assert printed.out == ""
    assert [line.split("] ", 1)[1].split("  ")[0] for line in printed.err.splitlines()] == [
        "Running",
        "step 1",
        "fault: kill rollout/1 at step 2",
        "step 2",
        "Succeeded after 1m12s; restarts: 1 process, 2 role group",
    ]


def test_a_terminal_gets_a_panel(monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(live.screen("j"), live.Panel)
    monkeypatch.setenv("NO_COLOR", "1")
    assert isinstance(live.screen("j"), live.Lines)


@pytest.mark.parametrize(
    ("result", "made"),
    [('{"reward": 0.9}', {"reward": 0.9}), ("[1]", {"result": [1]}), ("", {}), ("null", {"result": None})],
)
def test_the_result_line_holds_the_result_seconds_and_restarts(result, made):
    end = {**status("Succeeded"), "result": result}
    rest = {"seconds": 72.0, "restarts": end["restarts"], "pids_kept": True}
    assert watch.outcome(end, {"pids_kept": True}) == {**made, **rest}


def test_the_result_line_counts_cuts_unless_the_result_has_that_name():
    end = {**status("Succeeded"), "cuts": {"committed": 2}, "result": "{}"}
    assert watch.outcome(end, {})["cuts"] == {"committed": 2}
    assert watch.outcome({**end, "result": '{"cuts": 7}'}, {})["cuts"] == 7


def test_the_result_line_of_a_failed_job_holds_the_first_cause():
    end = {**status("Failed", message="actor/0: ValueError"), "reason": "UserErrorRepeats", "result": ""}
    made = watch.outcome(end, {})
    assert (made["phase"], made["reason"], made["message"]) == ("Failed", "UserErrorRepeats", "actor/0: ValueError")


class FakeConnection:
    """A job that goes through some statuses, with one note before each."""

    def __init__(self, *statuses: dict[str, Any]) -> None:
        self.left = [{**s, "version": i} for i, s in enumerate(statuses, start=1)]
        self.asked: list[tuple[int, int]] = []
        self.version = 0

    def status(self, after_version: int = 0, timeout_s: float = 0.0) -> dict[str, Any]:
        assert 0 < timeout_s <= 2.0
        self.version = after_version
        return self.left.pop(0)

    def notes(self, after_seq: int = 0, timeout_s: float = 0.0) -> list[dict[str, Any]]:
        self.asked.append((self.version, after_seq))
        return [{**RESTART, "seq": after_seq + 1}]


class Looker:
    """Takes part in a watch, and waits for a status no longer than 2 s."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def patience(self) -> float:
        return 2.0

    def __call__(self, status: Mapping[str, Any], notes: Sequence[Mapping[str, Any]]) -> None:
        self.seen.append((status["phase"], len(notes)))


def test_watching_asks_for_what_is_new_and_ends_with_the_job(capsys):
    connection = FakeConnection(status("Pending"), status("Running"), status("Succeeded"))
    look = Looker()
    with live.screen("j") as shown:
        final = watch.watch(connection, shown, [look])  # pyright: ignore[reportArgumentType]
    assert final["phase"] == "Succeeded"
    assert look.seen == [("Pending", 1), ("Running", 1)]
    assert connection.asked == [(0, 0), (1, 1), (2, 2)]
    assert capsys.readouterr().err.count("Restarting rollout/1") == 3


def test_a_status_that_cannot_be_drawn_ends_no_watch(capsys):
    """Its exception would end the command, and with it the embedded Ray and the job."""
    connection = FakeConnection(status(step=1, loss=10**400), status(step=2, loss=nan), status("Succeeded"))
    with live.screen("j") as shown:
        final = watch.watch(connection, shown, [Looker()])  # pyright: ignore[reportArgumentType]
    assert final["phase"] == "Succeeded"
    said = capsys.readouterr().err
    assert "cannot be drawn; the job does not depend on that: OverflowError" in said


def test_a_step_that_stands_still_is_told_ever_more_rarely():
    view = View("j", phase="Running")
    stuck = status(step=20)
    stuck["progress"] |= {"stepTime": "1970-01-01T00:00:00Z", "secondsPerStep": 0.4}
    told = [line for at in range(120) for line in view.update(stuck, [], float(at), float(at))]
    assert told == [
        "[   0.0s] step 20",
        "[   2.0s] step 20, 2 s ago (usually every 0.4 s)",
        "[  12.0s] step 20, 12 s ago (usually every 0.4 s)",
        "[  22.0s] step 20, 22 s ago (usually every 0.4 s)",
        "[  42.0s] step 20, 42 s ago (usually every 0.4 s)",
        "[  82.0s] step 20, 1m22s ago (usually every 0.4 s)",
    ]
    assert view.headline() == "step 20, 1m59s ago (usually every 0.4 s)"
    moved = status(step=21)
    moved["progress"] |= {"stepTime": "1970-01-01T00:02:00Z", "secondsPerStep": 0.4}
    assert view.update(moved, [], 120.0, 120.0) == ["[ 120.0s] step 21"]
    view.update({**stuck, "phase": "Succeeded"}, [], 130.0, 130.0)
    assert view.headline() == "step 20", "it is over"


def test_a_start_that_lasts_is_told_with_what_the_ranks_do():
    view = View("j", begun=100.0, slow_import="no bytecode")
    seen = {"phase": "Scheduling", "message": "1 of 1 units held, 0 of 7 ranks ready"}
    held = {**seen, "roles": [{"name": "a", "ready": 0, "running": 0}]}
    assert view.update(held, [], 101.0) == ["[   1.0s] Scheduling: 1 of 1 units held, 0 of 7 ranks ready"]
    assert view.update(held, [], 104.0) == []
    assert view.update(held, [], 106.0) == ["[   6.0s] Scheduling: 1 of 1 units held, 0 of 7 ranks ready"]
    importing = {**held, "roles": [{"name": "a", "ready": 2, "running": 7}], "message": "2 of 7 ranks ready"}
    assert view.update(importing, [], 111.0) == [], "not before twice as long"
    assert view.update(importing, [], 112.0) == [
        "[  12.0s] Scheduling: 2 of 7 ranks ready; the others import their code, or are in setup() (no bytecode)"
    ]
    in_setup = {**importing, "starting": ["a/2 waiting for b/0.f at a.py:3 in setup", "b/0 at b.py:1 in setup"]}
    assert view.update(in_setup, [], 130.0) == [
        "[  30.0s] Scheduling: 2 of 7 ranks ready; a/2 waiting for b/0.f at a.py:3 in setup; b/0 at b.py:1 in setup"
    ]
    stands = {**in_setup, "stalls": [{"sentence": "a circle"}], "message": "a circle"}
    assert view.update(stands, [], 170.0) == ["[  70.0s] Scheduling: a circle"]
    assert view.update({**importing, "reason": "NoRoom", "message": "x"}, [], 300.0) == ["[ 200.0s] Scheduling: x"]


def test_what_lasts_is_told_again_when_it_has_doubled(capsys):
    with output.telling("starting Ray", 0.01):
        time.sleep(0.1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "starting Ray, for 0.01 s"
    assert 3 <= len(lines) <= 5
    with output.telling("starting Ray", 60.0):
        pass
    assert capsys.readouterr().err == ""


def test_a_package_without_bytecode_is_told(tmp_path, monkeypatch):
    (tmp_path / "unread_package").mkdir()
    (tmp_path / "unread_package/__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert (
        uncompiled("unread_package")
        == f"unread_package is compiled by its first import here: python -m compileall -q {tmp_path}/unread_package"
    )
    compileall.compile_dir(tmp_path / "unread_package", quiet=1)
    assert uncompiled("unread_package") == uncompiled("no_such_package") == ""
