"""The time of a job, which no setting of the machine's clock moves."""

from __future__ import annotations

import time


class JobClock:
    """Unix seconds: the machine's when it begins, and from then on the seconds that really passed.

    Deadlines, backoff and budgets count in it: a clock that is set an hour ahead must not end every wait at once, nor
    one that is set back stop them all.
    """

    def __init__(self) -> None:
        self._began = time.time() - _passed()

    def not_before(self, last: float) -> None:
        """Go on from `last` where the machine's clock says less: the journal's time never goes back."""
        self._began = max(self._began, last - _passed())

    def now(self) -> float:
        """Unix seconds."""
        return self._began + _passed()


def _passed() -> float:
    """Seconds since the machine started, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
