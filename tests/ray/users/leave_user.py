"""User code of the tests of nodes that go: ranks in step; each tells a step once it is saved, in memory alone."""

from __future__ import annotations

import os
import time
from pathlib import Path

from dljob import checkpoint, current_worker


def told(folder: Path, rank: int) -> int:
    """The last step that a rank told of as saved."""
    try:
        return int((folder / f"at-{rank}").read_text())
    except OSError:
        return 0


def tell(folder: Path, rank: int, step: int) -> None:
    """A reader finds the whole number or the last one."""
    temp = folder / f".at-{rank}"
    temp.write_text(str(step))
    temp.replace(folder / f"at-{rank}")


def saves_on() -> None:
    """Save step after step until the job is told to end."""
    me = current_worker()
    folder = Path(me.job_dir)
    found = checkpoint.load()
    step = found[0] if found else 0
    tell(folder, me.rank, step)  # a rank that ended between its save and its word would have all wait for ever
    (folder / f"from-{me.rank}-{me.incarnation}").write_text(str(step))
    (folder / f"{me.role}-{me.rank}-{me.incarnation}").write_text(str(os.getpid()))
    while not (folder / "go").exists():
        step += 1
        while min(told(folder, rank) for rank in range(me.world_size)) < step - 1:
            if (folder / "go").exists():  # one that was behind has ended
                return
            time.sleep(0.005)
        checkpoint.save(step, {"who": me.incarnation, "data": bytes(1 << 20)}, persist=False)
        print(f"saved {step}", flush=True)
        tell(folder, me.rank, step)
        time.sleep(0.02)
