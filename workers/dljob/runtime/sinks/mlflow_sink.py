"""MLflow: one run for the job. On where mlflow or mlflow-skinny is installed and MLFLOW_TRACKING_URI is set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from dljob.runtime.sinks.sink import SinkRun

TAG = "dljob.run"
"""The tag that holds the run's name; MLflow itself gives ids of its own."""


def open_sink(run: SinkRun) -> MlflowSink | None:
    """Return the sink; None where mlflow is not installed or not configured."""
    if not os.environ.get("MLFLOW_TRACKING_URI") or find_spec("mlflow") is None:
        return None
    client = import_module("mlflow.tracking").MlflowClient()
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "dljob"
    experiment = client.get_experiment_by_name(name)
    number = client.create_experiment(name) if experiment is None else experiment.experiment_id
    runs = client.search_runs([number], f"tags.`{TAG}` = '{run.id}'", max_results=1)
    mlflow_run = runs[0] if runs else client.create_run(number, tags={TAG: run.id}, run_name=run.id)
    return MlflowSink(client, mlflow_run.info.run_id)


class MlflowSink:
    """Logs rows to a run. It has no `rewind`: MLflow keeps each value that it was given."""

    def __init__(self, client: Any, run_id: str) -> None:
        self._client, self._run_id = client, run_id

    def write(self, step: int, metrics: Mapping[str, float], at: float) -> None:
        """Log the metrics of a step in one request."""
        entities = import_module("mlflow.entities")
        rows = [entities.Metric(name, value, round(at * 1000), step) for name, value in metrics.items()]
        self._client.log_batch(self._run_id, metrics=rows)

    def close(self) -> None:
        """Mark the run as finished; a later process of the job goes on with it all the same."""
        self._client.set_terminated(self._run_id)
