"""A trainer that publishes a version for each file of that name and takes cuts while a file says so; and its engine."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from dljob import RoleGroup, WeightChannel, Worker, checkpoint, current_worker, rpc


def train() -> None:
    me, channel = current_worker(), WeightChannel("policy")
    folder = Path(me.job_dir)
    step, version = checkpoint.load() or (0, 1)
    while me.incarnation > 1 and not (folder / "again").exists():
        time.sleep(0.02)
    while not (folder / "go").exists():
        while (folder / "cut").exists():
            me.job.checkpoint()
            step += 1
            checkpoint.save(step, version, persist=False)
            time.sleep(0.1)
        if (folder / f"publish-{version}").exists():
            channel.publish(version, {"layer": {"w": np.full(100_000, float(version)), "b": np.arange(3)}})
            (folder / f"published-{version}").touch()
            version += 1
        time.sleep(0.02)


def publish_and_call() -> None:
    """Call the reader after each version at once, then publish what no file of weights holds."""
    channel, reader, folder = WeightChannel("policy"), RoleGroup("reader"), Path(current_worker().job_dir)
    answers = list[int]()
    for version in range(1, 21):
        channel.publish(version, {"layer": {"w": np.full(10, float(version))}})
        answers.append(reader[0].call("version").result(60))
    channel.publish(21, {"layer": {"w": "text"}})
    (folder / "answers.part").write_text(json.dumps(answers))
    (folder / "answers.part").rename(folder / "answers")
    while not (folder / "go").exists():
        time.sleep(0.02)


class Reader(Worker):
    """Loads by a method, and is called."""

    held = -1

    def load_weights(self, version: int, states: dict[str, Any]) -> None:
        assert states["policy"]["layer"]["w"][0] == version
        self.held = version

    @rpc
    def version(self) -> int:
        return self.held
