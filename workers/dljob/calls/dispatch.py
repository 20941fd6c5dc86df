"""Dispatch of a call: `plan_call` chooses the ranks and the arguments of each from the caller's RoleSnapshot."""

from __future__ import annotations

import hashlib
import operator
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dljob.calls import batch, mesh, rows
from dljob.calls.batch import Arguments, Shares
from dljob.calls.mark import DISPATCHES, RpcMark
from dljob.errors import UsageError
from dljob.telemetry.wording import counted


@dataclass(frozen=True, slots=True)
class RoleSnapshot:
    """A role as a caller sees it at the time of one call."""

    role: str
    ranks: int
    axes: Mapping[str, int]
    """Its mesh, as its class declares it; empty without one."""
    caller: tuple[int, int] = (0, 1)
    """The caller's own rank, and how many ranks its role has."""
    in_flight: Mapping[int, int] | None = None
    """Rank -> number of this caller's calls to it that have no answer yet."""
    turn: int = 0
    """Number of earlier calls of this caller, for `round_robin` and ties of `least_loaded`."""
    numbers: tuple[int, ...] = ()
    """The numbers of its ranks, where some left and higher ones stayed; empty: 0 to n-1. Dispatches count the ranks
    from 0 to n-1 all the same, in the order of their numbers."""


@dataclass(frozen=True, slots=True)
class Send:
    """One request: the rank, an index into `Dispatched.arguments`, and `quiet`, whether its answer is discarded."""

    rank: int
    arguments: int
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Dispatched:
    """The requests of one call. `arguments` holds shared ones once: they are pickled once for many ranks."""

    sends: tuple[Send, ...]
    arguments: tuple[Arguments, ...]
    single: bool = False
    """Whether the dispatch picks one rank: the call's value is then the answer itself, not a list."""
    shares: Shares | None = None


Choose = Callable[
    [RoleSnapshot, Sequence[Any], Mapping[str, Any]], Sequence[tuple[int, Sequence[Any], Mapping[str, Any]]]
]
"""A user's dispatch: (snapshot of the role, args, kwargs) -> (rank, args, kwargs) of each request."""

_registered: dict[str, Choose] = {}


def register_dispatch(name: str, choose: Choose) -> None:
    """Add a dispatch, in the process of the callee and of the caller, before `@rpc(dispatch=name)` is read.

    Args:
        name: the name for `@rpc(dispatch=)` and `.options(dispatch=)`.
        choose: takes a RoleSnapshot, the arguments and the keyword arguments; returns (rank, args, kwargs) of each
            request, in the order in which answers are collected.

    Raises:
        UsageError: the name belongs to a built-in dispatch.
    """
    if name in DISPATCHES or name.startswith("hash:"):
        raise UsageError(f"register_dispatch({name!r}): that name is taken", hint="choose another one")
    _registered[name] = choose


def registered() -> tuple[str, ...]:
    """Return the names of the dispatches that users registered."""
    return tuple(_registered)


def plan_call(view: RoleSnapshot, mark: RpcMark, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Dispatched:
    """Return the requests of a call.

    Raises:
        UsageError: the arguments do not fit the dispatch, or the mesh does not fit the role.
    """
    sent = _plan_call(_by_place(view), mark, args, kwargs)
    if not view.numbers:
        return sent
    return replace(sent, sends=tuple(replace(one, rank=view.numbers[one.rank]) for one in sent.sends))


def _by_place(view: RoleSnapshot) -> RoleSnapshot:
    """Return the view with its ranks counted from 0 to n-1, in the order of their numbers."""
    if not view.numbers or not view.in_flight:
        return view
    return replace(view, in_flight={place: view.in_flight.get(rank, 0) for place, rank in enumerate(view.numbers)})


def _plan_call(view: RoleSnapshot, mark: RpcMark, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Dispatched:
    # Only these two cut arguments; for the others `whole` around an argument has no meaning and is taken off.
    if mark.dispatch not in ("shard", "each"):
        args, kwargs = rows.bare(args, kwargs)
    match mark.dispatch:
        case "all":
            return _to_all(view, mark, (args, kwargs))
        case "each":
            return _each(view, mark, args, kwargs)
        case "shard":
            return _shard(view, mark, args, kwargs)
        case "rank0":
            return _to_one(view, 0, args, kwargs)
        case "round_robin":
            return _to_one(view, view.turn % view.ranks, args, kwargs)
        case "least_loaded":
            return _to_one(view, least_loaded(view), args, kwargs)
        case "owner":
            return _to_one(view, owner(view), args, kwargs)
        case name if name.startswith("hash:"):
            return _to_one(view, _sticky(view, _key(mark, name[5:], args, kwargs)), args, kwargs)
        case name:
            return _own(view, name, args, kwargs)


def least_loaded(view: RoleSnapshot) -> int:
    """Return the rank with the fewest unanswered calls of this caller; of several, the next one in turn."""
    # The order begins at `turn`: with the ranks equally busy, a fixed order would send all calls to rank 0.
    busy = view.in_flight or {}
    order = [(view.turn + n) % view.ranks for n in range(view.ranks)]
    return min(order, key=lambda rank: busy.get(rank, 0))


def owner(view: RoleSnapshot) -> int:
    """Return the rank that serves the caller's rank: the same number, or scaled where the roles differ in size."""
    rank, size = view.caller
    # In order, so that neighbouring callers share an owner and the owners serve equally many, give or take one.
    return rank * view.ranks // size


def _sticky(view: RoleSnapshot, key: object) -> int:
    """Return the place of a key's rank; keys of ranks that stay keep them, whichever others come and go."""
    return view.numbers.index(sticky(key, view.numbers)) if view.numbers else sticky(key, view.ranks)


def sticky(key: object, ranks: int | Sequence[int]) -> int:
    """Return the rank of a key: the same in every process, and few keys move when the number of ranks changes.

    Rendezvous hashing: each rank's hash of the key is a number, and the rank with the largest one serves the key.

    Raises:
        UsageError: a key of this type is not the same in every process.
    """
    # Not `hash()`, which differs between processes. A fixed protocol: pickle's default depends on Python's version.
    text = pickle.dumps(_plain(key), protocol=4)
    there = range(ranks) if isinstance(ranks, int) else ranks
    return max(there, key=lambda rank: hashlib.blake2b(text, digest_size=8, salt=str(rank).encode()).digest())


def _plain(key: Any) -> object:
    """Reduce a key to a plain text, number or bytes, so that NumPy's texts and members of an enum hash like these."""
    match key:
        case None:
            return None
        case str():
            # Not `str(key)`, which for a member of a text enum is the name of the member.
            return str.__str__(key)
        case bytes():
            return bytes(key)
        case _:
            try:
                # `index` accepts NumPy's whole numbers, and refuses fractions, which `int` would cut off.
                return int(operator.index(key))
            except TypeError:
                raise UsageError(
                    f"dispatch='hash:': a key is a text, a whole number or bytes, got {type(key).__name__}",
                    hint="pass the text or the number by which it is to be found",
                ) from None


def shards_of(view: RoleSnapshot, mark: RpcMark, *, default: str | None = None) -> mesh.Layout:
    """Return the shards over the method's axes; `default` is the axis where it names none and the role has a mesh."""
    axes = mark.axes
    if not axes and default and view.axes:
        # No guess: over a wrong axis, ranks that need the same shard would get different ones.
        if default not in view.axes:
            said = ", ".join(view.axes)
            raise UsageError(
                f"dispatch={mark.dispatch!r}: role {view.role} has a mesh ({said}) without an axis {default!r}",
                hint=f"say over which: @rpc(dispatch={mark.dispatch!r}, mesh=...)",
            )
        axes = (default,)
    if not axes:
        return mesh.every_rank(view.ranks)
    # A role without a mesh is one axis of data-parallel ranks, so `mesh="dp"` holds for it too.
    declared = view.axes or {"dp": view.ranks}
    return mesh.layout(mesh.mesh_of(declared, view.ranks, view.role), axes, view.role)


def _to_all(view: RoleSnapshot, mark: RpcMark, one: Arguments) -> Dispatched:
    layout = shards_of(view, mark)
    # Ranks of one shard compute the same: one answer of them is enough, but the errors of all count (ADR 44).
    sends = tuple(Send(rank, 0, quiet=not layout.answers(rank)) for rank in range(view.ranks))
    return Dispatched(sends, (one,))


def _to_one(view: RoleSnapshot, rank: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Dispatched:
    del view
    return Dispatched((Send(rank, 0),), ((args, kwargs),), single=True)


def _by_shard(layout: mesh.Layout, arguments: Sequence[Arguments], shares: Shares | None = None) -> Dispatched:
    """Send each rank the arguments of its shard; answers come in the order of shards."""
    # `merge` takes the answers in the order of the sends.
    ranks = sorted(range(len(layout.shard_of)), key=lambda rank: (layout.shard_of[rank], rank))
    sends = tuple(Send(rank, layout.shard_of[rank], quiet=not layout.answers(rank)) for rank in ranks)
    return Dispatched(sends, tuple(arguments), shares=shares)


def _each(view: RoleSnapshot, mark: RpcMark, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Dispatched:
    layout = shards_of(view, mark, default="dp")
    named = [(f"argument {n}", value) for n, value in enumerate(args, 1)] + list(kwargs.items())
    for name, value in named:
        # A `whole` value is no list of one item per shard, even if it is a list.
        if isinstance(value, rows.Whole):
            continue
        if not isinstance(value, (list, tuple)) or len(value) != layout.shards:
            got = counted(len(value), "item") if isinstance(value, (list, tuple)) else type(value).__name__
            raise UsageError(f"dispatch='each': {name} is to be a list of {layout.shards}, one for each, got {got}")
    arguments = [
        (tuple(_nth(value, n) for value in args), {name: _nth(value, n) for name, value in kwargs.items()})
        for n in range(layout.shards)
    ]
    return _by_shard(layout, arguments)


def _nth(value: Any, n: int) -> Any:
    return value.value if isinstance(value, rows.Whole) else value[n]


def _shard(view: RoleSnapshot, mark: RpcMark, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Dispatched:
    # Ranks that differ on other axes than `dp` (tensor, pipeline) work on the same rows.
    layout = shards_of(view, mark, default="dp")
    shares = batch.shares(batch.count_rows(args, kwargs, mark.parameters), layout.shards, mark.pad)
    return _by_shard(layout, batch.split(args, kwargs, shares), shares)


def _key(mark: RpcMark, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    if name in kwargs:
        return kwargs[name]
    if name in mark.parameters and mark.parameters.index(name) < len(args):
        return args[mark.parameters.index(name)]
    raise UsageError(
        f"dispatch='hash:{name}': the call has no argument {name!r}",
        hint=f"the method's parameters: {', '.join(mark.parameters) or 'none that are known'}",
    )


def _own(view: RoleSnapshot, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Dispatched:
    choose = _registered.get(name)
    if choose is None:
        raise UsageError(
            f"dispatch={name!r}: not registered in this process",
            hint="register_dispatch it where callers import it too, as in a module that both import",
        )
    chosen = list(choose(view, args, kwargs))
    # `choose` is a user's function: it may return NumPy's numbers, which are fine, or no ranks at all.
    wrong = [rank for rank, _, _ in chosen if not hasattr(rank, "__index__") or rank not in range(view.ranks)]
    if wrong or not chosen:
        said = f"rank {wrong[0]}" if wrong else "no rank"
        raise UsageError(f"dispatch={name!r} chose {said}; {view.role} has ranks 0 to {view.ranks - 1}")
    sends = tuple(Send(operator.index(rank), number) for number, (rank, _, _) in enumerate(chosen))
    return Dispatched(sends, tuple((tuple(own), dict(named)) for _, own, named in chosen))
