from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from chart_kit import Helm, find_helm


@pytest.fixture(scope="session")
def helm() -> Helm:
    program = find_helm()
    if program is None:
        pytest.skip("no helm: `make kube-build` builds it")
    return Helm(program)
