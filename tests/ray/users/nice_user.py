"""Ranks that leave a note about their niceness and that of a child, as scripts and as classes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from prime_user import until_told

from dljob import current_worker


def note() -> None:
    """Write the niceness of this thread, and what a child says of its own; then run until the file `go` is there."""
    me = current_worker()
    child = subprocess.run(["nice"], capture_output=True, text=True, check=True).stdout
    text = json.dumps({"own": os.nice(0), "child": int(child)})
    (Path(me.job_dir) / f"nice-{me.role}-{me.rank}-{me.incarnation}").write_text(text)
    until_told()


if __name__ == "__main__":
    note()
