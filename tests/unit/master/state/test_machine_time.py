"""Pauses of the machine and steps of its clock, from two looks at its clocks."""

from __future__ import annotations

import pytest

from dljob.master.state.machine_time import ClockSample, compare_clocks
from dljob.telemetry import reasons

BEFORE = ClockSample(awake=100.0, passed=150.0, wall=1e9, used=3.0)


@pytest.mark.parametrize(
    ("awake", "passed", "wall", "used", "reason", "words"),
    [
        (1.0, 1.0, 1.0, 0.0, "", ""),
        (1.0, 21.0, 21.0, 0.0, reasons.MACHINE_PAUSED, "the machine was suspended for 20.0 s"),
        (21.0, 21.0, 21.0, 0.0, reasons.MACHINE_PAUSED, "the machine of PrimeMaster stood still for 20.0 s"),
        (21.0, 21.0, 21.0, 15.0, "", "it computed"),
        (4.0, 4.0, 4.0, 0.0, "", "a busy machine"),
        (1.0, 1.0, 7201.0, 0.0, reasons.CLOCK_STEPPED, "the machine's clock was set ahead by 2h00m"),
        (1.0, 1.0, -3599.0, 0.0, reasons.CLOCK_STEPPED, "the machine's clock was set back by 1h00m"),
        (1.0, 1.0, 1.5, 0.0, "", "a slewed clock"),
    ],
)
def test_what_the_clocks_say(  # noqa: PLR0917 - a row of the table
    awake: float, passed: float, wall: float, used: float, reason: str, words: str
) -> None:
    after = ClockSample(100.0 + awake, 150.0 + passed, 1e9 + wall, 3.0 + used)
    found = compare_clocks(BEFORE, after, 1.0)
    assert [each for each, _ in found] == ([reason] if reason else [])
    assert not found or found[0][1].startswith(words)


def test_a_clock_that_was_set_during_a_suspension_is_both() -> None:
    after = ClockSample(101.0, 190.0, 1e9 + 90.0, 3.0)
    assert [reason for reason, _ in compare_clocks(BEFORE, after, 1.0)] == [
        reasons.MACHINE_PAUSED,
        reasons.CLOCK_STEPPED,
    ]
