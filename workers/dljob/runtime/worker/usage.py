"""Usage of a host's ranks, for the job's samples: calls, weight versions, memory, and the queues that they use.

A thread of the host measures it every few seconds. The node's agent reads it from shared memory, or the host's own
heartbeat carries it; PrimeMaster writes it into the job's folder (`controller.sampler`). The keys:

    calls    callee.method -> [sent, waiting for the callee now, sent again, lost]
    noted    [name, rank, value]: what ranks noted beside their steps (`worker_context.HELD` and others)
    memory   [rank, MiB]: resident memory of the rank's process, without processes that it started
    stores   addresses of storage actors in use (`:queue:samples`)
    busy     [rank, calls under way or waiting]: calls of others to the rank
    open     [rank, connections]: clients of the ports of a rank of a fleet
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dljob.runtime.process.step_counters import StepCounters
from dljob.runtime.rpc.client import CallCounts

LEAST_S, MOST_S = 2.0, 60.0
"""Seconds between two measurements of a host: in small jobs, and at most."""
RANKS_A_SECOND = 200
"""Ranks of a job whose usage PrimeMaster hears in a second, so that it costs the same in jobs of any size."""
PROC = Path("/proc")
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


class Usage:
    """The usage of one host; `ranks` is the number of ranks in the whole job, `load` what tells `busy` and `open`."""

    def __init__(
        self,
        ranks: int,
        counts: Callable[[], Iterable[CallCounts]],
        pids: Callable[[], Mapping[int, int]],
        load: tuple[Callable[[], Mapping[int, int]], Callable[[], Mapping[int, int]]] = (dict, dict),
    ) -> None:
        self._pause = min(MOST_S, max(LEAST_S, ranks / RANKS_A_SECOND))
        self._counts = counts
        self._pids = pids
        self._busy, self._open = load
        self._next = 0.0
        self._made: dict[str, Any] = {}
        self._number = self._sent = 0

    def sample(self, counters: StepCounters) -> None:
        """Measure the usage if it is time to, and put it into shared memory if it changed."""
        if (now := time.monotonic()) < self._next:
            return
        self._next = now + self._pause
        made = self._measured(counters)
        if made != self._made:
            self._made, self._number = made, self._number + 1
            counters.put_usage(json.dumps(made, separators=(",", ":")).encode())

    @property
    def unsent(self) -> tuple[int, Mapping[str, Any]]:
        """The number of the last measurement, and it itself unless it was sent."""
        return self._number, self._made if self._number > self._sent else {}

    def mark_sent(self, number: int) -> None:
        """Note that a measurement has arrived by the host's own heartbeat."""
        self._sent = max(self._sent, number)

    def _measured(self, counters: StepCounters) -> dict[str, Any]:
        calls: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        stores: set[str] = set()
        for counts in self._counts():
            # Copies: threads of ranks count meanwhile.
            for name, row in list(counts.methods.items()):
                calls[name] = [have + more for have, more in zip(calls[name], row, strict=True)]
            stores |= set(counts.stores)
        noted = [[name, count.rank, value] for count in counters.ranks() for name, value in count.beside.items()]
        memory = [[rank, mib] for rank, pid in self._pids().items() if (mib := resident_mib(pid)) is not None]
        parts = {"calls": dict(calls), "noted": noted, "memory": memory, "stores": sorted(stores)}
        parts["busy"] = [[rank, calls] for rank, calls in self._busy().items()]
        parts["open"] = [[rank, connections] for rank, connections in self._open().items()]
        return {name: part for name, part in parts.items() if part}


def resident_mib(pid: int, proc: Path = PROC) -> int | None:
    """Return the resident memory of a process in MiB; None once it is gone."""
    with suppress(OSError, ValueError, IndexError):
        return round(int((proc / str(pid) / "statm").read_text().split()[1]) * _PAGE_MIB)
    return None
