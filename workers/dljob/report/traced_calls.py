"""Traced calls as events of the Chrome trace format: slices of caller and callee, and the arrows between them. No I/O.

Slices of one thread may only nest, and calls of a rank overlap: they are spread over as many threads beside the rank's
own as it had calls at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dljob.calls.trace_rows import CalleeRow, CallerRow, TracedFile

THREADS = 32
"""Most threads of one rank, its own included; calls that find none free are left out."""
_SHOWN_S = 0.001
"""A wait within a call is drawn from so many seconds on."""

RankKey = tuple[str, int]
Event = dict[str, Any]


class _Drawn(NamedTuple):
    """A slice with its place: process, thread, and begin and end in microseconds."""

    pid: int
    tid: int
    begin: int
    end: int


def events(files: Sequence[TracedFile], threads: Mapping[RankKey, tuple[int, int]], start: float) -> Iterator[Event]:
    """Yield the events of all traced calls.

    Args:
        files: the calls, by process of a rank.
        threads: rank -> its process and thread in the trace.
        start: begin of the trace, in unix seconds.
    """
    rows: dict[RankKey, list[CallerRow | CalleeRow]] = defaultdict(list)
    for file in files:
        rows[file.role, file.rank] += [row for row in file.rows if isinstance(row, (CallerRow, CalleeRow))]
    free = max((tid for _, tid in threads.values()), default=0) + 1
    sent_calls: dict[str, tuple[CallerRow, _Drawn]] = {}
    ran: dict[str, list[_Drawn]] = defaultdict(list)
    for key, (pid, tid) in threads.items():
        ends: list[int] = []
        for row in sorted(rows.get(key, ()), key=lambda row: row.start):
            begin = _micros(row.start, start)
            end = max(begin, _micros(row.start + row.seconds, start))
            lane = next((number for number, last in enumerate(ends) if last <= begin), len(ends))
            if lane == len(ends):
                if lane == THREADS - 1:
                    continue
                ends.append(0)
                yield from _thread(key, pid, free + lane, lane, THREADS * tid + lane + 1)
            ends[lane] = end
            drawn = _Drawn(pid, free + lane, begin, end)
            if isinstance(row, CallerRow):
                sent_calls[f"{key[0]}/{key[1]}:{row.id}"] = row, drawn
                yield from _caller(row, drawn, start)
            else:
                ran[f"{row.caller}:{row.id}"].append(drawn)
                yield from _callee(row, drawn, start)
        free += len(ends)
    yield from _flows(sent_calls, ran, start)


def _thread(key: RankKey, pid: int, tid: int, lane: int, index: int) -> Iterator[Event]:
    name = f"{key[0]}/{key[1]} calls" + (f" {lane + 1}" if lane else "")
    yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
    yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": index}}


def _caller(row: CallerRow, drawn: _Drawn, start: float) -> Iterator[Event]:
    args = {
        "to": f"{row.role}/{row.rank}",
        "outcome": row.outcome,
        "sends": row.sends,
        "parked_ms": round(row.parked_s * 1000, 3),
        "argument_bytes": row.argument_bytes,
        "answer_bytes": row.answer_bytes,
        "sampled": f"1 of {2**row.level}",
    }
    yield _slice(f"call {row.role}.{row.method}", "call", drawn, args)
    if row.parked_s >= _SHOWN_S:
        # Before it was sent for the last time; a call that never was waited until it was given up.
        end = _micros(row.sent_at, start) if row.sent_at else drawn.end
        end = min(max(end, drawn.begin), drawn.end)
        begin = max(drawn.begin, end - round(row.parked_s * 1e6))
        yield _slice("parked", "call", drawn._replace(begin=begin, end=end), {"for": f"{row.role}/{row.rank}"})


def _callee(row: CalleeRow, drawn: _Drawn, start: float) -> Iterator[Event]:
    args = {"from": row.caller, "outcome": row.outcome, "waited_ms": round(row.waited_s * 1000, 3)}
    yield _slice(f"run {row.method}", "call", drawn, args)
    if row.waited_s >= _SHOWN_S:
        end = min(_micros(row.start + row.waited_s, start), drawn.end)
        yield _slice("waits to begin", "call", drawn._replace(end=max(end, drawn.begin)), {})


def _flows(
    sent_calls: Mapping[str, tuple[CallerRow, _Drawn]], ran: Mapping[str, Sequence[_Drawn]], start: float
) -> Iterator[Event]:
    """Yield an arrow from each call to each time that it was run."""
    number = 0
    for call, (row, caller) in sent_calls.items():
        for callee in ran.get(call, ()):
            sent = min(max(_micros(row.sent_at, start), caller.begin), caller.end)
            # Run before it was sent for the last time: by an earlier process. Or the clocks of two nodes differ.
            begin = sent if sent <= callee.begin else caller.begin
            end = max(begin, callee.begin)
            if end > callee.end:
                continue
            number += 1
            edge = {"cat": "call", "id": number, "name": f"{row.role}.{row.method}"}
            yield {**edge, "ph": "s", "pid": caller.pid, "tid": caller.tid, "ts": begin}
            yield {**edge, "ph": "f", "bp": "e", "pid": callee.pid, "tid": callee.tid, "ts": end}


def _slice(name: str, category: str, drawn: _Drawn, args: Mapping[str, Any]) -> Event:
    event = {"ph": "X", "cat": category, "name": name, "pid": drawn.pid, "tid": drawn.tid, "args": dict(args)}
    return {**event, "ts": drawn.begin, "dur": drawn.end - drawn.begin}


def _micros(at: float, start: float) -> int:
    return max(0, round((at - start) * 1e6))
