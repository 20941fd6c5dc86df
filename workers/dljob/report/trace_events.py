"""A job's trace in the Chrome trace event format, which Perfetto opens: made of the page's data. No I/O.

Processes are nodes, threads are ranks, and the accounts of the ledger are slices. An incident is a slice of the process
`job`, with a flow from the rank that failed to each rank that it restarted. Metrics of `progress` are counters. Traced
calls are slices of threads beside those of their ranks (`traced_calls`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from dljob.calls.trace_rows import TracedFile
from dljob.report import traced_calls

JOB = 1
"""Process id of what belongs to no node."""
FLOWS = 2000
"""Arrows of all incidents together: beyond them nobody sees one."""
_UNPLACED = "no node"

Json = Mapping[str, Any]
RankKey = tuple[str, int]


def trace(
    data: Json, nodes: Mapping[RankKey, str], until: float, calls: Sequence[TracedFile] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace.

    Args:
        data: the page's data (`page_data`), with lanes.
        nodes: rank -> the name of the node that it was last on.
        until: end of the record, in unix seconds.
        calls: the traced calls, by process of a rank.
    """
    lanes: Mapping[str, Sequence[Sequence[float]]] = data["lanes"] or {}
    ranks = [(role, rank) for role, rows in lanes.items() for rank in range(len(rows))]
    start = min((lane[0] for rows in lanes.values() for lane in rows if lane), default=until)
    threads = _threads(ranks, nodes)
    yield from _names(threads, nodes)
    for role, rank in ranks:
        yield from _slices(lanes[role][rank], data["accounts"], threads[role, rank], start, until)
    yield from _incidents(data["incidents"], threads, start, until)
    yield from _counters(data.get("samples") or {}, start)
    yield from traced_calls.events(calls, threads, start)


def _threads(ranks: Iterable[RankKey], nodes: Mapping[RankKey, str]) -> dict[RankKey, tuple[int, int]]:
    """Return rank -> (process id, thread id)."""
    processes: dict[str, int] = {}
    threads: dict[RankKey, tuple[int, int]] = {}
    for number, key in enumerate(ranks, 1):
        node = nodes.get(key, _UNPLACED)
        threads[key] = processes.setdefault(node, JOB + 1 + len(processes)), number
    return threads


def _names(threads: Mapping[RankKey, tuple[int, int]], nodes: Mapping[RankKey, str]) -> Iterator[dict[str, Any]]:
    yield _name("process_name", JOB, 0, "job")
    named: set[int] = set()
    for key, (pid, tid) in threads.items():
        if pid not in named:
            named.add(pid)
            yield _name("process_name", pid, 0, nodes.get(key, _UNPLACED))
        yield _name("thread_name", pid, tid, f"{key[0]}/{key[1]}")
        # Without it, threads would be sorted by their names as text.
        index = traced_calls.THREADS * tid
        yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": index}}


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _slices(
    lane: Sequence[float], accounts: Sequence[str], thread: tuple[int, int], start: float, until: float
) -> Iterator[dict[str, Any]]:
    """Yield the stretches of a rank; while its role has dropped the rank there is none."""
    for at in range(0, len(lane), 2):
        begin, account = lane[at], int(lane[at + 1])
        end = lane[at + 2] if at + 2 < len(lane) else until
        if account >= 0 and end > begin:
            base = {"ph": "X", "cat": "ledger", "name": accounts[account], "pid": thread[0], "tid": thread[1]}
            yield {**base, "ts": _micros(begin, start), "dur": _micros(end, start) - _micros(begin, start)}


def _incidents(
    incidents: Iterable[Json], threads: Mapping[RankKey, tuple[int, int]], start: float, until: float
) -> Iterator[dict[str, Any]]:
    flows = 0
    for incident in incidents:
        if incident["at"] is None:
            continue
        begin, end = incident["at"], incident["until"] or until
        args = {key: incident[key] for key in ("cause", "evidence", "level", "lostSteps")}
        name = f"{incident['reason']} {incident['target']}"
        base = {"cat": "incident", "id": incident["id"], "name": name, "pid": JOB}
        # Slices of one thread may only nest, and incidents overlap: so these are asynchronous.
        yield {**base, "ph": "b", "tid": 0, "ts": _micros(begin, start), "args": args}
        yield {**base, "ph": "e", "tid": 0, "ts": _micros(max(end, begin), start)}
        failed = threads.get(_key(str(incident["rank"])))
        if failed is None:
            continue
        yield {"ph": "i", "s": "t", "cat": "incident", "name": name, "ts": _micros(begin, start),
               "pid": failed[0], "tid": failed[1], "args": args}  # fmt: skip
        for rank in (incident["restarted"] or ())[: FLOWS - flows]:
            if (place := threads.get(_key(rank))) is not None:
                flows += 1
                edge = {"cat": "restart", "id": flows, "name": f"incident {incident['id']}"}
                yield {**edge, "ph": "s", "pid": failed[0], "tid": failed[1], "ts": _micros(begin, start)}
                # bp "e": the arrow ends at the slice around this time, not at the next one.
                yield {**edge, "ph": "f", "bp": "e", "pid": place[0], "tid": place[1], "ts": _micros(end, start)}


def _counters(samples: Json, start: float) -> Iterator[dict[str, Any]]:
    """Yield the metrics of `progress` where they were sampled."""
    times = cast("Sequence[float]", samples.get("times") or ())
    for name, values in cast("Mapping[str, Sequence[float | None]]", samples.get("progress") or {}).items():
        for at, value in zip(times, values, strict=False):
            # JSON has no NaN, and a viewer refuses the whole file for one.
            if value is not None and math.isfinite(value) and at >= start:
                yield {"ph": "C", "name": name, "pid": JOB, "ts": _micros(at, start), "args": {"value": value}}


def _key(name: str) -> RankKey:
    role, _, rank = name.rpartition("/")
    return role, int(rank) if rank.isdecimal() else -1


def _micros(at: float, start: float) -> int:
    """Return a time in the format's unit, from the start of the trace on."""
    return max(0, round((at - start) * 1e6))
