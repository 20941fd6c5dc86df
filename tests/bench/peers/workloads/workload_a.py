"""Workload A: n actors of a class. Each life of an actor writes down when it is in user code; PEER_OUT/go ends all."""

import json
import os
import time
from pathlib import Path


class Stay:
    """The class of which each peer makes n actors, in its own way."""

    def stay(self, rank: int) -> None:
        """Write down that this life began, and wait for the end."""
        out = Path(os.environ["PEER_OUT"])
        with (out / f"rank-{rank}.jsonl").open("a") as file:
            file.write(json.dumps({"t": time.time(), "pid": os.getpid(), "rank": rank}) + "\n")
        while not (out / "go").exists():
            time.sleep(0.05)
