"""PrimeMaster's own log: JSON lines in `logs/master.log` of the job's folder, on PrimeMaster's node."""

from __future__ import annotations

import os
import re
import stat
from datetime import UTC, datetime
from pathlib import Path

NAME = "master.log"
OLDER = f"{NAME}.1"
"""The previous file: a long log is rotated once."""
_TIME = re.compile(rb'^\{"time": ?"([^"]+)"')


def stamp(moment: float) -> str:
    """Format a time in unix seconds as log entries do, so that both can be compared as text."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def place_since(path: Path, moment: float) -> int:
    """Return the offset of the first entry since a time (unix seconds); the end of the file if there is none.

    A line that is no entry, such as a full disk leaves, belongs to the entry before it.
    """
    begin, at = stamp(moment).encode(), 0
    try:
        # User code can write to this folder: a link is not followed, and a FIFO does not block.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return 0
    with os.fdopen(fd, "rb") as log:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            for line in log:
                match = _TIME.match(line)
                if match and match[1] >= begin:
                    break
                at += len(line)
    return at
