"""The sinks of W&B and MLflow against stand-ins of their packages; tests/kits/real_sinks.py tries the real ones."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dljob.runtime.sinks import mlflow_sink, wandb_sink
from dljob.runtime.sinks.sink import SinkRun

VARIABLES = ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SinkRun:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for module in (wandb_sink, mlflow_sink):
        monkeypatch.setattr(module, "find_spec", lambda name: True)
    return SinkRun("j-01234567", "j", "0123456789", 1, tmp_path / "sink")


class Told:
    """Records each call of a method."""

    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: self.calls.append((name, args, options))


def module(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    made = ModuleType(name)
    vars(made).update(content)
    monkeypatch.setitem(sys.modules, name, made)


def test_wandb_continues_one_run_in_the_sinks_folder(run, monkeypatch):
    calls, opened = list[Any](), list[Any]()
    module(monkeypatch, "wandb", init=lambda **options: opened.append(options) or Told(calls))
    monkeypatch.setenv("WANDB_MODE", "offline")
    sink = wandb_sink.open_sink(run)
    assert sink is not None
    assert not hasattr(sink, "rewind")
    sink.write(3, {"loss": 0.5}, 1e9)
    sink.close()
    own = {"id": "j-01234567", "name": "j-01234567", "project": "dljob", "dir": str(run.folder), "resume": "allow"}
    assert opened == [own]
    assert calls == [("log", ({"loss": 0.5},), {"step": 3}), ("finish", (), {})]


@pytest.mark.parametrize("opened", [wandb_sink.open_sink, mlflow_sink.open_sink])
def test_a_tracker_that_is_not_configured_or_not_installed_is_off(run, monkeypatch, opened):
    assert opened(run) is None
    for module in (wandb_sink, mlflow_sink):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    monkeypatch.setenv("WANDB_API_KEY", "key")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://example.com")
    assert opened(run) is None


@pytest.mark.parametrize("known", [True, False])
def test_mlflow_finds_its_run_by_a_tag_or_makes_it(run, monkeypatch, known):
    calls, info = list[Any](), SimpleNamespace(info=SimpleNamespace(run_id="r1"))

    class Client(Told):
        def __init__(self) -> None:
            super().__init__(calls)

        def get_experiment_by_name(self, name: str) -> Any:
            return SimpleNamespace(experiment_id="7") if known else None

        def create_experiment(self, name: str) -> str:
            calls.append(("experiment", name))
            return "8"

        def search_runs(self, experiments: list[str], text: str, max_results: int) -> list[Any]:
            calls.append((experiments, text))
            return [info] if known else []

        def create_run(self, number: str, **options: Any) -> Any:
            calls.append((number, options))
            return info

    module(monkeypatch, "mlflow")
    module(monkeypatch, "mlflow.tracking", MlflowClient=Client)
    module(monkeypatch, "mlflow.entities", Metric=lambda *row: row)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "file:///tmp/x")
    sink = mlflow_sink.open_sink(run)
    assert sink is not None
    sink.write(3, {"loss": 0.5}, 1000.25)
    sink.close()
    query = "tags.`dljob.run` = 'j-01234567'"
    made = [("8", {"tags": {"dljob.run": "j-01234567"}, "run_name": "j-01234567"})]
    start = [(["7"], query)] if known else [("experiment", "dljob"), (["8"], query), *made]
    row = ("loss", 0.5, 1000250, 3)
    assert calls == [*start, ("log_batch", ("r1",), {"metrics": [row]}), ("set_terminated", ("r1",), {})]
