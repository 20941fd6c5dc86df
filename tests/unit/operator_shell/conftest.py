"""Makes helper modules importable: those beside the tests, and the API server and the head of tests/unit/kube."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [
    str(HERE),
    str(HERE / "controller"),
    str(HERE / "leader"),
    str(HERE / "testing"),
    str(HERE.parent / "kube"),
]
