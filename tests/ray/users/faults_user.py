"""User code of the job that is hurt in test_faults.py."""

from __future__ import annotations

import time
from pathlib import Path

from dljob import current_worker, progress


def steps() -> None:
    """A step every 50 ms, until the file `enough` is in the job's folder."""
    enough = Path(current_worker().job_dir, "enough")
    step = 0
    while not enough.exists():
        step += 1
        progress(step)
        time.sleep(0.05)


def stay() -> None:
    """Until the file `enough` is there."""
    enough = Path(current_worker().job_dir, "enough")
    while not enough.exists():
        time.sleep(0.05)


if __name__ == "__main__":
    stay()
