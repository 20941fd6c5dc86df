"""Makes the helper modules beside the tests importable."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "kits")]


@pytest.fixture
def short() -> Iterator[Path]:
    """Yield a folder with a path short enough for socket paths in it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)
