"""What slowed a job down, from its events."""

from __future__ import annotations

from typing import Any

from dljob.report.advice.slowness import MOST, lines


def event(at: float, reason: str, target: str = "w", message: str = "w/1 is slow") -> dict[str, Any]:
    return {"time": at, "reason": reason, "target": target, "message": message}


def test_each_problem_has_its_beginning_and_length() -> None:
    events = [
        event(10, "JobRunning", "job"),
        event(20, "MemoryGrows"),
        event(30, "StragglerFound", "w/1"),
        event(40, "ProblemOver", "v", "MemoryGrows is over after 20.0 s"),
        event(50, "ProblemOver", "w", "MemoryGrows is over after 30.0 s"),
        event(75, "ProblemOver", "w/1", "Straggler is over after 45.0 s"),
        event(80, "SlowCallee"),
        event(90, "Completed", "job"),
    ]
    assert lines(events) == (
        "1970-01-01T00:00:20Z, for 30.0 s: MemoryGrows: w/1 is slow",
        "1970-01-01T00:00:30Z, for 45.0 s: Straggler: w/1 is slow",
        "1970-01-01T00:01:20Z, for 10.0 s: SlowCallee: w/1 is slow",
    )
    assert lines([]) == ()


def test_those_that_lasted_longest_are_listed() -> None:
    events = [event(float(n), "SlowPeer", f"w{n}") for n in range(3 * MOST)]
    assert len(lines(events)) == MOST
    assert lines(events)[0].startswith("1970-01-01T00:00:00Z")
