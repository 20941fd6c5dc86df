"""A folder that grows as PrimeMaster writes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from growing_folder import GrowingFolder

from dljob.testing.simulate.drive import case_of


@pytest.fixture
def growing(tmp_path: Path) -> GrowingFolder:
    return GrowingFolder(tmp_path / "job", case_of(8))
