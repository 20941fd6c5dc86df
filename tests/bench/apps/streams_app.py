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


def note_made(folder: Path, name: str, number: int) -> None:
    """Append a token to the file of its stream; it outlives the engine."""
    with (folder / f"made-{name}").open("a") as file:
        file.write(f"{number}\n")


def made_again(folder: Path, name: str) -> int:
    """Return how many tokens of a stream were made more than once."""
    numbers = (folder / f"made-{name}").read_text().split()
    return len(numbers) - len(set(numbers))


class StreamEngine(Worker):
    """Computes nothing: a prefill and each token take a fixed time."""

    @rpc(dispatch="round_robin", stream=16, resume="prefix")
    def tokens(self, count: int, name: str = "", *, received: list[int]) -> Iterator[int]:
        """Numbers from the first that is missing; each is written down under the stream's name when it is made."""
        time.sleep(PREFILL_S)
        for number in range(len(received), count):
            time.sleep(TOKEN_S)
            note_made(Path(self.config["out"]), name, number)
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
        group, where = RoleGroup("engine"), Path(self.config["out"])
        found: dict[str, list[float]] = {name: [] for name in ("killed", "first", "again", "drained")}
        for turn in range(self.config["rounds"]):
            begin = time.perf_counter()
            with group.tokens(TAKEN + 10, received=list(range(TAKEN))) as whole:
                next(whole)
                found["first"].append(time.perf_counter() - begin)
            pids = group.pid()
            stream = group.tokens(TAKEN + 60, f"kill-{turn}")
            got = [next(stream) for _ in range(TAKEN)]
            victim = int(stream.segments[0].callee.partition("/")[2])
            os.kill(pids[victim], signal.SIGKILL)
            begin = time.perf_counter()
            while len(stream.segments) < 2:
                got.append(next(stream))
            found["killed"].append(time.perf_counter() - begin)
            got += stream
            assert got == list(range(TAKEN + 60)), got
            found["again"].append(made_again(where, f"kill-{turn}"))
            # Both are ready again before the next round.
            while group[victim].pid() == pids[victim]:
                time.sleep(0.05)
            found["drained"].append(self.drained(group, where, turn))
        (where / "streams.new").write_text(json.dumps(found))
        (where / "streams.new").rename(where / "streams.json")

    def drained(self, group: RoleGroup, where: Path, turn: int) -> int:
        """Stream from both engines while one of them is given up; return how many tokens were made again."""
        names = [f"drain-{turn}-{one}" for one in range(2)]
        streams = [group.tokens(TAKEN + 60, name) for name in names]
        got = [[next(stream) for _ in range(TAKEN)] for stream in streams]
        self.context.job.scale("engine", 1)
        for own, stream in zip(got, streams, strict=True):
            assert [*own, *stream] == list(range(TAKEN + 60)), own
        while len(group) > 1:
            time.sleep(0.05)
        self.context.job.scale("engine", 2)
        while len(group) < 2 or len(group.pid()) < 2:
            time.sleep(0.05)
        return sum(made_again(where, name) for name in names)
