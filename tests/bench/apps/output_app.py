"""A rank that floods its log, and another one that steps beside it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from statistics import median

from dljob import current_worker, progress

LINES = 1000
BLOCK = (b"x" * 99 + b"\n") * LINES
RATE = 100_000
"""Lines a second."""


def write() -> None:
    """Write lines of 100 bytes at RATE until the job ends."""
    me = current_worker()
    begin, blocks = time.monotonic(), 0
    while not me.stopping.is_set():
        os.write(1, BLOCK)
        blocks += 1
        time.sleep(max(0.0, begin + blocks * LINES / RATE - time.monotonic()))
        Path(me.job_dir, "written").write_text(json.dumps([blocks * LINES, time.monotonic() - begin]))


def step() -> dict[str, float]:
    """Steps of a fixed piece of work, and so many seconds of them: the median of what one takes."""
    seconds = float(current_worker().config["seconds"])
    begin, took = time.monotonic(), list[float]()
    while (began := time.monotonic()) - begin < seconds:
        sum(n * n for n in range(200_000))
        took.append(time.monotonic() - began)
        progress(len(took))
    return {"step": median(took)}
