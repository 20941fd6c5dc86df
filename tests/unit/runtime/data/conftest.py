import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from desk_kit import Desk
from source_kit import Stopping

from dljob.runtime.data import leases
from dljob.runtime.data import source as module


@pytest.fixture
def me(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = SimpleNamespace(role="w", rank=0, world_size=1, stopping=Stopping(), noted={})
    made.note = made.noted.__setitem__
    monkeypatch.setattr(leases, "current_worker", lambda: made)
    monkeypatch.setattr(module, "current_worker", lambda: made)
    monkeypatch.setattr(module.checkpoint, "feeds", [])
    return made


@pytest.fixture
def desk(me: Any) -> Desk:
    del me
    return Desk()
