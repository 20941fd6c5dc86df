"""Calls between roles: `@rpc` on the callee's methods, `RoleGroup(...)` in the caller.

A call runs at most once unless its method is declared idempotent. While the callee restarts the call waits, within its
deadline.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from dljob.calls import collect as collects
from dljob.calls import dispatch as dispatches
from dljob.calls.batch import Pad
from dljob.calls.mark import DEFAULT_TIMEOUT_S, MAX_ASYNC_CALLS, MAX_THREAD_CALLS, RpcMark, change_options
from dljob.calls.resumption import RECEIVED_ARG, STATE_ARG
from dljob.errors import UsageError
from dljob.runtime.process.context import current_worker
from dljob.runtime.process.error_origin import ends_at_caller
from dljob.runtime.process.worker_context import WorkerContext
from dljob.runtime.rpc.futures import CallFuture, FutureSequence
from dljob.runtime.rpc.mapped import MappedFuture
from dljob.runtime.rpc.sending import CallTarget, begin, mapped
from dljob.runtime.rpc.streams import Stream

_MARK = "__dljob_rpc__"
_ANY = RpcMark(collect="concat")
"""A mark that accepts every value of every option: stands for a method whose mark is not known yet."""
_OPTIONS = ("timeout", "idempotent", "versions", "dispatch", "collect", "mesh", "pad")
_OF_METHODS = ("stream", "resume", "hand_over", "concurrency", "on_timeout", "any_weights")
"""Options that a method has, and no caller changes."""
_RANK_OPTIONS = _OPTIONS[:3]
"""Those that concern a call to one rank."""

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
    resume: Literal["prefix"] | None = None,
    hand_over: str = "",
    versions: Literal["any", "same"] = "any",
    concurrency: int | None = None,
    on_timeout: Literal["raise", "restart"] = "raise",
    any_weights: bool = False,
) -> Callable[[F], F]: ...
def rpc(method: Any = None, **options: Any) -> Any:
    """Let other roles call a method of a worker class.

    Args:
        method: the method, when used without parentheses.
        **options: `dispatch`: which ranks receive a call of the role, and which arguments: all, rank0, each, shard,
            round_robin, least_loaded, owner, hash:<parameter>, or a registered one.
            `collect`: how the answers become one value: list, first, concat, sum, mean, max, as_completed, none, or a
            registered one. `mesh`: the axes over which to shard, as in "dp"; one rank answers for each shard.
            `pad`: what to do with rows that do not divide evenly: uneven, auto, error.
            `timeout`: the deadline in seconds; None: no deadline.
            `idempotent`: a call that was lost with its process may run again in the next one.
            `stream`: the method is a generator whose items go to the caller as they are produced; a number: how many
            items a rank produces ahead of its caller (True: 8).
            `resume`: "prefix": a stream whose callee is lost goes on elsewhere; the method is called again, with the
            items that the caller has in its parameter `received`. None: the caller gets PeerLostError.
            `hand_over`: name of a method of the class that returns, when the rank ends by order, the stream's state for
            the next callee; it is called as the method itself, with all items so far in `received`.
            `versions`: "same": it goes on only at a callee with the version of weights and the code that it began with,
            and waits for one until its timeout; "any": at any, and `Stream.segments` tells who made what.
            `concurrency`: how many calls of the method a rank runs at once; an open stream counts as one. None: no
            limit of its own. An `async` method that is no stream runs up to 4096 calls at once. Of all other methods
            together a rank runs or queues 64 calls from its own machine, and 64 others; later ones wait for a place.
            `on_timeout`: "restart": a rank that runs a call past its `timeout` is restarted as hung. The call goes once
            more to its next process if the method is idempotent, else it raises PeerLostError. "raise": the caller
            gets CallTimeoutError, and the rank goes on.
            `any_weights`: of a role with `weights`: it runs also while the rank loads, or holds a version that is more
            than `maxLag` behind, or none; other methods wait until it does not.

    Raises:
        UsageError: an option is wrong, or the method is named as one of `RoleGroup` or `Rank`, such as stream or map.
    """
    mark = _read("@rpc", RpcMark(), options, (*_OPTIONS, *_OF_METHODS))
    if mark.on_timeout == "restart" and mark.timeout_s is None:
        raise UsageError("@rpc: on_timeout='restart' with timeout=None: no call is ever late", hint="timeout=60")

    def write(function: Any) -> Any:
        if not callable(function):
            raise UsageError(f"@rpc goes on a method, got {type(function).__name__}")
        if (name := getattr(function, "__name__", "")) in _handle_names():
            message = (
                f"@rpc on {getattr(function, '__qualname__', name)}: callers could not reach a method named {name}"
            )
            raise UsageError(message, hint=f"RoleGroup and its ranks have {name} of their own: choose another name")
        count, in_threads = mark.concurrency or 0, not (mark.stream or inspect.iscoroutinefunction(function))
        if in_threads and count > MAX_THREAD_CALLS:
            raise UsageError(
                f"@rpc(concurrency={count}) on {getattr(function, '__qualname__', name)}: a method that is not async "
                f"has a thread for each call, and a rank has {MAX_THREAD_CALLS}",
                hint=f"async def {name}, which runs up to {MAX_ASYNC_CALLS} at once; or concurrency={MAX_THREAD_CALLS}",
            )
        if mark.resume:
            _check_resumes(function, (RECEIVED_ARG, STATE_ARG) if mark.hand_over else (RECEIVED_ARG,))
        setattr(function, _MARK, mark)
        return function

    return write if method is None else write(method)


@functools.cache
def _handle_names() -> frozenset[str]:
    """Return the public names of a handle, which `RoleGroup(...).name` finds before a method of the callee."""
    names = {"role", "rank", *dir(Rank), *dir(RoleGroup)}
    return frozenset(name for name in names if not name.startswith("_"))


def _check_resumes(function: Any, parameter_names: Sequence[str]) -> None:
    """Raise UsageError for a method that cannot resume its stream."""
    name = getattr(function, "__qualname__", type(function).__name__)
    subject = f"@rpc(resume='prefix') on {name}"
    if not (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
        raise UsageError(
            f"{subject}: it is no generator", hint="it is to yield its items, from the first one that is missing"
        )
    for parameter in parameter_names:
        declared = inspect.signature(function).parameters.get(parameter)
        if declared is None or declared.kind not in (declared.POSITIONAL_OR_KEYWORD, declared.KEYWORD_ONLY):
            raise UsageError(
                f"{subject}: it has no parameter {parameter!r}",
                hint=f"as in: def {function.__name__}(self, prompt, *, {', '.join(parameter_names)})",
            )


def _read(subject: str, mark: RpcMark, options: Mapping[str, Any], known: Sequence[str]) -> RpcMark:
    """Return a mark with the user's options over it; raises UsageError for unknown ones, naming `subject`."""
    for name in options:
        if name not in known:
            raise UsageError(f"{subject}({name}=...): unknown option", hint=f"there are: {', '.join(known)}")
    try:
        return change_options(mark, options, dispatches.user_dispatches(), collects.user_collects())
    except UsageError as error:
        raise UsageError(f"{subject}: {error.message}", hint=error.hint) from None


def mark_of(cls: type, name: str) -> RpcMark | None:
    """Return a method's `@rpc` mark, also where a subclass overrides it without the decorator; None without a mark."""
    for base in cls.__mro__:
        # The class's own dict, base by base: an override without the decorator hides its parent's mark from getattr.
        mark = getattr(base.__dict__.get(name), _MARK, None)
        if mark is not None:
            return mark
    return None


def parameters_of(cls: type, name: str) -> tuple[str, ...]:
    """Return the names of a method's positional parameters, without `self`; empty where Python knows no signature."""
    try:
        parameters = inspect.signature(getattr(cls, name)).parameters.values()
    except (TypeError, ValueError):
        return ()
    # Without the first: it is `self`, as the function is read from the class.
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))[1:]


class _Handle:
    """A callee: the common part of `Rank` and `RoleGroup`."""

    def __init__(self, context: WorkerContext, role: str, rank: int | None, options: Mapping[str, Any]) -> None:
        self._context = context
        self._target = CallTarget(context, role, rank, options)
        self.role = role

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> CallFuture[Any]:
        """Call an @rpc method with its options and this handle's over them; returns the future of its value."""
        return CallFuture(begin(self._target, method, args, kwargs), f"{self._target.name}.{method}")

    def stream(self, method: str, /, *args: Any, **kwargs: Any) -> Stream:
        """Call an @rpc(stream=...) method; returns the iterator over its items."""
        return Stream(self._target, method, args, kwargs)

    if not TYPE_CHECKING:  # where `dljob.runtime.worker.typed` says which roles take any name

        def __getattr__(self, method: str) -> Method:
            # copy, pickle and inspect probe private names: these must not look like methods of the callee.
            if method.startswith("_"):
                raise AttributeError(method)
            return Method(self, method)


class Method:
    """A method of another role, called like one of this process: `RoleGroup("rollout").generate(prompts)`."""

    def __init__(self, handle: _Handle, name: str) -> None:
        self._handle = handle
        self._name = name

    @ends_at_caller
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the method and wait for its value; a stream returns its iterator at once."""
        if self._handle._target.is_stream(self._name):
            return self._handle.stream(self._name, *args, **kwargs)
        return self._handle.call(self._name, *args, **kwargs).result()

    def options(self, **changes: Any) -> Method:
        """Return the same method with other options."""
        return Method(self._handle.options(**changes), self._name)  # type: ignore[attr-defined]


class Rank(_Handle):
    """One rank of a role, as a callee."""

    def __init__(self, context: WorkerContext, role: str, rank: int, options: Mapping[str, Any]) -> None:
        super().__init__(context, role, rank, options)
        self.rank = rank

    if TYPE_CHECKING:

        def __getattr__(self, method: str) -> Method: ...

    @ends_at_caller
    def map(self, method: str, *iterables: Iterable[Any], batch_size: int = 64) -> list[MappedFuture[Any]]:
        """Call an @rpc method once for each tuple of items, many in a request; returns the futures in order.

        The calls of a request run one after another in the callee, and their answers come together. Each has an answer
        or error of its own; `timeout` counts for each request, and a request is lost as a whole.

        Args:
            method: an @rpc method that is no stream.
            *iterables: its positional arguments, as of the built-in `map`; the shortest one ends it.
            batch_size: most calls in a request, from 1.

        Raises:
            UsageError: the method is a stream, or `batch_size` is no whole number from 1.
            WireError: an argument cannot be pickled; requests before that one are sent.
        """
        if isinstance(batch_size, bool) or not hasattr(batch_size, "__index__") or batch_size < 1:
            raise UsageError(f"map({method!r}, batch_size={batch_size!r}): wanted a whole number from 1")
        return mapped(self._target, self.rank, method, zip(*iterables, strict=False), batch_size)

    def options(self, **changes: Any) -> Rank:
        """Return the same rank with other options: `timeout` in seconds (None: none), `idempotent`, `versions`."""
        return Rank(self._context, self.role, self.rank, _merge_options(self._target.options, changes, _RANK_OPTIONS))


class RoleGroup(_Handle):
    """A role as a callee: `RoleGroup("rollout").call("generate", prompts)`; `len`, index, slice and `for`: its ranks.

    It refers to ranks, not to processes: calls to a rank that restarts wait until it is back. An index counts the ranks
    that there are, in the order of their numbers, which have gaps where ranks left; `Rank.rank` is the number.
    """

    def __class_getitem__(cls, _role_class: object) -> type[RoleGroup]:
        """`RoleGroup["Rollout"]("rollout")`: the class of the role is for type checkers (`worker.typed`)."""
        return cls

    def __init__(self, role: str, *, _options: Mapping[str, Any] | None = None) -> None:
        context = current_worker()
        if role not in context.peers:
            peer_roles = ", ".join(sorted(context.peers))
            raise UsageError(f"RoleGroup({role!r}): no such role", hint=f"this job has: {peer_roles}")
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
        index = operator.index(index)  # the wire format has no NumPy integers
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.role} has ranks 0 to {len(self) - 1}, not {index}")
        # A rank takes only what concerns its call: dispatch, collect and mesh say how to treat several ranks.
        rank_options = {name: value for name, value in self._target.options.items() if name in _RANK_OPTIONS}
        present_ranks = self._target.present
        return Rank(self._context, self.role, present_ranks[index % len(present_ranks)], rank_options)

    def __iter__(self) -> Iterator[Rank]:
        return (self[i] for i in range(len(self)))

    def call_rank0(self, method: str, /, *args: Any, **kwargs: Any) -> CallFuture[Any]:
        """Call an @rpc method of rank 0."""
        return self[0].call(method, *args, **kwargs)

    def call_batch(self, method: str, size: int, /, *args: Any, **kwargs: Any) -> FutureSequence[Any]:
        """Split a batch among the ranks; each receives some of the rows and must return one item per row.

        Args:
            method: an @rpc method; its own dispatch and collect are ignored here.
            size: number of rows of the batch.
            *args: lists, arrays, tensors and dicts of them must have `size` rows, and are split. Everything else,
                strings included, goes whole to every rank; so does a list in `whole(...)`.
            **kwargs: as `args`.

        Raises:
            UsageError: `size` is no whole number from 0. The future raises it where the rows are not as many.
        """
        # True is an int in Python, and would pass for a batch of one row.
        if isinstance(size, bool) or not hasattr(size, "__index__") or size < 0:
            raise UsageError(f"call_batch({method!r}, size={size!r}): wanted a whole number from 0")
        size = operator.index(size)
        # `uneven`: a padded batch would have more answers than rows.
        target = self.options(dispatch="shard", collect="list", pad="uneven")._target
        started = begin(target, method, args, kwargs, rows=size)
        return FutureSequence(started, size, f"{self.role}.{method}")

    def options(self, **changes: Any) -> RoleGroup:
        """Return the same role with options of `@rpc` over those of its methods; timeout=None: no deadline."""
        return RoleGroup(self.role, _options=_merge_options(self._target.options, changes, _OPTIONS))


def _merge_options(options: Mapping[str, Any], changes: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """Merge options after checking each by itself; whether they fit a method is checked at its call."""
    merged = {**options, **changes}
    mark = _read("options", _ANY, merged, known)
    # As the mark has read it, so that None and every number that `timeout` accepts mean the same later.
    return {**merged, "timeout": mark.timeout_s} if "timeout" in merged else merged
