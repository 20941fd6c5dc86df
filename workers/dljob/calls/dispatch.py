"""Dispatch of a call: `plan_call` chooses the ranks and the arguments of each from the caller's RoleSnapshot."""

from __future__ import annotations

import hashlib
import operator
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dljob.calls import batch, mesh, rows
from dljob.calls.batch import Arguments, ShardSizes
from dljob.calls.mark import DISPATCHES, RpcMark
from dljob.errors import UsageError
from dljob.telemetry.wording import counted


@dataclass(frozen=True, slots=True)
class RoleSnapshot:
    """A role as a caller sees it at the time of one call."""

    role: str
    ranks: int
    """Number of its ranks."""
    axes: Mapping[str, int]
    """Its mesh, as its class declares it; empty without one."""
    caller: tuple[int, int] = (0, 1)
    """The caller's own rank, and how many ranks its role has."""
    in_flight: Mapping[int, int] | None = None
    """Rank -> number of this caller's calls to it that have no answer yet."""
    turn: int = 0
    """Number of earlier calls of this caller, for `round_robin` and ties of `least_loaded`."""
    numbers: tuple[int, ...] = ()
    """The numbers of its ranks, where some have left and higher ones stayed; empty: 0 to n-1. Dispatches count the
    ranks from 0 to n-1 even then, in the order of their numbers."""


@dataclass(frozen=True, slots=True)
class Send:
    """One request: the rank, an index into `CallPlan.arguments`, and whether the rank's answer is discarded."""

    rank: int
    arguments_index: int
    discards_answer: bool = False


@dataclass(frozen=True, slots=True)
class CallPlan:
    """The requests of one call. `arguments` holds shared ones once: they are pickled once for many ranks."""

    sends: tuple[Send, ...]
    arguments: tuple[Arguments, ...]
    picks_one_rank: bool = False
    """Whether the dispatch picks one rank: the call's value is then the answer itself, not a list."""
    shard_sizes: ShardSizes | None = None
    """How the rows of the arguments were divided; None where none were cut."""


Choose = Callable[
    [RoleSnapshot, Sequence[Any], Mapping[str, Any]], Sequence[tuple[int, Sequence[Any], Mapping[str, Any]]]
]
"""A user's dispatch: (snapshot of the role, args, kwargs) -> (rank, args, kwargs) of each request."""

_user_dispatches: dict[str, Choose] = {}


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
    _user_dispatches[name] = choose


def user_dispatches() -> tuple[str, ...]:
    """Return the names of the dispatches that users registered."""
    return tuple(_user_dispatches)


def plan_call(role: RoleSnapshot, mark: RpcMark, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallPlan:
    """Return the requests of a call.

    Raises:
        UsageError: the arguments do not fit the dispatch, or the mesh does not fit the role.
    """
    if not role.numbers:
        return _plan_over_places(role, mark, args, kwargs)
    # Dispatches count the ranks by their place: 0 to n-1, in the order of the rank numbers.
    if role.in_flight:
        in_flight = {place: role.in_flight.get(rank, 0) for place, rank in enumerate(role.numbers)}
        role = replace(role, in_flight=in_flight)
    plan = _plan_over_places(role, mark, args, kwargs)
    return replace(plan, sends=tuple(replace(send, rank=role.numbers[send.rank]) for send in plan.sends))


def _plan_over_places(role: RoleSnapshot, mark: RpcMark, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallPlan:
    # Only these two cut arguments; for the others `whole` around an argument has no meaning and is taken off.
    if mark.dispatch not in ("shard", "each"):
        args, kwargs = rows.unwrap_whole(args, kwargs)
    match mark.dispatch:
        case "all":
            layout = shard_layout(role, mark)
            # Ranks of one shard compute the same: one answer of them is enough, but the errors of all count (ADR 44).
            ranks = range(role.ranks)
            sends = tuple(Send(rank, 0, discards_answer=not layout.answers_for_shard(rank)) for rank in ranks)
            return CallPlan(sends, ((args, kwargs),))
        case "each":
            return _plan_each(role, mark, args, kwargs)
        case "shard":
            # Ranks that differ on other axes than `dp` (tensor, pipeline) work on the same rows.
            layout = shard_layout(role, mark, default_axis="dp")
            row_count = batch.count_rows(args, kwargs, mark.parameters)
            sizes = batch.divide_rows(row_count, layout.shard_count, mark.pad)
            return _plan_shards(layout, batch.split_arguments(args, kwargs, sizes), sizes)
        case "rank0":
            return _plan_one(0, args, kwargs)
        case "round_robin":
            return _plan_one(role.turn % role.ranks, args, kwargs)
        case "least_loaded":
            return _plan_one(_least_loaded_rank(role), args, kwargs)
        case "owner":
            # In order, so that neighbouring callers share an owner and each owner serves equally many, give or take
            # one: the rank with the caller's own number, or scaled where the roles differ in size.
            caller_rank, caller_count = role.caller
            return _plan_one(caller_rank * role.ranks // caller_count, args, kwargs)
        case name if name.startswith("hash:"):
            key = _key_argument(mark, name.removeprefix("hash:"), args, kwargs)
            # By rank number: keys of ranks that stay keep them, whichever others come and go.
            place = role.numbers.index(rank_of_key(key, role.numbers)) if role.numbers else rank_of_key(key, role.ranks)
            return _plan_one(place, args, kwargs)
        case name:
            return _plan_user_dispatch(role, name, args, kwargs)


def _least_loaded_rank(role: RoleSnapshot) -> int:
    """Return the rank with the fewest unanswered calls of this caller; of several, the next one in turn."""
    # The order begins at `turn`: with the ranks equally busy, a fixed order would send all calls to rank 0.
    unanswered_calls = role.in_flight or {}
    ranks = [(role.turn + offset) % role.ranks for offset in range(role.ranks)]
    return min(ranks, key=lambda rank: unanswered_calls.get(rank, 0))


def rank_of_key(key: object, ranks: int | Sequence[int]) -> int:
    """Return the rank of a key: the same in every process, and few keys move when the number of ranks changes.

    Rendezvous hashing: each rank's hash of the key is a number, and the rank with the largest one serves the key.

    Raises:
        UsageError: a key of this type is not the same in every process.
    """
    # Not `hash()`, which differs between processes. A fixed protocol: pickle's default depends on Python's version.
    key_bytes = pickle.dumps(_plain_key(key), protocol=4)
    candidates = range(ranks) if isinstance(ranks, int) else ranks
    return max(candidates, key=lambda rank: hashlib.blake2b(key_bytes, digest_size=8, salt=str(rank).encode()).digest())


def _plain_key(key: Any) -> object:
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


def shard_layout(role: RoleSnapshot, mark: RpcMark, *, default_axis: str | None = None) -> mesh.ShardLayout:
    """Return the shards over the method's axes, or over `default_axis` if it names none and the role has a mesh."""
    axes = mark.axes
    if not axes and default_axis and role.axes:
        # No guess: over a wrong axis, ranks that need the same shard would get different ones.
        if default_axis not in role.axes:
            axis_names = ", ".join(role.axes)
            raise UsageError(
                f"dispatch={mark.dispatch!r}: role {role.role} has a mesh ({axis_names}) without an axis "
                f"{default_axis!r}",
                hint=f"say over which: @rpc(dispatch={mark.dispatch!r}, mesh=...)",
            )
        axes = (default_axis,)
    if not axes:
        return mesh.layout_without_mesh(role.ranks)
    # A role without a mesh is one axis of data-parallel ranks, so `mesh="dp"` holds for it too.
    declared_axes = role.axes or {"dp": role.ranks}
    return mesh.layout_over_axes(mesh.mesh_from_axes(declared_axes, role.ranks, role.role), axes, role.role)


def _plan_one(rank: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallPlan:
    return CallPlan((Send(rank, 0),), ((args, kwargs),), picks_one_rank=True)


def _plan_shards(
    layout: mesh.ShardLayout, arguments: Sequence[Arguments], shard_sizes: ShardSizes | None = None
) -> CallPlan:
    """Send each rank the arguments of its shard, in the order of the shards: answers are merged in this order."""
    ranks = sorted(range(len(layout.shard_of)), key=lambda rank: (layout.shard_of[rank], rank))
    sends = (Send(rank, layout.shard_of[rank], discards_answer=not layout.answers_for_shard(rank)) for rank in ranks)
    return CallPlan(tuple(sends), tuple(arguments), shard_sizes=shard_sizes)


def _plan_each(role: RoleSnapshot, mark: RpcMark, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallPlan:
    layout = shard_layout(role, mark, default_axis="dp")
    named_arguments = [(f"argument {n}", value) for n, value in enumerate(args, 1)] + list(kwargs.items())
    for name, value in named_arguments:
        # A `whole` value is no list of one item per shard, even if it is a list.
        if isinstance(value, rows.Whole):
            continue
        if not isinstance(value, (list, tuple)) or len(value) != layout.shard_count:
            got = counted(len(value), "item") if isinstance(value, (list, tuple)) else type(value).__name__
            wanted_items = f"a list of {layout.shard_count}, one for each"
            raise UsageError(f"dispatch='each': {name} is to be {wanted_items}, got {got}")

    def item_for_shard(value: Any, shard: int) -> Any:
        return value.value if isinstance(value, rows.Whole) else value[shard]

    arguments = [
        (
            tuple(item_for_shard(value, shard) for value in args),
            {name: item_for_shard(value, shard) for name, value in kwargs.items()},
        )
        for shard in range(layout.shard_count)
    ]
    return _plan_shards(layout, arguments)


def _key_argument(mark: RpcMark, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    if name in kwargs:
        return kwargs[name]
    if name in mark.parameters and mark.parameters.index(name) < len(args):
        return args[mark.parameters.index(name)]
    raise UsageError(
        f"dispatch='hash:{name}': the call has no argument {name!r}",
        hint=f"the method's parameters: {', '.join(mark.parameters) or 'none that are known'}",
    )


def _plan_user_dispatch(role: RoleSnapshot, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallPlan:
    choose = _user_dispatches.get(name)
    if choose is None:
        raise UsageError(
            f"dispatch={name!r}: not registered in this process",
            hint="register_dispatch it where callers import it too, as in a module that both import",
        )
    requests = list(choose(role, args, kwargs))
    # `choose` is a user's function: it may return NumPy's numbers, which are fine, or no ranks at all.
    wrong_ranks = [rank for rank, _, _ in requests if not hasattr(rank, "__index__") or rank not in range(role.ranks)]
    if wrong_ranks or not requests:
        choice = f"rank {wrong_ranks[0]}" if wrong_ranks else "no rank"
        raise UsageError(f"dispatch={name!r} chose {choice}; {role.role} has ranks 0 to {role.ranks - 1}")
    sends = tuple(Send(operator.index(rank), index) for index, (rank, _, _) in enumerate(requests))
    return CallPlan(sends, tuple((tuple(rank_args), dict(rank_kwargs)) for _, rank_args, rank_kwargs in requests))
