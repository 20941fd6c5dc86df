from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[2] / "kits"))

from fake_kube import FakeKube


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch) -> FakeKube:
    """Return the fake cluster that every connection reaches; it records the requested contexts in `contexts`."""
    from dljob.api.kubernetes import connect, jobs

    made = FakeKube()
    made.contexts = []  # type: ignore[attr-defined]

    async def reach(context: str | None = None) -> FakeKube:
        made.contexts.append(context)  # type: ignore[attr-defined]
        return made

    monkeypatch.setattr(connect, "connect", reach)
    monkeypatch.setattr(jobs, "POLL_S", 0.01)
    monkeypatch.setenv("NO_COLOR", "1")
    return made
