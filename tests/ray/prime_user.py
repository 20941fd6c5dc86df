"""User code of the tests of PrimeMaster."""

from __future__ import annotations

import os
import time
from pathlib import Path

from dljob import current_worker, progress


def quick() -> dict[str, int]:
    """Ends at once."""
    return {"pid": os.getpid()}


def until_told() -> dict[str, int]:
    """Runs until the file `go` is in the job's folder; says with a file that it runs."""
    me = current_worker()
    folder = Path(me.job_dir)
    (folder / f"{me.role}-{me.rank}-{me.incarnation}").write_text(str(os.getpid()))
    while not (folder / "go").exists():
        progress(1)
        time.sleep(0.02)
    return {"incarnation": me.incarnation}


def fails() -> None:
    raise LookupError("nothing under that name")


def shows_devices() -> dict[str, str]:
    """Returns what it sees, once it may end."""
    me = current_worker()
    devices = os.environ.get("ASCEND_RT_VISIBLE_DEVICES", "")
    (Path(me.job_dir) / f"devices-{me.rank}-{me.incarnation}").write_text(devices)
    until_told()
    return {"devices": devices}
