"""The clock of a job, which is independent of changes to the machine's clock."""

from __future__ import annotations

import time

from dljob.master.state.machine_time import ClockSample


class JobClock:
    """Unix seconds: the machine's clock at the start, advanced by the time that really passes.

    Deadlines, backoff and budgets use it: a clock set an hour ahead must not end every wait at once, nor one set back
    stop them all.
    """

    def __init__(self) -> None:
        # Read once: later changes of the machine's clock do not count.
        self._began = time.time() - _passed()

    def not_before(self, last: float) -> None:
        """Go on from `last` if this clock is behind it: the journal's time never goes back."""
        self._began = max(self._began, last - _passed())

    def now(self) -> float:
        """Return unix seconds."""
        return self._began + _passed()


def clock_sample() -> ClockSample:
    """Return what the machine's clocks say now."""
    return ClockSample(time.monotonic(), _passed(), time.time(), time.process_time())


def _passed() -> float:
    """Return the seconds since the machine booted, suspension included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
