"""Parser of the Chrome trace event format: it refuses what Perfetto would drop or draw wrongly."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any, NamedTuple

KEYS = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur"},
    "i": {"name", "cat", "pid", "tid", "ts", "s"},
    "b": {"name", "cat", "id", "pid", "ts"},
    "e": {"name", "cat", "id", "pid", "ts"},
    "s": {"name", "cat", "id", "pid", "tid", "ts"},
    "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
    "C": {"name", "pid", "ts", "args"},
}
Thread = tuple[int, int]


class Trace(NamedTuple):
    """A trace as a viewer shows it."""

    processes: dict[int, str]
    threads: dict[Thread, str]
    slices: dict[str, list[tuple[int, int, str]]]
    """Thread's name -> (start, end, name), in microseconds."""
    flows: list[tuple[str, str, str]]
    """(name, from thread, to thread)."""
    spans: list[tuple[str, int, int]]
    """Asynchronous slices: name, start, end."""
    counters: dict[str, list[tuple[int, float]]]


def parse(text: str) -> Trace:
    """Read a trace; fails where it breaks the format."""
    events: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    processes, threads = dict[int, str](), dict[Thread, str]()
    for event in events:
        assert event.keys() >= KEYS[event["ph"]], event
        times = [event[key] for key in ("ts", "dur") if key in event]
        assert all(type(time) is int and time >= 0 for time in times), event
        if event["name"] == "process_name":
            assert processes.setdefault(event["pid"], event["args"]["name"]) == event["args"]["name"]
        elif event["name"] == "thread_name":
            assert threads.setdefault((event["pid"], event["tid"]), event["args"]["name"]) == event["args"]["name"]
    assert {event["pid"] for event in events} == processes.keys()
    slices, counters = _slices(events, threads), defaultdict[str, list[tuple[int, float]]](list)
    for event in events:
        if event["ph"] == "C":
            counters[event["name"]].append((event["ts"], event["args"]["value"]))
    return Trace(processes, threads, slices, _flows(events, threads, slices), _spans(events), dict(counters))


def _slices(events: list[dict[str, Any]], threads: dict[Thread, str]) -> dict[str, list[tuple[int, int, str]]]:
    found = defaultdict[str, list[tuple[int, int, str]]](list)
    for event in events:
        if event["ph"] == "X":
            name = threads[event["pid"], event["tid"]]
            found[name].append((event["ts"], event["ts"] + event["dur"], event["name"]))
    for own in found.values():
        # A viewer draws slices of one thread inside each other, and drops those that lie across.
        around: list[tuple[int, int, str]] = []
        for begin, end, what in sorted(own, key=lambda one: (one[0], -one[1])):
            while around and around[-1][1] <= begin:
                around.pop()
            assert not around or end <= around[-1][1], (what, around[-1])
            around.append((begin, end, what))
    return dict(found)


def _flows(
    events: list[dict[str, Any]], threads: dict[Thread, str], slices: dict[str, list[tuple[int, int, str]]]
) -> list[tuple[str, str, str]]:
    ends: dict[str, dict[Any, dict[str, Any]]] = {"s": {}, "f": {}}
    for event in events:
        if event["ph"] in ends:
            thread = threads[event["pid"], event["tid"]]
            assert any(begin <= event["ts"] <= end for begin, end, _ in slices[thread]), f"{event} is in no slice"
            assert (event["cat"], event["id"]) not in ends[event["ph"]]
            ends[event["ph"]][event["cat"], event["id"]] = {**event, "thread": thread}
    assert ends["s"].keys() == ends["f"].keys()
    assert all(ends["s"][key]["ts"] <= ends["f"][key]["ts"] for key in ends["s"])
    return [(own["name"], own["thread"], ends["f"][key]["thread"]) for key, own in ends["s"].items()]


def _spans(events: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    begun: dict[Any, dict[str, Any]] = {}
    found: list[tuple[str, int, int]] = []
    for event in events:
        key = event.get("cat"), event.get("id")
        if event["ph"] == "b":
            assert key not in begun
            begun[key] = event
        elif event["ph"] == "e":
            own = begun.pop(key)
            assert own["ts"] <= event["ts"]
            found.append((own["name"], own["ts"], event["ts"]))
    assert not begun
    return found
