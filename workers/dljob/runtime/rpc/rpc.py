"""Calls between roles: `@rpc` on the callee's methods, `RoleGroup(...)` in the caller.

A call is sent at most once, unless it is declared idempotent; it waits while the callee restarts, within its deadline.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from dljob.calls import collect as collects
from dljob.calls import dispatch as dispatches
from dljob.calls.batch import Pad
from dljob.calls.mark import DEFAULT_TIMEOUT_S, RpcMark, changed
from dljob.errors import UsageError
from dljob.runtime.process.context import current_worker
from dljob.runtime.process.worker_context import WorkerContext
from dljob.runtime.rpc.futures import CallFuture, FutureSequence
from dljob.runtime.rpc.sending import CallTarget, begin
from dljob.runtime.rpc.streams import Stream

_MARK = "__dljob_rpc__"
_ANY = RpcMark(collect="concat")
"""Stands for a method that is not known yet: it takes each value of each option."""
_OPTIONS = ("timeout", "idempotent", "dispatch", "collect", "mesh", "pad")

F = TypeVar("F", bound=Callable[..., Any])


@overload
def rpc(method: F) -> F: ...
@overload
def rpc(
    *,
    dispatch: str = "all",
    collect: str = "list",
    mesh: str | None = None,
    pad: Pad = "uneven",
    timeout: float | None = DEFAULT_TIMEOUT_S,
    idempotent: bool = False,
    stream: bool | int = False,
    concurrency: int | None = None,
) -> Callable[[F], F]: ...
def rpc(method: Any = None, **options: Any) -> Any:
    """Let other roles call a method of a worker class.

    Args:
        method: the method, when used without parentheses.
        **options: `dispatch`: which ranks a call of the role goes to, and with what: all, rank0, each, shard,
            round_robin, least_loaded, owner, hash:<parameter>, or a registered one.
            `collect`: what their answers become: list, first, concat, sum, mean, max, as_completed, none, or a
            registered one. `mesh`: the axes over which to shard, as in "dp"; one rank answers for each shard.
            `pad`: what to do with rows that do not divide: uneven, auto, error.
            `timeout`: the deadline in seconds; None: there is none.
            `idempotent`: a call that was lost with its process may be run again in the next one.
            `stream`: it is a generator, whose items go to the caller as they are made; a number: how many a rank makes
            ahead of its caller (True: 8).
            `concurrency`: how many calls of it may run at once in a rank, streams as long as they are open; None: as
            many as come. Of all methods of a rank together 64 calls run or wait for their turn; more are begun later.
    """
    mark = _read("@rpc", RpcMark(), options, (*_OPTIONS, "stream", "concurrency"))

    def write(function: Any) -> Any:
        if not callable(function):
            raise UsageError(f"@rpc goes on a method, got {type(function).__name__}")
        setattr(function, _MARK, mark)
        return function

    return write if method is None else write(method)


def _read(what: str, mark: RpcMark, options: Mapping[str, Any], known: Sequence[str]) -> RpcMark:
    """A mark with options of users laid over it."""
    for name in options:
        if name not in known:
            raise UsageError(f"{what}({name}=...): unknown option", hint=f"there are: {', '.join(known)}")
    try:
        return changed(mark, options, dispatches.registered(), collects.registered())
    except UsageError as error:
        raise UsageError(f"{what}: {error.message}", hint=error.hint) from None


def mark_of(cls: type, name: str) -> RpcMark | None:
    """What `@rpc` says of a class's method, also when a subclass overrides it without the decorator; else None."""
    for base in cls.__mro__:
        mark = getattr(base.__dict__.get(name), _MARK, None)
        if mark is not None:
            return mark
    return None


def parameters_of(cls: type, name: str) -> tuple[str, ...]:
    """The names of a method's parameters that may be given by position, after `self`."""
    try:
        found = inspect.signature(getattr(cls, name)).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))[1:]


class _Handle:
    """What a rank and a role have in common as callees."""

    def __init__(self, context: WorkerContext, role: str, rank: int | None, options: Mapping[str, Any]) -> None:
        self._context = context
        self._target = CallTarget(context, role, rank, options)
        self.role = role

    def call(self, method: str, *args: Any, **kwargs: Any) -> CallFuture[Any]:
        """Call an @rpc method, as it says and the options of this handle do; the future gives its answer."""
        return CallFuture(begin(self._target, method, args, kwargs), f"{self._target.name}.{method}")

    def stream(self, method: str, *args: Any, **kwargs: Any) -> Stream:
        """The items of an @rpc(stream=...) method, as they are made: `for` or `async for`."""
        return Stream(self._target, method, args, kwargs)

    if not TYPE_CHECKING:  # where `dljob.runtime.worker.typed` says which roles take any name

        def __getattr__(self, method: str) -> Method:
            if method.startswith("_"):
                raise AttributeError(method)
            return Method(self, method)


class Method:
    """A method of another role, called like one of this process: `RoleGroup("rollout").generate(prompts)`."""

    def __init__(self, handle: _Handle, name: str) -> None:
        self._handle = handle
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it and wait for its answer; of a stream, its items."""
        if self._handle._target.is_stream(self._name):
            return self._handle.stream(self._name, *args, **kwargs)
        return self._handle.call(self._name, *args, **kwargs).result()

    def options(self, **changes: Any) -> Method:
        """The same method with other options."""
        return Method(self._handle.options(**changes), self._name)  # type: ignore[attr-defined]


class Rank(_Handle):
    """One rank of a role, as a callee."""

    def __init__(self, context: WorkerContext, role: str, rank: int, options: Mapping[str, Any]) -> None:
        super().__init__(context, role, rank, options)
        self.rank = rank

    if TYPE_CHECKING:

        def __getattr__(self, method: str) -> Method: ...

    def options(self, **changes: Any) -> Rank:
        """The same rank with other options: `timeout` in seconds (None: no deadline), `idempotent`."""
        return Rank(self._context, self.role, self.rank, _laid_over(self._target.options, changes, _OPTIONS[:2]))


class RoleGroup(_Handle):
    """A role as a callee: `RoleGroup("rollout").call("generate", prompts)`; `len`, index, slice and `for`: its ranks.

    It holds no processes: a rank that restarts is the same rank, and calls to it wait until it is back.
    """

    def __class_getitem__(cls, _role_class: object) -> type[RoleGroup]:
        """`RoleGroup["Rollout"]("rollout")`: the class of the role is for type checkers (`worker.typed`)."""
        return cls

    def __init__(self, role: str, *, _options: Mapping[str, Any] | None = None) -> None:
        context = current_worker()
        if role not in context.peers:
            there = ", ".join(sorted(context.peers))
            raise UsageError(f"RoleGroup({role!r}): no such role", hint=f"this job has: {there}")
        super().__init__(context, role, None, _options or {})

    def __len__(self) -> int:
        return self._target.ranks

    @overload
    def __getitem__(self, index: int) -> Rank: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Rank]: ...
    def __getitem__(self, index: int | slice) -> Rank | Sequence[Rank]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = operator.index(index)  # a number of NumPy would go on the wire as something else
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.role} has ranks 0 to {len(self) - 1}, not {index}")
        own = {name: value for name, value in self._target.options.items() if name in _OPTIONS[:2]}
        return Rank(self._context, self.role, index % len(self), own)

    def __iter__(self) -> Iterator[Rank]:
        return (self[i] for i in range(len(self)))

    def call_rank0(self, method: str, *args: Any, **kwargs: Any) -> CallFuture[Any]:
        """Call an @rpc method of rank 0."""
        return self[0].call(method, *args, **kwargs)

    def call_batch(self, method: str, size: int, *args: Any, **kwargs: Any) -> FutureSequence[Any]:
        """Share a batch among the ranks: each is given a part of the rows, and answers a list of as many items.

        Args:
            method: an @rpc method; its own dispatch and collect do not count here.
            size: how many rows the batch has.
            *args: what has rows (lists, arrays, tensors, dicts of them) has as many, and is split, also by name; the
                rest, texts among it, goes whole to every rank, and so does a list in `whole(...)`.
            **kwargs: the same.
        """
        if isinstance(size, bool) or not hasattr(size, "__index__") or size < 0:
            raise UsageError(f"call_batch({method!r}, size={size!r}): wanted a whole number from 0")
        size = operator.index(size)
        target = self.options(dispatch="shard", collect="list", pad="uneven")._target
        started = begin(target, method, args, kwargs, rows=size)
        return FutureSequence(started, size, f"{self.role}.{method}")

    def options(self, **changes: Any) -> RoleGroup:
        """The same role with other options than its methods say, of those of `@rpc`; timeout=None: no deadline."""
        return RoleGroup(self.role, _options=_laid_over(self._target.options, changes, _OPTIONS))


def _laid_over(options: Mapping[str, Any], changes: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """Checked by themselves: what goes with what a method says is known when it is called."""
    made = {**options, **changes}
    mark = _read("options", _ANY, made, known)
    return {**made, "timeout": mark.timeout_s} if "timeout" in made else made
