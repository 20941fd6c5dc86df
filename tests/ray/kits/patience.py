"""How long a test waits for what must come. It ends a test that hangs, and is no figure of the product."""

from __future__ import annotations

import os


def patience(seconds: float) -> float:
    """Twice as long where two runs share the machine: each has half of it."""
    return seconds * (2 if "PYTEST_XDIST_WORKER" in os.environ else 1)
