"""The cost of an event does not grow with the job: lines of Python's code that run, counted at two sizes."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from dljob.testing.simulate import parameter_servers
from dljob.testing.simulate.drive import Case, Driver, Durations
from dljob.testing.world.fault_schedule import Timed
from dljob.testing.world.model import FaultMove

LOSSES, HOUR_S = 6, 3600.0
MOST_GROWTH = 1.05
"""Lines at four times the machines, against those at one time; with passes over all nodes in Python it was 1.42."""


class CountedDriver(Driver):
    """A driver that counts the lines of dljob that run."""

    lines = 0

    def start(self) -> None:
        """Start the job, which costs as much as it has ranks."""
        self._schedule()
        self._until(self.world.now + HOUR_S / 2)

    def lose_machines(self) -> None:
        """Count from the first loss of a machine on, until all have been replaced."""
        before = sys.gettrace()
        sys.settrace(self._of_dljob)
        try:
            self._until(self.world.now + LOSSES * HOUR_S)
        finally:
            sys.settrace(before)

    def _of_dljob(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        return self._count if "/dljob/" in frame.f_code.co_filename else None

    def _count(self, _frame: FrameType, event: str, _arg: Any) -> Any:
        self.lines += event == "line"
        return self._count


def test_lost_machines_cost_no_more() -> None:
    """The events of a lost machine run about as many lines in a job on 300 machines as in one on 75."""
    small, large = _lines(1200), _lines(4800)
    assert large < MOST_GROWTH * small, (small, large)


def _lines(workers: int) -> int:
    size = parameter_servers.Servers(workers, ps=16, days=1.0)
    faults = [
        each
        for number in range(1, LOSSES + 1)
        for each in (
            Timed(number * HOUR_S, FaultMove("node lost", number * 7, parameter_servers.GONE_S)),
            Timed(number * HOUR_S + 1800.0, FaultMove("join")),
        )
    ]
    end = (LOSSES + 1) * HOUR_S
    case = Case(1, parameter_servers.manifest(size), tuple(faults))
    driver = CountedDriver(case, pace=Durations(work=(end, end + 1.0), total=end, resumes=True))
    driver.start()
    driver.lose_machines()
    assert not driver.world.problems
    return driver.lines
