"""Time and jitter of the operator's shell, in one place, so that a simulation can replace both."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

JITTER = 0.2
"""Share by which a pause is lengthened or shortened, so that jobs that fail together do not return together."""


def _jitter() -> float:
    return random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - it keeps no secret


@dataclass(frozen=True, slots=True)
class OperatorClock:
    """Clocks of one operator; the defaults are those of its machine."""

    wall: Callable[[], float] = time.time
    """Unix time in seconds, for what is compared with the API server's timestamps."""
    monotonic: Callable[[], float] = time.monotonic
    """Seconds since an arbitrary moment, for pauses and ages: a wall clock may be set meanwhile."""
    jitter: Callable[[], float] = _jitter
    """Returns a factor for a pause, between 0.8 and 1.2."""


MACHINE = OperatorClock()
