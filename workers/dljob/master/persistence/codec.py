"""Conversion of events and states to JSON and back, without loss, and the fold of a journal's records into a state.

Values are written by the declared types of their fields: a dataclass as an object, an event as {"t": name, ...}, a
tuple as an array, a map as a sorted array of [key, value]. The type hints are the only description of the format.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, TypeAlias, Union, cast, get_args, get_origin, get_type_hints

from immutables import Map

from dljob.errors import JournalError
from dljob.master.state.events import Event
from dljob.master.state.job import Job
from dljob.master.state.stalls import stalled_ranks
from dljob.master.state.state import JobState, homeless_units, housed_units
from dljob.master.transition import initial, transition
from dljob.plan.model import JobPlan
from dljob.spec.model import DLJobSpec
from dljob.telemetry.records import VERSION, Record

CHUNK = 65536
"""Characters of a snapshot in one record, which bounds the size of records."""

EVENTS: dict[str, type] = {kind.__name__: kind for kind in get_args(Event)}


def event_record(event: Event, at: float) -> Record:
    """Return the journal record of an event that happened at `at` (unix seconds)."""
    return {"k": "event", "at": at, "e": encode_event(event)}


def snapshot_records(state: JobState, at: float) -> tuple[Record, ...]:
    """Return the journal records of a whole state, each of bounded size."""
    # The digest lets a reader see that its plan is another one: the rows of the state would not fit it.
    text = json.dumps(encode_state(state), separators=(",", ":"), allow_nan=False)
    chunks = [text[start : start + CHUNK] for start in range(0, len(text), CHUNK)]
    head = {"k": "snapshot", "at": at, "plan": state.job.plan.digest, "of": len(chunks)}
    return tuple({**head, "i": i, "d": chunk} for i, chunk in enumerate(chunks))


def replay(
    plan: JobPlan, spec: DLJobSpec, uid: str, records: Iterable[Record], *, start: float, own_nodes: bool = False
) -> JobState:
    """Return the state that a journal leads to. `start`: the job's start (unix seconds), used without a snapshot.

    A snapshot replaces everything before it; an incomplete one is ignored. Records of other kinds are skipped.
    """
    # The plan is made again from the spec, so the journal need not hold it.
    state = initial(plan, spec, uid, start, own_nodes=own_nodes)
    chunks: list[str] = []
    for record in records:
        if record["k"] == "event":
            state = transition(state, decode_event(record["e"]), record["at"]).state
        elif record["k"] == "snapshot":
            # Chunk 0 begins a new snapshot, even if the one before is incomplete.
            chunks = [*chunks, record["d"]] if record["i"] else [record["d"]]
            if len(chunks) == record["of"]:
                state = decode_state(json.loads("".join(chunks)), state.job)
    return state


def encode_event(event: Event) -> dict[str, Any]:
    """Return an event as JSON-able data."""
    return {"t": type(event).__name__, **encoder(type(event))(event)}


def decode_event(data: Mapping[str, Any]) -> Event:
    """Return the event that `encode_event` wrote.

    Raises:
        JournalError: This version has no such event.
    """
    kind = EVENTS.get(data["t"])
    if kind is None:
        raise JournalError(f"unknown event {data['t']!r}", offset=0, hint="use the dljob that wrote the journal")
    return cast("Event", decoder(kind)({key: value for key, value in data.items() if key != "t"}))


def encode_state(state: JobState) -> dict[str, Any]:
    """Return a state as JSON-able data, without the job's constants and derived fields."""
    return {"v": VERSION, **encoder(JobState)(state)}


def decode_state(data: Mapping[str, Any], job: Job) -> JobState:
    """Return the state that `encode_state` wrote, of a job with these constants.

    Raises:
        JournalError: Another version of the format wrote it.
    """
    if data["v"] != VERSION:
        message = f"a snapshot of version {data['v']}; this dljob reads version {VERSION}"
        raise JournalError(message, offset=0, hint="use the dljob that wrote it")
    read = _read(JobState, {key: value for key, value in data.items() if key != "v"})
    # The plan follows the sizes of elastic roles at that time, not those of the spec.
    sizes = {role: sizing.size for role, sizing in read.get("sizes", {}).items()}
    left_groups = {role: sizing.left_groups for role, sizing in read.get("sizes", {}).items()}
    units = read["units"]
    return JobState(
        job=job.sized(sizes, left_groups),
        homeless=homeless_units(units),
        housed=housed_units(units),
        stalled=stalled_ranks(read.get("stalls", ())),
        **read,
    )


Convert: TypeAlias = Callable[[Any], Any]


@cache
def encoder(kind: Any) -> Convert:  # noqa: ANN401 - any type, generic ones included
    """Return the function that writes a value of a type. Cached, since types are few and values many."""
    origin = get_origin(kind)
    if origin is tuple:
        return _sequence(get_args(kind), encoder)
    if origin is Map:
        key, value = (encoder(part) for part in get_args(kind))
        # Not an object: keys may be tuples or dataclasses, which JSON does not have as keys.
        return lambda v: _sorted([key(k), value(x)] for k, x in v.items())
    if origin in (UnionType, Union):
        inner = encoder(optional(kind))
        return lambda v: None if v is None else inner(v)
    if is_dataclass(kind):
        dataclass_type = cast("type", kind)
        return lambda v: _write(dataclass_type, v)
    if issubclass(kind, Enum):
        return attrgetter("_value_")  # `.value` is a Python function, and a tenth of the time of an event's records
    return as_is


def as_is(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Write a value that is JSON by itself."""
    return value


def _sequence(args: tuple[Any, ...], of: Callable[[Any], Convert]) -> Callable[[Any], list[Any]]:
    """Return the function that converts the items of a tuple, all by one type or each by its own."""
    if args[-1] is Ellipsis:
        item = of(args[0])
        return lambda v: [item(x) for x in cast("Iterable[Any]", v)]
    items = tuple(of(part) for part in args)
    return lambda v: [convert(x) for convert, x in zip(items, cast("Iterable[Any]", v), strict=True)]


def _sorted(pairs: Iterable[list[Any]]) -> list[list[Any]]:
    """Sort [key, value] pairs, so that equal states give equal bytes whatever the history of the map."""
    return sorted(pairs, key=lambda pair: json.dumps(pair[0]))


def _write(kind: type, value: Any) -> dict[str, Any]:  # noqa: ANN401 - an instance of that type
    fields_written = {name: getattr(value, name) for name in parts(kind)}
    for name, encode in _written(kind):
        fields_written[name] = encode(fields_written[name])
    return fields_written


@cache
def _written(kind: type) -> tuple[tuple[str, Convert], ...]:
    """Return the fields whose values are not JSON by themselves, and what writes them."""
    field_encoders = ((name, encoder(part)) for name, part in parts(kind).items())
    return tuple((name, encode) for name, encode in field_encoders if encode is not as_is)


def _read(kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    field_types = parts(kind)
    return {name: decoder(field_types[name])(value) for name, value in data.items()}


@cache
def decoder(kind: Any) -> Convert:  # noqa: ANN401 - any type, generic ones included
    """Return the function that reads a value of a type."""
    origin = get_origin(kind)
    if origin is tuple:
        items = _sequence(get_args(kind), decoder)
        return lambda v: tuple(items(v))
    if origin is Map:
        key, value = (decoder(part) for part in get_args(kind))
        return lambda v: Map({key(k): value(x) for k, x in v})
    if origin in (UnionType, Union):
        inner = decoder(optional(kind))
        return lambda v: None if v is None else inner(v)
    if is_dataclass(kind):
        dataclass_type = cast("type", kind)
        return lambda v: dataclass_type(**_read(dataclass_type, v))
    if issubclass(kind, Enum):
        return kind
    return lambda v: v


def optional(kind: Any) -> Any:  # noqa: ANN401 - a union with None, the only kind of union in use
    """Return the type of an optional value when it is not None."""
    (inner,) = (part for part in get_args(kind) if part is not NoneType)
    return inner


@cache
def parts(kind: type) -> dict[str, Any]:
    """Name and type of each field that is written: all but derived ones and the job's constants."""
    hints = get_type_hints(kind)
    written = (f.name for f in fields(kind) if "derived" not in f.metadata)
    return {name: hints[name] for name in written if hints[name] is not Job}
