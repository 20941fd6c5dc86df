"""Engines that stream tokens, and a reader that kills the one that streams to it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from dljob import RoleGroup, Worker, progress, rpc

PREFILL_S, TOKEN_S = 0.05, 0.02
TAKEN = 20
"""Items before the kill; the engine is then in the midst of later ones."""


class StreamEngine(Worker):
    """Computes nothing: a prefill and each token take a fixed time."""

    @rpc(dispatch="round_robin", stream=16, resume="prefix")
    def tokens(self, count: int, *, received: list[int]) -> Iterator[int]:
        """Numbers from the first that is missing."""
        time.sleep(PREFILL_S)
        for number in range(len(received), count):
            time.sleep(TOKEN_S)
            # Else its ends would look like a crash loop.
            progress(int(time.time() * 1000))
            yield number

    @rpc(idempotent=True)
    def pid(self) -> int:
        """The process to kill."""
        return os.getpid()


class Reader(Worker):
    """Reads streams, and kills their engines in between."""

    def run(self) -> None:
        """Write seconds from the kill to the next engine's first item, and an undisturbed time to first item."""
        group, found = RoleGroup("engine"), {"killed": list[float](), "first": list[float]()}
        for _ in range(self.config["rounds"]):
            begin = time.perf_counter()
            with group.tokens(TAKEN + 10, received=list(range(TAKEN))) as whole:
                next(whole)
                found["first"].append(time.perf_counter() - begin)
            pids = group.pid()
            stream = group.tokens(TAKEN + 60)
            got = [next(stream) for _ in range(TAKEN)]
            victim = int(stream.segments[0].callee.partition("/")[2])
            os.kill(pids[victim], signal.SIGKILL)
            begin = time.perf_counter()
            while len(stream.segments) < 2:
                got.append(next(stream))
            found["killed"].append(time.perf_counter() - begin)
            got += stream
            assert got == list(range(TAKEN + 60)), got
            # Both are ready again before the next round.
            while group[victim].pid() == pids[victim]:
                time.sleep(0.05)
        where = Path(self.config["out"])
        (where / "streams.new").write_text(json.dumps(found))
        (where / "streams.new").rename(where / "streams.json")
