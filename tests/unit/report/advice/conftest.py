"""The kit that writes folders of simulated jobs."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[3] / "kits"))
