"""User code of the tests of cuts: a trainer with a state, rollouts without one, two queues between them."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

from dljob import DataQueue, QueueClosedError, checkpoint, current_worker, progress

PROMPTS = 120


def say_where() -> Path:
    me = current_worker()
    (Path(me.job_dir) / f"{me.role}-{me.rank}-{me.incarnation}").write_text(str(os.getpid()))
    return Path(me.job_dir)


def trainer() -> None:
    """Put prompts, train on what comes back; the state says which prompts were trained, in which order."""
    me, folder = current_worker(), say_where()
    prompts, samples = DataQueue("prompts", max_items=16, max_deliveries=2), DataQueue("samples")
    fresh: dict[str, Any] = {"sent": 0, "trained": [], "draws": []}
    step, state = checkpoint.load() or (0, fresh)
    if me.incarnation > 1:
        found = {"step": step, "trained": len(state["trained"]), "draws": len(state["draws"])}
        (folder / "new").write_text(json.dumps(found))
        (folder / "new").rename(folder / f"from-{me.incarnation}")
    if me.incarnation == 2:
        prompts.put("bad", key="bad")
    while me.incarnation == me.config["hold"]:
        time.sleep(0.1)  # until all of the job is killed
    while len(state["trained"]) < PROMPTS:
        count = len(state["trained"])
        while count in me.config.get("gates", ()) and not (folder / f"gate-{count}").exists():
            step += 1  # cuts go on
            checkpoint.save(step, state, persist=False)
            me.job.checkpoint()
            time.sleep(0.2)
        while state["sent"] < min(PROMPTS, count + 8):
            prompts.put(state["sent"], key=str(state["sent"]))
            state["sent"] += 1
        for sample in samples.get_batch(2):
            state["trained"].append(sample["prompt"])
        state["draws"].append(random.random())  # noqa: S311 - the test compares its state
        step += 1
        checkpoint.save(step, state, persist=False)
        progress(step)
        if step % me.config["every"] == 0:
            me.job.checkpoint()
        time.sleep(me.config["pause_s"])
    prompts.close()
    (folder / "trained").write_text(json.dumps(state))


def rollout() -> None:
    """Answer prompts until there are none; has no state."""
    say_where()
    prompts, samples = DataQueue("prompts", max_items=16, max_deliveries=2), DataQueue("samples")
    while True:
        try:
            prompt: Any = prompts.get()
        except QueueClosedError:
            return
        time.sleep(0.02)
        if prompt == "bad":
            raise ValueError("nobody can answer it")
        samples.put({"prompt": prompt}, key=str(prompt))


def late() -> None:
    """Make steps without a save until told to save; ask for cuts twice at once."""
    me, folder = current_worker(), say_where()
    checkpoint.load()
    queue, step = DataQueue("own"), 0
    queue.put("left")
    while not (folder / "go").exists():
        step += 1
        progress(step)
        if (folder / "save").exists():
            checkpoint.save(step, {"step": step})
        time.sleep(0.05)
    (folder / "asked").write_text(json.dumps([me.job.checkpoint(), me.job.checkpoint()]))
