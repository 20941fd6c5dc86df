"""Time limits of waits in tests. They end a test that hangs; they are no performance figures of the product."""

from __future__ import annotations

import os


def patience(seconds: float) -> float:
    """Return the time limit; doubled where two runs share the machine, because each gets half of it."""
    return seconds * (2 if "PYTEST_XDIST_WORKER" in os.environ else 1)
