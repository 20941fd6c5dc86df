from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "kits"))
BUILD = Path(__file__).parents[3] / "docs" / "build.py"


@pytest.fixture(scope="session")
def site() -> ModuleType:
    """Return docs/build.py, which builds the site."""
    spec = importlib.util.spec_from_file_location("docs_build", BUILD)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
