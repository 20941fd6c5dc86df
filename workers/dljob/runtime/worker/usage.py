"""Usage of a host's ranks, for the job's samples: calls, weight versions, memory, and the queues that they use.

A thread of the host measures it every few seconds. The node's agent reads it from shared memory, or the host's own
heartbeat carries it; PrimeMaster writes it into the job's folder (`controller.sampler`). The keys:

    calls    callee.method -> [sent, waiting for the callee now, sent again, lost, under way now, milliseconds that
             ended ones took]
    noted    [name, rank, value]: what ranks noted beside their steps (`worker_context.HELD` and others)
    memory   [rank, MiB]: resident memory of the rank's process, without processes that it started
    peak     [rank, MiB]: the most that was measured so far, with the processes that it started
    cpu      [rank, hundredths of a second]: CPU time of the rank's process and of those that it started
    stores   addresses of storage actors in use (`:queue:samples`)
    busy     [rank, calls under way or waiting]: calls of others to the rank
    served   [rank, milliseconds]: the time in which the rank ran calls of others; its next process begins at 0
    open     [rank, connections]: clients of the ports of a rank of a fleet
    resident [rank, MiB]: memory of the rank's process now, with those that it started
    pressure [rank, seconds of the machine's clock, ran, waited (ms), periods, throttled, throttled ms, quota]: what
             kept the rank's process from a CPU (`dljob.linux.cpu_time`); the last four are 0 without a quota
    machine  [load, CPUs, free MiB]: of the host's machine, or of its container
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from dljob.linux import cpu_time, memory_limit
from dljob.runtime.process.step_counters import StepCounters
from dljob.runtime.rpc.client import CallCounts

LEAST_S, MOST_S = 2.0, 60.0
"""Seconds between two measurements of a host: in small jobs, and at most."""
RANKS_A_SECOND = 200
"""Ranks of a job whose usage PrimeMaster hears in a second, so that it costs the same in jobs of any size."""
TREE_S = 10.0
"""Least seconds between two looks at the processes that ranks started: it reads a file for each of their threads."""
PRESSED = 32
"""Most ranks of a host of which `pressure` is told."""
PROC = Path("/proc")
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20
_TICKS = os.sysconf("SC_CLK_TCK")


class Usage:
    """The usage of one host; `ranks`: how many the whole job has, `loads`: what tells `busy` and the like."""

    def __init__(
        self,
        ranks: int,
        counts: Callable[[], Iterable[CallCounts]],
        pids: Callable[[], Mapping[int, int]],
        loads: Mapping[str, Callable[[], Mapping[int, int]]] = {},
    ) -> None:
        self._pause = min(MOST_S, max(LEAST_S, ranks / RANKS_A_SECOND))
        self._counts = counts
        self._pids = pids
        self._loads = loads
        self._next = self._next_tree = 0.0
        self._seen = set[int]()
        """Ranks that had a process when the usage was measured."""
        self._trees: dict[int, ProcessTree] = {}
        """Rank -> what its processes used, as last measured."""
        self._pressures: dict[int, list[float]] = {}
        """Rank -> its row of `pressure`."""
        self._machine: list[float] = []
        self._made: dict[str, Any] = {}
        self._number = self._sent = 0

    def sample(self, counters: StepCounters) -> None:
        """Measure the usage if it is time to or a rank has come, and put it into shared memory if it changed."""
        pids = self._pids()
        # A rank that came since is not left out: its job may end before the next time.
        come = pids.keys() - self._seen
        if (now := time.monotonic()) < self._next and not come:
            return
        self._next = now + self._pause
        self._seen |= come
        measured = self._measured(counters, pids)
        if measured != self._made:
            self._made, self._number = measured, self._number + 1
            counters.put_usage(json.dumps(measured, separators=(",", ":")).encode())

    @property
    def unsent(self) -> tuple[int, Mapping[str, Any]]:
        """The number of the last measurement, and it itself unless it was sent."""
        return self._number, self._made if self._number > self._sent else {}

    def mark_sent(self, number: int) -> None:
        """Note that a measurement has arrived by the host's own heartbeat."""
        self._sent = max(self._sent, number)

    def _measured(self, counters: StepCounters, pids: Mapping[int, int]) -> dict[str, Any]:
        calls: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0, 0, 0])
        stores: set[str] = set()
        for counts in self._counts():
            # Copies: threads of ranks count meanwhile.
            under_way = Counter(name for name, _ in list(counts.under_way.values()))
            for name, places in list(counts.methods.items()):
                row = [*places, under_way[name], round(1000 * counts.took_s.get(name, 0.0))]
                calls[name] = [have + more for have, more in zip(calls[name], row, strict=True)]
            stores |= set(counts.stores)
        noted = [[name, count.rank, value] for count in counters.ranks() for name, value in count.beside.items()]
        memory = [[rank, mib] for rank, pid in pids.items() if (mib := resident_mib(pid)) is not None]
        self._measure_trees(pids)
        parts: dict[str, Any] = {"calls": dict(calls), "noted": noted, "memory": memory, "stores": sorted(stores)}
        parts["peak"] = [[rank, tree.peak_mib] for rank, tree in self._trees.items()]
        parts["cpu"] = [[rank, tree.cpu] for rank, tree in self._trees.items()]
        parts["resident"] = [[rank, tree.now_mib] for rank, tree in self._trees.items() if rank in pids]
        parts["pressure"] = [[rank, *row] for rank, row in self._pressures.items() if rank in pids]
        parts["machine"] = self._machine
        for name, load in self._loads.items():
            parts[name] = [[rank, value] for rank, value in load().items()]
        return {name: part for name, part in parts.items() if part}

    def _measure_trees(self, pids: Mapping[int, int]) -> None:
        if is_due := (now := time.monotonic()) >= self._next_tree:
            self._next_tree = now + max(TREE_S, self._pause)
            self._pressures = {
                rank: row for rank, pid in list(pids.items())[:PRESSED] if (row := pressure_of(pid, now))
            }
            self._machine = machine()
        for rank, pid in pids.items():
            if (is_due or rank not in self._trees) and (tree := tree_of(pid)) is not None:
                last = self._trees.get(rank)
                # The peak of a process outlives it: the rank's next one needs as much.
                self._trees[rank] = tree if last is None else tree._replace(peak_mib=max(tree.peak_mib, last.peak_mib))


class ProcessTree(NamedTuple):
    """What a rank's process and those that it started used so far."""

    peak_mib: int
    cpu: int
    """Hundredths of a second of CPU time; begins anew with the rank's next process."""
    now_mib: int = 0


def tree_of(pid: int, proc: Path = PROC) -> ProcessTree | None:
    """Return what a process and its descendants used; None once it is gone."""
    with suppress(OSError, ValueError, IndexError, StopIteration):
        status = (proc / str(pid) / "status").read_text()
        kib = int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1])
        peak = -(-kib // 1024)
        cpu, now = _ticks(pid, proc), resident_mib(pid, proc) or 0
        waiting = _children(pid, proc)
        while waiting:
            child = waiting.pop()
            with suppress(OSError, ValueError, IndexError):  # it is gone: its parent's time has its own
                cpu += _ticks(child, proc)
                _, resident, shared = (proc / str(child) / "statm").read_text().split()[:3]
                # What it shares with its parent was counted there, apart from pages that a fork has not written.
                now += round((int(resident) - int(shared)) * _PAGE_MIB)
                waiting += _children(child, proc)
        return ProcessTree(max(peak, now), round(cpu * 100 / _TICKS), now)
    return None


def pressure_of(pid: int, now: float) -> list[float] | None:
    """Return what kept a process from a CPU so far, as a row of `pressure`; None where the kernel does not tell."""
    use = cpu_time.cpu_use(pid)
    if use is None:
        return None
    return [round(now, 1), *use, *(cpu_time.throttling(pid) or (0, 0, 0, 0))]


def machine() -> list[float]:
    """Return how busy the machine is, as `machine` has it; empty where that is not known."""
    busy, (free, _) = cpu_time.load(), memory_limit.free()
    return [] if busy is None or free is None else [busy, cpu_time.cpus(), free >> 20]


def _ticks(pid: int, proc: Path) -> int:
    """Return the CPU time of a process, and of its children that have ended, in clock ticks."""
    return sum(map(int, (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[11:15]))


def _children(pid: int, proc: Path) -> list[int]:
    # A child belongs to the thread that started it.
    return [int(word) for file in (proc / str(pid) / "task").glob("*/children") for word in file.read_text().split()]


def resident_mib(pid: int, proc: Path = PROC) -> int | None:
    """Return the resident memory of a process in MiB; None once it is gone."""
    with suppress(OSError, ValueError, IndexError):
        return round(int((proc / str(pid) / "statm").read_text().split()[1]) * _PAGE_MIB)
    return None
