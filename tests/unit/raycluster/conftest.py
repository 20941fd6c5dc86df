"""Makes the kits importable: the one beside the tests, and that of plans."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "plan")]
