"""The trainer of examples/online, which writes down what it restored and what each of its steps has learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import online

from dljob import checkpoint, current_worker


def counts(state: dict[str, Any]) -> list[list[int]]:
    return [[int(count) for count in state[key]] for key in ("shown", "clicked")]


class CheckpointNotes:
    """`checkpoint`, as the example calls it, and a record of its states in the job's folder."""

    def __init__(self) -> None:
        me = current_worker()
        self._folder, self._life = Path(me.job_dir), me.incarnation

    def load(self) -> Any:
        found = checkpoint.load()
        step, state = found or (0, {"shown": [], "clicked": []})
        arrived = self._folder / f"restored-{self._life}"
        arrived.write_text(json.dumps([step, *counts(state)]))
        arrived.rename(arrived.with_suffix(".json"))
        return found

    def save(self, step: int, state: Any, **more: Any) -> None:
        with (self._folder / f"steps-{self._life}.jsonl").open("a") as file:
            file.write(json.dumps([step, *counts(state)]) + "\n")
        checkpoint.save(step, state, **more)


class WatchedTrainer(online.Trainer):
    def run(self) -> int:
        online.checkpoint = CheckpointNotes()
        return super().run()
