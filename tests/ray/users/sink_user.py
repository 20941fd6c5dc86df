"""A package of somebody else's: a metric sink that writes rows to a file, and fails at a loss of 13."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from dljob.runtime.sinks.sink import SinkRun


class Rows:
    """Writes its rows to `rows.jsonl`."""

    def __init__(self, run: SinkRun) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        self._file = (run.folder / "rows.jsonl").open("a", encoding="utf-8", buffering=1)
        self._file.write(json.dumps(["open", run.id, run.resumed]) + "\n")

    def write(self, step: int, metrics: Mapping[str, float], at: float) -> None:
        """Write a row, or fail."""
        if metrics.get("loss") == 13.0:
            self.close()
            raise RuntimeError(f"refused with {os.environ.get('SINK_USER_KEY')} at step {step}")
        self._file.write(json.dumps([step, dict(metrics)]) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_sink(run: SinkRun) -> Rows:
    """Return the sink of rows."""
    return Rows(run)


def shares() -> dict[str, int]:
    """A role beside it: rank 0 publishes version 7 of weights and fills a queue, the others receive; then all wait."""
    from prime_user import until_told

    from dljob import DataQueue, WeightChannel, current_worker  # not by the sink's process

    if current_worker().rank == 0:
        WeightChannel("policy").publish(7, {"w": [1, 2, 3]})
        queue = DataQueue("left", max_items=9)
        for item in range(3):
            queue.put(item)
    else:
        WeightChannel("policy").receive(60)
    return until_told()
