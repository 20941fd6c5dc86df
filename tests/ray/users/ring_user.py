"""Ranks that meet by the SubMaster of examples/sub-master, and sum round its ring until the file `go` is there."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ringmaster import Ring

from dljob import Worker, progress


class Summing(Worker):
    """Says with a file that it is in the ring; all ranks end in the same round."""

    def run(self) -> dict[str, int]:
        me, ring, rounds = self.context, Ring(self.rank), 0
        folder = Path(me.job_dir)
        (folder / f"{me.role}-{me.rank}-{me.incarnation}").write_text(str(os.getpid()))
        while not ring.sum(int((folder / "go").exists())):
            rounds += 1
            progress(rounds)
            time.sleep(0.02)
        return {"generation": ring.generation, "ranks": ring.size}
