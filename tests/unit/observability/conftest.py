import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "observability"))


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def promtool():
    """Return promtool as a function; tests that use it are skipped where it is not available."""
    import real_prometheus

    try:
        real_prometheus.programs()
    except real_prometheus.UnavailableError as reason:
        pytest.skip(str(reason))
    return real_prometheus.promtool
