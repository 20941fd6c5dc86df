from __future__ import annotations

import sys
from collections.abc import Callable
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


@pytest.fixture
def dljob(
    kube: FakeKube, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs a command on the fake cluster: its exit code, stdout and stderr."""
    from dljob.cli import main

    monkeypatch.setenv("DLJOB_HOME", str(tmp_path / "home"))

    def run(*words: str) -> tuple[int, str, str]:
        code = main.run(list(words))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the empty home of this machine's jobs; there is no cluster."""
    monkeypatch.setenv("DLJOB_HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    return tmp_path
