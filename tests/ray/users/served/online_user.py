"""User code of the tests of sources: a trainer whose state counts how often it has used each event."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dljob import checkpoint, current_worker, progress, source


def count() -> int:
    """Count events until all are there; each checkpoint is on disk before the next step, and is written down too."""
    me = current_worker()
    wanted: Any = me.config
    found = checkpoint.load()
    step, seen = found or (0, dict[str, int]())
    (Path(me.job_dir) / f"restored-{me.incarnation}.json").write_text(json.dumps([step, seen]))
    (Path(me.job_dir) / f"{me.role}-{me.rank}-{me.incarnation}").write_text(str(os.getpid()))
    batches = source("clicks", wanted["uri"], batch=wanted["batch"], linger=0.02)
    while len(seen) < wanted["events"] and (batch := batches.take()) is not None:
        for event in batch:
            key = event.value.decode()
            seen[key] = seen.get(key, 0) + 1
        step += 1
        checkpoint.save(step, dict(seen))
        checkpoint.wait()
        (Path(me.job_dir) / f"state-{me.incarnation}-{step}.json").write_text(json.dumps([step, seen]))
        progress(step, events=len(seen))
    return len(seen)
