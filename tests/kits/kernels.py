"""Features of this machine's kernel."""

from __future__ import annotations

import platform

import pytest

VERSION = tuple(int(part) for part in platform.release().split(".")[:2])
TELLS_ENDS = VERSION >= (6, 15)
NEEDS_ENDS = pytest.mark.skipif(not TELLS_ENDS, reason="Linux before 6.15 tells only its parent how a process ended")
