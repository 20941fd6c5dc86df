"""Weights & Biases: one run for the job. On where wandb is installed and WANDB_API_KEY or WANDB_MODE is set.

WANDB_MODE=offline writes into the sink's folder; `wandb sync` uploads it later. All other variables of wandb hold, too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from dljob.runtime.sinks.sink import SinkRun


def open_sink(run: SinkRun) -> WandbSink | None:
    """Return the sink; None where wandb is not installed or not configured, since it would ask on a terminal."""
    configured = os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_MODE")
    if not configured or find_spec("wandb") is None:
        return None
    wandb = import_module("wandb")
    run.folder.mkdir(parents=True, exist_ok=True)
    project = os.environ.get("WANDB_PROJECT") or "dljob"
    # The same id continues the run, also in another process and another attempt.
    return WandbSink(wandb.init(id=run.id, name=run.id, project=project, dir=str(run.folder), resume="allow"))


class WandbSink:
    """Logs rows to a run. It has no `rewind`: W&B refuses a step below the last one."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def write(self, step: int, metrics: Mapping[str, float], at: float) -> None:  # noqa: ARG002 - W&B has its own clock
        """Log the metrics of a step."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Finish the run's process."""
        self._run.finish()
