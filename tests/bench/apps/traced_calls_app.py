"""Calls of one rank by another: not traced, traced as they are, and with each call recorded, in turn."""

from __future__ import annotations

import json
import time
from pathlib import Path
from statistics import median
from typing import Any

from dljob import RoleGroup, Worker, rpc
from dljob.calls import trace_rows
from dljob.runtime.rpc import call_trace

WARM, BLOCK = 200, 50
WAYS = ("off", "on", "all")


class Callee(Worker):
    """Answers."""

    def setup(self) -> None:
        """Record each call that its caller records, however many they are."""
        call_trace.ROOM, trace_rows.MAX_RATE = 10**9, 10**9

    @rpc
    def add(self, a: int) -> int:
        """A call without work."""
        return a + 1


class Caller(Worker):
    """Makes blocks of calls in turn: what disturbs the machine disturbs all of them."""

    def run(self) -> None:
        """Write the median seconds of a call of each block."""
        one = RoleGroup("callee")[0]
        calls: Any = self.context.calls
        usual = calls._trace
        # One that records each call: its file is bounded as always, its rate is not.
        every = call_trace.RankTrace(Path(self.context.job_dir) / "every", "caller", 0, 10**9)
        traces = dict(zip(WAYS, (None, usual, every), strict=True))
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(WARM):
            one.call("add", 1).result()
        for number in range(self.config["blocks"]):
            # To and fro, so that none is always the first after a pause.
            for way in WAYS if number % 2 else reversed(WAYS):
                calls._trace = traces[way]
                seconds: list[float] = []
                for _ in range(BLOCK):
                    begin = time.perf_counter()
                    one.call("add", 1).result()
                    seconds.append(time.perf_counter() - begin)
                found[way].append(median(seconds))
            # As the thread does once a second; here between blocks, and not measured.
            every.flush(1e9)
        where = Path(self.config["out"])
        (where / "traced.new").write_text(json.dumps(found))
        (where / "traced.new").rename(where / "traced.json")
