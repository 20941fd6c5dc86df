"""Migration of a state that another version wrote: it is taken over, or begun anew with the parts that must be kept.

Unknown fields are left out and reported by name, and missing fields take their defaults. A state that cannot be read,
or that belongs to another plan, is not guessed at: all ranks start again from their last checkpoints. Budgets,
commands, exclusions, checkpoints, data positions and the ledger are kept, each as far as it can be read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from enum import Enum
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin

from immutables import Map

from dljob.errors import JournalError
from dljob.master.ledger import rules
from dljob.master.persistence import codec
from dljob.master.persistence.codec import decode_state, decoder, optional, parts
from dljob.master.placement import timers
from dljob.master.state import ledger
from dljob.master.state.events import Event
from dljob.master.state.evolve import evolve
from dljob.master.state.ledger import Ledger, Move
from dljob.master.state.sizing import Sizing
from dljob.master.state.state import JobState, Phase, Verdict
from dljob.master.transition import initial

KEPT_FIELDS = (
    "started_at", "carried", "serial", "restarts", "marks", "last_errors", "commands", "faults", "exclusions",
    "replaced", "saves", "feeds", "memory_overrides", "epoch", "version", "running_at", "result",
)  # fmt: skip
"""Fields that are kept when the state as a whole cannot be read."""
COUNTS = frozenset({"incarnation", "run_id", "token", "generation", "number"})
"""Fields whose counts fence old processes: a state that begins anew must use none of the old numbers again."""
TAIL = "tail"
"""Key, beside a state's fields, of the events that came after it; their numbers count as used, too."""
ERRORS = (JournalError, LookupError, ValueError, TypeError, AttributeError, RecursionError)
"""Exceptions that reading a foreign format may raise."""


@dataclass(frozen=True, slots=True)
class MigratedState:
    """The state to go on with. `anew` says why the written state was not taken over; empty: it was."""

    state: JobState
    left_out: tuple[str, ...] = ()
    """Names of the fields that were left out."""
    anew: str = ""


def take(data: Mapping[str, Any], fresh: JobState, plan: str, at: float) -> MigratedState:
    """Return the state to go on with, from one that another version wrote.

    Args:
        data: The state, from `codec.encode_state` of that version.
        fresh: The initial state of the same job, in this version.
        plan: Digest of the plan that the state belongs to.
        at: When it was written (unix seconds).
    """
    present_plan = fresh.job.plan.digest
    # Another plan has other ranks, hosts or units: rows of the old ones would say nothing about the new ones.
    if plan != present_plan:
        return fresh_state(data, fresh, f"it belongs to plan {plan}, and this dljob plans {present_plan}", at)
    left_out: set[str] = set()
    try:
        fitted = _fitted(JobState, {key: value for key, value in data.items() if key not in ("v", TAIL)}, "", left_out)
        state = decode_state({**fitted, "v": data["v"]}, fresh.job)
        _check_rows(state)  # readable is not enough: a missing row would only fail at some later event
    except ERRORS as error:
        return fresh_state(data, fresh, f"its state cannot be read: {_message(error)}", at)
    return MigratedState(state, tuple(sorted(left_out)))


def read_event(data: Mapping[str, Any]) -> Event:
    """Return an event that another version wrote, without the fields that this version does not know.

    Raises:
        JournalError: This version has no such event, or one of another form.
    """
    kind = codec.EVENTS.get(data["t"])
    try:
        if kind is not None:
            event_fields = {key: value for key, value in data.items() if key != "t"}
            return codec.decode_event({**_fitted(kind, event_fields, "", set()), "t": data["t"]})
    except ERRORS as error:
        raise JournalError(f"event {data['t']!r}: {_message(error)}", offset=0) from error
    return codec.decode_event(data)


def fresh_state(data: Mapping[str, Any], fresh: JobState, reason: str, at: float) -> MigratedState:
    """Return the initial state with the kept fields, and counts above all used ones. All processes must be gone."""
    kept_fields: dict[str, object] = {}
    lost: list[str] = []
    # Field by field, so that one that cannot be read does not take the others along.
    for name in KEPT_FIELDS:
        if name in data:
            try:
                kept_fields[name] = _table(name, data[name])
            except ERRORS:
                lost.append(name)
    # One floor for all: whatever process of the old state still lives, its count is below that of any new one.
    used = max(_counts(data), default=0)
    state = evolve(
        fresh,
        **kept_fields,
        roles=_floor(fresh.roles, generation=used),
        ranks=_floor(fresh.ranks, incarnation=used),
        hosts=_floor(fresh.hosts, incarnation=used),
        units=_floor(fresh.units, token=used),
    )
    state = _ended(_accounts(_role_restarts(state, data), data, at), data)
    return MigratedState(evolve(state, wake=timers.earliest_timer(state)), tuple(sorted(lost)), reason)


def _table(name: str, value: object) -> object:
    """Read one field of a state by this version's type."""
    kind = parts(JobState)[name]
    return decoder(kind)(_fitted(kind, value, name, set()))


def _floor(table: Map[Any, Any], **counts: int) -> Map[Any, Any]:
    """Return the table with these counts in all rows."""
    return Map({key: evolve(row, **counts) for key, row in table.items()})


def _counts(value: object) -> Iterator[int]:
    """Yield all fencing counts in a JSON value, at any depth: the format may be unknown."""
    if isinstance(value, Mapping):
        for name, inner in cast("Mapping[str, Any]", value).items():
            if name in COUNTS and type(inner) is int:
                yield inner
            else:
                yield from _counts(inner)
    elif isinstance(value, list):
        for inner in cast("list[Any]", value):
            yield from _counts(inner)


def _role_restarts(state: JobState, data: Mapping[str, Any]) -> JobState:
    """Return the state with the restart counts of its roles; rows that cannot be read are skipped."""
    rows = data.get("roles")
    for row in cast("list[Any]", rows) if isinstance(rows, list) else ():
        with suppress(*ERRORS):
            name, count = row[0], row[1]["restarts"]
            role_state = evolve(state.roles[name], restarts=max(int(count), 0))
            state = evolve(state, roles=state.roles.set(name, role_state))
    return state


def _accounts(state: JobState, data: Mapping[str, Any], at: float) -> JobState:
    """Return the state with the ledger taken over and all ranks booked as waiting; an unreadable one begins anew."""
    try:
        book = cast("Ledger", _table("ledger", data["ledger"]))
        sizes = cast("Map[str, Sizing]", _table("sizes", data.get("sizes", [])))
    except ERRORS:
        return state
    if not _agrees(book):
        return state  # a change of the journal that did not fit may have been applied in part
    now = rules.micros(state, at)
    # All roles begin in the size of the spec again, and each rank in the account of a rank that has not begun.
    for role, sizing in sizes.items():
        if role in state.roles and sizing.size != state.job.roles[role].plan.replicas:
            book = ledger.resize_role(book, role, sizing.size, state.job.roles[role].plan.replicas, now)
    moves = [Move(key, None) for key in book.clocks if key not in state.ranks]
    moves += [Move(key, rules.account_of(state, key)) for key in state.ranks]
    spares = {role: -book.books[role, account].count for role, account in book.books if account is ledger.Account.SPARE}
    return evolve(state, ledger=ledger.book_moves(book, moves, spares, now))


def _agrees(book: Ledger) -> bool:
    """Whether the counts of all accounts match the ranks' clocks; otherwise bookings would make a count negative."""
    clocks = Counter((role, account) for (role, _), (account, _) in book.clocks.items())
    counts = Counter(
        {key: book_entry.count for key, book_entry in book.books.items() if key[1] is not ledger.Account.SPARE}
    )
    return clocks == counts and book.productive.count == sum(
        count for (_, account), count in counts.items() if account is ledger.Account.PRODUCTIVE
    )


def _ended(state: JobState, data: Mapping[str, Any]) -> JobState:
    """Return the state with the verdict of a job that was ending: only its release is left to do."""
    try:
        verdict = decoder(Verdict)(_fitted(Verdict, data["verdict"], "verdict", set()))
    except ERRORS:
        return state
    phase = data.get("phase")
    over = (
        phase if phase in {phase_member.value for phase_member in Phase if phase_member.final} else Phase.STOPPING.value
    )
    ended = evolve(verdict, kill_at=None, release_at=verdict.at if verdict.release_at is None else verdict.release_at)
    return evolve(state, phase=Phase(over), verdict=ended)


def _check_rows(state: JobState) -> None:
    """Raise ValueError if a row is missing that this version looks up."""
    need = initial(state.job.plan, state.job.spec, state.job.uid, state.started_at, own_nodes=state.job.own_nodes)
    for name in ("roles", "ranks", "hosts", "units", "sizes"):
        missing = [key for key in getattr(need, name) if key not in getattr(state, name)]
        if missing:
            raise ValueError(f"{name} lacks {missing[0]}")


def _message(error: BaseException) -> str:
    if isinstance(error, JournalError):
        return error.message
    return str(error) if isinstance(error, ValueError) else repr(error)


# -- checking foreign JSON against this version's types


def _fitted(kind: Any, value: Any, path: str, left_out: set[str]) -> Any:  # noqa: ANN401 - JSON of any type
    """Return a value in the form that its type's decoder accepts, unknown fields removed and added to `left_out`.

    Raises:
        ValueError: The value, found at `path`, is of another type.
    """
    origin, args = get_origin(kind), get_args(kind)
    if origin in (UnionType, Union):
        return None if value is None else _fitted(optional(kind), value, path, left_out)
    if origin is Map:
        return [_fitted(tuple[args], row, path, left_out) for row in _list(value, path)]
    if origin is tuple:
        items = _list(value, path)
        if args[-1] is Ellipsis:
            return [_fitted(args[0], item, path, left_out) for item in items]
        if len(items) != len(args):
            raise ValueError(f"{path} has {len(items)} parts, and not {len(args)}")
        return [_fitted(part, item, path, left_out) for part, item in zip(args, items, strict=True)]
    if is_dataclass(kind):
        return _fitted_object(cast("type", kind), value, path, left_out)
    return _fitted_leaf(kind, value, path)


def _list(value: object, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{path} is no list")
    return cast("list[Any]", value)


def _fitted_object(kind: type, value: object, path: str, left_out: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{path} is no object")
    field_types, fields_read = parts(kind), cast("dict[str, Any]", value)
    left_out.update(f"{path}.{name}".lstrip(".") for name in fields_read if name not in field_types)
    return {
        name: _fitted(part, fields_read[name], f"{path}.{name}".lstrip("."), left_out)
        for name, part in field_types.items()
        if name in fields_read
    }


def _fitted_leaf(kind: Any, value: Any, path: str) -> Any:  # noqa: ANN401 - JSON
    if issubclass(kind, Enum):
        kind(value)  # raises ValueError, with both names
    # `type`, not isinstance: a bool is an int in Python. JSON writes a whole float as an int.
    elif type(value) is not kind and not (kind is float and type(value) is int):
        raise ValueError(f"{path} is {value!r}, which is no {kind.__name__}")
    return value
