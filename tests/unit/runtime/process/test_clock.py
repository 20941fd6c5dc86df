"""Time goes on at its own pace, whatever is done to the machine's clock."""

from __future__ import annotations

import time

import pytest

from dljob.runtime.process import clock
from dljob.runtime.process.clock import JobClock


class Machine:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.unix, self.passed = 1000.0, 7.0
        monkeypatch.setattr(clock.time, "time", lambda: self.unix)
        monkeypatch.setattr(clock, "_passed", lambda: self.passed)


def test_a_clock_that_is_set_moves_nothing(monkeypatch):
    machine = Machine(monkeypatch)
    job = JobClock()
    machine.unix, machine.passed = 1000.0 + 3600.0, 9.0
    assert job.now() == 1002.0
    machine.unix, machine.passed = 50.0, 10.0
    assert job.now() == 1003.0


def test_a_later_master_goes_on_from_the_journal_where_its_clock_is_behind(monkeypatch):
    machine = Machine(monkeypatch)
    job = JobClock()
    job.not_before(4600.0)
    assert job.now() == 4600.0
    machine.passed += 5.0
    assert job.now() == 4605.0  # and not 4600 until the machine's clock has caught up
    job.not_before(1.0)
    assert job.now() == 4605.0


def test_the_clock_advances_with_the_machines_monotonic_clock():
    assert abs(JobClock().now() - time.time()) < 1.0
