"""Makes the kit beside the tests importable."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))
# A busy machine must not fail a law.
settings.register_profile("control", deadline=None, max_examples=60)
settings.load_profile("control")
