"""What the clocks of a machine say of the time between two looks: that it stood still, or that its clock was set."""

from __future__ import annotations

from dataclasses import dataclass

from dljob.telemetry import reasons
from dljob.telemetry.wording import seconds

LEAST_S = 5.0
"""Shortest pause and smallest step of the clock that are reported: less is a busy machine, or a slewed clock."""


@dataclass(frozen=True, slots=True)
class ClockSample:
    """The clocks at one moment, in seconds."""

    awake: float
    """Time that passed while the machine was not suspended (CLOCK_MONOTONIC)."""
    passed: float
    """Time that passed, suspension included (CLOCK_BOOTTIME)."""
    wall: float
    """The machine's clock: unix seconds, which may be set."""
    used: float
    """CPU time of this process."""


def compare_clocks(before: ClockSample, after: ClockSample, expected_s: float) -> list[tuple[str, str]]:
    """Return (reason, message) of what happened between two samples that were to be `expected_s` apart."""
    pauses = list[tuple[str, str]]()
    passed, awake = after.passed - before.passed, after.awake - before.awake
    suspended, late_s = passed - awake, awake - expected_s
    # A process that computed for half of the time was busy, and did not stand still.
    was_busy = (after.used - before.used) * 2 > late_s
    if suspended >= LEAST_S:
        message = f"the machine was suspended for {seconds(suspended)}: nothing of the job ran meanwhile"
        pauses.append((reasons.MACHINE_PAUSED, message))
    elif late_s >= LEAST_S and not was_busy:
        message = (
            f"the machine of PrimeMaster stood still for {seconds(late_s)}: it, its container or the job's processes "
            "were paused or stopped, or got no CPU"
        )
        pauses.append((reasons.MACHINE_PAUSED, message))
    step = after.wall - before.wall - passed
    if abs(step) >= LEAST_S:
        way = "ahead" if step > 0 else "back"
        message = f"the machine's clock was set {way} by {seconds(abs(step))}; the job's own clock does not follow it"
        pauses.append((reasons.CLOCK_STEPPED, message))
    return pauses
