"""User code of the crash sweep: it goes on when the sweep's director has seen what there was to be seen."""

from __future__ import annotations

import time
from pathlib import Path

from prime_user import until_told

from dljob import Worker


class Held(Worker):
    """Is set up when its file says so, runs until the file `go` is there."""

    def setup(self) -> None:
        me = self.context
        file = Path(me.job_dir) / f"set-{me.incarnation}"
        while not file.exists():
            time.sleep(0.02)

    def run(self) -> dict[str, int]:
        return until_told()
