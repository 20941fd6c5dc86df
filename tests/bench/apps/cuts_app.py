"""User code of cuts.py: a trainer that measures its saves, and rollouts that feed it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np

from dljob import DataQueue, Worker, checkpoint, current_worker, progress
from dljob.runtime.queues.session import cut_numbers


class Trainer(Worker):
    """Trains on what comes, and asks for a cut every third step."""

    def run(self) -> None:
        me = current_worker()
        samples, prompts = DataQueue("samples", max_items=64), DataQueue("prompts", max_items=64)
        checkpoint.load()
        found: dict[str, list[float]] = {"cut": [], "plain": []}
        state = {"weights": np.zeros(4 << 20, dtype=np.float32), "trained": 0}
        for step in range(me.config["steps"]):
            prompts.put(step, key=str(step))
            samples.get()
            state["trained"] += 1
            time.sleep(me.config["step_s"])
            before, begin = cut_numbers.last_taken, time.perf_counter()
            checkpoint.save(step, state)
            took = time.perf_counter() - begin
            # The first save makes the memory.
            if step:
                found["cut" if cut_numbers.last_taken > before else "plain"].append(took)
            progress(step)
            if step % 3 == 0:
                me.job.checkpoint()
        prompts.close()
        (Path(me.config["out"]) / "cuts.json").write_text(json.dumps(found))


class Rollout(Worker):
    """Answers prompts."""

    def run(self) -> None:
        samples = DataQueue("samples", max_items=64)
        for prompt in DataQueue("prompts", max_items=64):
            samples.put([prompt] * 100, key=str(prompt))
