"""Ranks that leave a note about the devices they see, as scripts and as classes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from dljob import current_worker
from dljob.runtime.worker.device_memory import limit

KINDS = ("ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


def note() -> None:
    """What this rank sees, in a file named after it and its incarnation; then that it runs."""
    me = current_worker()
    seen = {name: os.environ[name] for name in (*KINDS, "LOCAL_RANK") if name in os.environ}
    said = {
        **seen,
        "own": me.device_index,
        "devices": {k: list(v) for k, v in me.devices.items()},
        "held": [limit.share, limit.index],
    }
    folder = Path(me.job_dir)
    (folder / f"sees-{me.role}-{me.rank}-{me.incarnation}").write_text(json.dumps(said))
    (folder / f"{me.role}-{me.rank}-{me.incarnation}").write_text(str(os.getpid()))
    while not (folder / "go").exists() and not me.stopping:
        time.sleep(0.02)


if __name__ == "__main__":
    note()
