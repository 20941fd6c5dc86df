import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "release"))


@pytest.fixture(scope="session")
def root():
    return ROOT
