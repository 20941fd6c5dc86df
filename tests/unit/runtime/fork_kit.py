"""Drives a fork server without Ray: starts it, orders ranks, collects events."""

from __future__ import annotations

import queue
import time
from pathlib import Path
from typing import Any

from dljob.runtime.process.preload import Preload
from dljob.runtime.worker.helper import Helper

SCRIPTS = Path(__file__).parent / "scripts"
NOTHING = Preload()


class Server:
    """A fork server and the ranks that it forks from the scripts beside the tests."""

    def __init__(self, folder: Path, preload: Preload = NOTHING, python: str = "", env=None, import_path=()) -> None:
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.folder = folder
        put = self.events.put
        self.helper = Helper(
            preload, env or {}, lambda e: put(dict(e)), self._gone, python=python, import_path=import_path
        )
        assert self.helper.up.wait(60)

    def _gone(self) -> None:
        self.events.put({"event": "gone"})

    def log(self, rank: int = 0) -> str:
        path = self.folder / f"{rank}.log"
        return path.read_text() if path.exists() else ""

    def fork(
        self,
        *entrypoint: str,
        rank: int = 0,
        incarnation: int = 1,
        args=(),
        env=None,
        settings=None,
        code_dir=SCRIPTS,
        fresh=False,
        stdin="",
    ) -> None:
        self.helper.order(
            "fork",
            rank,
            incarnation,
            entrypoint=entrypoint,
            args=list(args),
            env={"DLJOB_RANK": str(rank), **(env or {})},
            log=str(self.folder / f"{rank}.log"),
            code_dir=str(code_dir),
            store="",
            generation=0,
            settings={"near": None, "memory": (0.0, 0), "nice": 0, **(settings or {})},
            fresh=fresh,
            stdin=str(stdin),
        )

    def next(self, event: str, timeout: float = 20.0) -> dict[str, Any]:
        end = time.monotonic() + timeout
        while True:
            got = self.events.get(timeout=max(0.01, end - time.monotonic()))
            if got["event"] == event:
                return got

    def run(self, *entrypoint: str, **options: Any) -> dict[str, Any]:
        self.fork(*entrypoint, **options)
        return self.next("ended")

    def close(self) -> None:
        self.helper.close()
        self.helper.wait(20)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False
