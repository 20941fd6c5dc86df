"""A state that other code wrote: taken as it is where this version understands it, else begun anew with what must stay.

Fields that this version does not know are left out by name, those that it has more take their defaults. What it cannot
read, or what was made by another plan, it does not guess: all ranks start again from their last checkpoints, and what
budgets count, commands, exclusions, checkpoints, data positions and the ledger go on, each as far as it can be read.
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

KEPT = (
    "started_at", "carried", "serial", "restarts", "marks", "errors", "commands", "faults", "exclusions", "replaced",
    "saves", "feeds", "grants", "epoch", "version", "running_at", "result",
)  # fmt: skip
"""What goes on where the whole cannot be read."""
COUNTS = frozenset({"incarnation", "life", "token", "generation", "number"})
"""What fences old processes: nothing that begins anew may have a number that was used."""
TAIL = "tail"
"""Beside a state's fields: the events that came after it, whose numbers are used too."""
ERRORS = (JournalError, LookupError, ValueError, TypeError, AttributeError, RecursionError)
"""What reading what nobody here wrote may raise."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A state that goes on from what other code wrote. `anew` says why it is not that one; empty: it is."""

    state: JobState
    left_out: tuple[str, ...] = ()
    """What this version does not know, by name."""
    anew: str = ""


def take(data: Mapping[str, Any], fresh: JobState, plan: str, at: float) -> Taken:
    """Go on from a state.

    Args:
        data: As `codec.encode_state` of whatever version wrote it.
        fresh: The first state of the same job, in this version.
        plan: The digest of the plan that it was made by; empty: nobody knows.
        at: When it was written (unix seconds).
    """
    own = fresh.job.plan.digest
    if plan and plan != own:
        return begin_anew(data, fresh, f"it is of plan {plan}, and this dljob plans {own}", at)
    left_out: set[str] = set()
    try:
        fitted = _fitted(JobState, {key: value for key, value in data.items() if key not in ("v", TAIL)}, "", left_out)
        state = decode_state({**fitted, "v": data["v"]}, fresh.job)
        _whole(state)
    except ERRORS as error:
        return begin_anew(data, fresh, f"its state cannot be read: {_words(error)}", at)
    return Taken(state, tuple(sorted(left_out)))


def read_event(data: Mapping[str, Any]) -> Event:
    """An event, without the fields that this version does not know.

    Raises:
        JournalError: There is no such event, or it is not what this version calls so.
    """
    kind = codec.EVENTS.get(data["t"])
    try:
        if kind is not None:
            own = {key: value for key, value in data.items() if key != "t"}
            return codec.decode_event({**_fitted(kind, own, "", set()), "t": data["t"]})
    except ERRORS as error:
        raise JournalError(f"event {data['t']!r}: {_words(error)}", offset=0) from error
    return codec.decode_event(data)


def begin_anew(data: Mapping[str, Any], fresh: JobState, why: str, at: float) -> Taken:
    """The first state again, with what goes on, and with numbers that nobody had before. All processes must be gone."""
    kept: dict[str, object] = {}
    lost: list[str] = []
    for name in KEPT:
        if name in data:
            try:
                kept[name] = _table(name, data[name])
            except ERRORS:
                lost.append(name)
    used = max(_counts(data), default=0)
    state = evolve(
        fresh,
        **kept,
        roles=_floor(fresh.roles, generation=used),
        ranks=_floor(fresh.ranks, incarnation=used),
        hosts=_floor(fresh.hosts, life=used),
        units=_floor(fresh.units, token=used),
    )
    state = _ended(_accounts(_role_restarts(state, data), data, at), data)
    return Taken(evolve(state, wake=timers.earliest(state)), tuple(sorted(lost)), why)


def _table(name: str, value: object) -> object:
    kind = parts(JobState)[name]
    return decoder(kind)(_fitted(kind, value, name, set()))


def _floor(table: Map[Any, Any], **counts: int) -> Map[Any, Any]:
    return Map({key: evolve(own, **counts) for key, own in table.items()})


def _counts(value: object) -> Iterator[int]:
    """All numbers that fence, wherever they stand."""
    if isinstance(value, Mapping):
        for name, own in cast("Mapping[str, Any]", value).items():
            if name in COUNTS and type(own) is int:
                yield own
            else:
                yield from _counts(own)
    elif isinstance(value, list):
        for own in cast("list[Any]", value):
            yield from _counts(own)


def _role_restarts(state: JobState, data: Mapping[str, Any]) -> JobState:
    """The roles with the restarts that were counted for them; of a row that is none, nothing."""
    rows = data.get("roles")
    for row in cast("list[Any]", rows) if isinstance(rows, list) else ():
        with suppress(*ERRORS):
            name, count = row[0], row[1]["restarts"]
            own = evolve(state.roles[name], restarts=max(int(count), 0))
            state = evolve(state, roles=state.roles.set(name, own))
    return state


def _accounts(state: JobState, data: Mapping[str, Any], at: float) -> JobState:
    """The ledger goes on: every rank is now where one is that has not begun. One that cannot be read begins anew."""
    try:
        book = cast("Ledger", _table("ledger", data["ledger"]))
        sizes = cast("Map[str, Sizing]", _table("sizes", data.get("sizes", [])))
    except ERRORS:
        return state
    if not _agrees(book):
        return state  # a change that did not fit may have laid a part of it
    now = rules.micros(state, at)
    for role, own in sizes.items():
        if role in state.roles and own.size != state.job.roles[role].plan.replicas:
            book = ledger.resized(book, role, own.size, state.job.roles[role].plan.replicas, now)
    moves = [Move(key, None) for key in book.clocks if key not in state.ranks]
    moves += [Move(key, rules.account_of(state, key)) for key in state.ranks]
    spares = {role: -book.books[role, account].count for role, account in book.books if account is ledger.Account.SPARE}
    return evolve(state, ledger=ledger.booked(book, moves, spares, now))


def _agrees(book: Ledger) -> bool:
    """Whether each account counts as many ranks as have their clock in it; one that does not would go below nothing."""
    clocks = Counter((role, account) for (role, _), (account, _) in book.clocks.items())
    counts = Counter({key: own.count for key, own in book.books.items() if key[1] is not ledger.Account.SPARE})
    return clocks == counts and book.productive.count == sum(
        count for (_, account), count in counts.items() if account is ledger.Account.PRODUCTIVE
    )


def _ended(state: JobState, data: Mapping[str, Any]) -> JobState:
    """A job that was ending ends: of it only the release is left."""
    try:
        verdict = decoder(Verdict)(_fitted(Verdict, data["verdict"], "verdict", set()))
    except ERRORS:
        return state
    phase = data.get("phase")
    over = phase if phase in {one.value for one in Phase if one.final} else Phase.STOPPING.value
    ended = evolve(verdict, kill_at=None, release_at=verdict.at if verdict.release_at is None else verdict.release_at)
    return evolve(state, phase=Phase(over), verdict=ended)


def _whole(state: JobState) -> None:
    """Whether all is there that this version looks up."""
    need = initial(state.job.plan, state.job.spec, state.job.uid, state.started_at, own_nodes=state.job.own_nodes)
    for name in ("roles", "ranks", "hosts", "units", "sizes"):
        missing = [key for key in getattr(need, name) if key not in getattr(state, name)]
        if missing:
            raise ValueError(f"{name} lacks {missing[0]}")


def _words(error: BaseException) -> str:
    if isinstance(error, JournalError):
        return error.message
    return str(error) if isinstance(error, ValueError) else repr(error)


# -- what fits


def _fitted(kind: Any, value: Any, where: str, left_out: set[str]) -> Any:  # noqa: ANN401 - JSON of any type
    """A value as its type's decoder takes it; raises ValueError where it is of another type."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (UnionType, Union):
        return None if value is None else _fitted(optional(kind), value, where, left_out)
    if origin is Map:
        return [_fitted(tuple[args], row, where, left_out) for row in _list(value, where)]
    if origin is tuple:
        items = _list(value, where)
        if args[-1] is Ellipsis:
            return [_fitted(args[0], item, where, left_out) for item in items]
        if len(items) != len(args):
            raise ValueError(f"{where} has {len(items)} parts, and not {len(args)}")
        return [_fitted(part, item, where, left_out) for part, item in zip(args, items, strict=True)]
    if is_dataclass(kind):
        return _fitted_object(cast("type", kind), value, where, left_out)
    return _fitted_leaf(kind, value, where)


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{where} is no list")
    return cast("list[Any]", value)


def _fitted_object(kind: type, value: object, where: str, left_out: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is no object")
    own, told = parts(kind), cast("dict[str, Any]", value)
    left_out.update(f"{where}.{name}".lstrip(".") for name in told if name not in own)
    return {
        name: _fitted(part, told[name], f"{where}.{name}".lstrip("."), left_out)
        for name, part in own.items()
        if name in told
    }


def _fitted_leaf(kind: Any, value: Any, where: str) -> Any:  # noqa: ANN401 - JSON
    if issubclass(kind, Enum):
        kind(value)  # raises ValueError, with both names
    elif type(value) is not kind and not (kind is float and type(value) is int):
        raise ValueError(f"{where} is {value!r}, which is no {kind.__name__}")
    return value
