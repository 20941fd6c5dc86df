"""The checkpoint engine `faulty`: ranks of verl's trainer do what FAULTS asks when they send the weights of a step."""

from __future__ import annotations

from typing import Any

import tiny
from verl.checkpoint_engine.base import CheckpointEngineRegistry
from verl_cpu.store import StoreCheckpointEngine


@CheckpointEngineRegistry.register("faulty")
class FaultyCheckpointEngine(StoreCheckpointEngine):
    """The store, with faults."""

    async def send_weights(self, weights: Any, global_steps: int | None = None) -> None:
        """Note the step, and do its fault."""
        tiny.end_of_step(global_steps or 0)
        await super().send_weights(weights, global_steps)
