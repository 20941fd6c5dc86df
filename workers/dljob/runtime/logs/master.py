"""PrimeMaster's own log: JSON lines in `logs/master.log` of the job's folder, on the node that PrimeMaster is on."""

from __future__ import annotations

import os
import re
import stat
from datetime import UTC, datetime
from pathlib import Path

NAME = "master.log"
OLDER = f"{NAME}.1"
"""The file before it: a long log begins anew."""
_TIME = re.compile(rb'^\{"time": ?"([^"]+)"')


def stamp(moment: float) -> str:
    """A moment in unix seconds as entries write it, so that both compare as text."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def place_since(path: Path, moment: float) -> int:
    """Where the entries begin that were written since a moment (unix seconds); the end where there are none.

    A line that is no entry, as a full disk leaves them, belongs to the entry before it.
    """
    begin, at = stamp(moment).encode(), 0
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return 0
    with os.fdopen(fd, "rb") as log:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            for line in log:
                found = _TIME.match(line)
                if found and found[1] >= begin:
                    break
                at += len(line)
    return at
