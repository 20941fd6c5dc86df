"""Display of injected faults for `dljob run --faults`, `dljob chaos` and `dljob sim --faults`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dljob.cli import output
from dljob.errors import ExitCode

if TYPE_CHECKING:
    from dljob.runtime.faults.injector import FaultInjector

SOON_S = 0.05


class Looking:
    """Participant in a watch that passes statuses and notes on to a fault injector."""

    def __init__(self, inflictor: FaultInjector, say: Callable[[str], None]) -> None:
        self._inflictor = inflictor
        self._say = say

    def patience(self) -> float:
        """Return the time until the next scheduled fault; a short time while a fault waits for its target."""
        # Not 0: a fault that waits for its target would make the watch spin.
        return max(SOON_S, self._inflictor.patience(time.time()))

    def __call__(self, status: Mapping[str, Any], notes: Sequence[Mapping[str, Any]]) -> None:
        """Inject due faults, and report them."""
        for line in self._inflictor.observe(status, notes):
            self._say(f"fault: {line}")


def show(report: Mapping[str, Any]) -> None:
    """Print a report to stdout."""
    for row in report["faults"]:
        output.data(f"{_at(row['at'])}  {row['fault']} {row['target']}")
        for incident in row["incidents"]:
            output.data(f"             {_line(incident)}")
    for incident in report["unasked"]:
        output.data(f"of itself    {_line(incident)}")
    for problem in report.get("problems", ()):
        output.data(f"broken: {problem}")


def _at(seconds: float | None) -> str:
    return "never      " if seconds is None else f"{seconds:9.1f} s"


def _line(incident: Mapping[str, Any]) -> str:
    took = incident["seconds"]
    end = "not well again" if took is None else f"well again after {took:.2f} s"
    return f"{incident['cause']} {incident['target']} [{incident['level']}]: {end}"


def verdict(report: Mapping[str, Any]) -> ExitCode:
    """Report unmet expectations; return JOB_FAILED when there are any."""
    # A run without faults has no report to judge.
    if not report:
        return ExitCode.OK
    for number, row in enumerate(report["faults"]):
        if row["problem"]:
            output.say(f"fault {number}, {row['fault']} {row['target']}: {row['problem']}")
    return ExitCode.OK if all(row["met"] for row in report["faults"]) else ExitCode.JOB_FAILED
