"""A trainer that reads from Ray Data: tasks on free CPUs prepare its batches while it trains."""

from __future__ import annotations

from typing import Any

import measure
import numpy as np
import ray.data

from dljob import Worker, progress

RATE = 0.1


class Trainer(Worker):
    """Fits a line to the measurements of a sensor, batch by batch."""

    def setup(self) -> None:
        """Create the pipeline; its tasks start only when it is read."""
        ray.data.DataContext.get_current().enable_progress_bars = False
        self.data = ray.data.range(self.config["rows"], override_num_blocks=8).map_batches(measure.measured)
        self.weights = np.zeros(2)

    def run(self) -> dict[str, Any]:
        """Train; the return value is the job's result."""
        steps, rows, captured = 0, 0, 0
        for _ in range(self.config["epochs"]):
            for batch in self.data.iter_batches(batch_size=self.config["batch"], batch_format="numpy"):
                loss = self.learn(batch["x"], batch["y"])
                steps, rows = steps + 1, rows + len(batch["x"])
                captured += int(batch["captured"].sum())
                progress(steps, loss=loss)
        slope, start = self.weights.round(2).tolist()
        return {"slope": slope, "start": start, "rows": rows, "captured": captured}

    def learn(self, x: np.ndarray, y: np.ndarray) -> float:
        """Take one step of gradient descent on a batch, and return the mean squared error before it."""
        inputs = np.stack([x, np.ones_like(x)])
        error = self.weights @ inputs - y
        self.weights -= RATE * 2 * (inputs * error).mean(axis=1)
        return float((error**2).mean())
