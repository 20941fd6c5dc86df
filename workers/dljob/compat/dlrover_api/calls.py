"""`dlrover.python.unified.api.runtime.rpc_helper` on dljob's role calls.

Each rank offers one method, `DLRoverRank.user_rpc`, that looks into the registry of its process. What dljob promises of
calls holds: they run at most once, and wait while their callee restarts.
"""

from __future__ import annotations

import asyncio
import difflib
import inspect
import pickle
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Generic, TypeVar, cast, overload

from dljob.compat.dlrover_api.master import PrimeMasterApi
from dljob.compat.dlrover_api.models import ActorInfo
from dljob.compat.dlrover_api.payload import role_name
from dljob.compat.dlrover_api.worker import info_of
from dljob.errors import UsageError
from dljob.runtime.process.context import current_worker
from dljob.runtime.process.outcome import code_line
from dljob.runtime.rpc import rpc as calls
from dljob.runtime.rpc.futures import CallFuture
from dljob.telemetry.wording import counted

RPC_REGISTRY: dict[str, Callable[..., Any]] = {}
"""Name -> function of this process that other ranks may call."""
METHOD = "user_rpc"
_MARK = "__dljob_dlrover_rpc__"
T = TypeVar("T")


@dataclass(frozen=True)
class _ExportMark:
    name: str
    awaited: bool


def rpc(name: str | Callable[..., Any] | None = None, export: bool = False) -> Callable[[T], T]:  # noqa: FBT001, FBT002
    """Mark a function that other ranks may call, by its own name, a given one, or that of a stub.

    Args:
        name: the name, or a function with that name.
        export: register the function now; methods are registered with their object.
    """
    if name is not None and not isinstance(name, str):
        name = name.__name__

    def write(function: Any) -> Any:
        mark = _ExportMark(name or function.__name__, inspect.iscoroutinefunction(function))
        setattr(function, _MARK, mark)
        if export:
            export_rpc_method(mark.name, function)
        return function

    return write


def export_rpc_method(name: str, func: Callable[..., Any]) -> None:
    """Let other ranks call a function.

    The same function may be exported again: `@rpc(export=True)` does so in the module whose functions its rank exports.

    Raises:
        ValueError: another function has this name.
    """
    exported = RPC_REGISTRY.setdefault(name, func)
    if exported != func:
        raise ValueError(
            f"RPC method {name!r} already registered. {exported!r} ({code_line(exported, '')}) has this name; export "
            f"{func!r} ({code_line(func, '')}) under another, as @rpc('NAME') or export_rpc_instance('NAMESPACE', ...)"
        )


def export_rpc_instance(ns: str | None, instance: Any) -> None:
    """Let other ranks call the marked functions of an object or module, as `ns.name` where there is an `ns`."""
    for name in dir(instance):
        # Read from the class first: to get a property's value would run it.
        kind = cast("Any", type(instance))
        if isinstance(getattr(kind, name, None), property):
            continue
        function: Any = getattr(instance, name, None)
        if mark := _mark(function):
            export_rpc_method(f"{ns}.{mark.name}" if ns else mark.name, function)


def _mark(function: object) -> _ExportMark | None:
    mark = getattr(function, _MARK, None)
    return mark if callable(function) and isinstance(mark, _ExportMark) else None


@dataclass(frozen=True)
class RpcAnswer:
    """Answer of a call: a value, or the exception that the function raised with its traceback."""

    value: Any = None
    error: BaseException | None = None
    traceback: str = ""


def answered(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RpcAnswer:
    """Call a registered function here."""
    if name not in RPC_REGISTRY:
        near = difflib.get_close_matches(name, RPC_REGISTRY, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(RPC_REGISTRY)) or 'none'}"
        own_name = current_worker().name
        return RpcAnswer(error=ValueError(f"RPC method {name!r} is not registered in {own_name}; {hint}"))
    try:
        value: Any = RPC_REGISTRY[name](*args, **kwargs)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
    except Exception as error:  # noqa: BLE001 - it belongs to the caller
        return _raised(error)
    return RpcAnswer(value)


def _raised(error: Exception) -> RpcAnswer:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - made in this line
    except Exception:  # noqa: BLE001 - whatever pickle meets, the caller gets dljob's error with the text of this one
        raise error from None
    return RpcAnswer(error=error, traceback="".join(traceback.format_exception(error)))


def value_of(answer: RpcAnswer) -> Any:
    """Return the value of an answer, or raise its exception, with the callee's traceback as a note."""
    if answer.error is None:
        return answer.value
    if answer.traceback:
        answer.error.add_note(f"in the callee:\n{answer.traceback}")
    raise answer.error


class CallResult(Future[T]):
    """A future of the standard library over one of dljob's; a callback or `await` runs a thread that waits."""

    _threads = ThreadPoolExecutor(64, "dlrover-call")

    def __init__(self, call: CallFuture[Any], read: Callable[[Any], T]) -> None:
        super().__init__()
        self._call, self._read = call, read
        self._watched = False

    def result(self, timeout: float | None = None) -> T:
        """Return the value; raises what the function raised."""
        return self._read(self._call.result(timeout))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the function raised; None for nothing."""
        try:
            self.result(timeout)
        except TimeoutError:
            if not self._call.done():
                raise
            return None
        except Exception as error:  # noqa: BLE001 - it is what was asked for
            return error
        return None

    def done(self) -> bool:
        """Whether the answer is there."""
        return self._call.done()

    def running(self) -> bool:
        """Whether the answer is awaited."""
        return not self.done()

    def cancel(self) -> bool:
        """Return False: a call that is sent goes on."""
        return False

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call a function once the answer is there, in another thread."""
        self._threads.submit(lambda: (self._call.wait(), fn(self)))


class UserRpcProxy:
    """An object of another rank: its marked methods, called there."""

    def __init__(self, owner: str, name: str, cls: type) -> None:
        self.owner, self.name, self.cls = owner, name, cls
        target = RoleActor(info_of(owner))
        for attribute in dir(cls):
            if mark := _mark(getattr(cls, attribute, None)):
                setattr(self, attribute, partial(self._call, target, mark))

    def _call(self, target: RoleActor, mark: _ExportMark, *args: Any, **kwargs: Any) -> Any:
        future = target.call(f"{self.name}.{mark.name}", *args, **kwargs)
        return asyncio.wrap_future(future) if mark.awaited else future.result()


def create_rpc_proxy(owner: str, name: str, cls: type[T]) -> T:
    """Return the object `name` of another rank, with the methods of its class."""
    return UserRpcProxy(owner, name, cls)  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


class RoleActor:
    """One rank."""

    def __init__(self, info: ActorInfo) -> None:
        self.name, self.rank, self.info = info.name, info.rank, info

    def call(self, method: str | Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function of the rank by its name, or that of a stub."""
        target = calls.RoleGroup(role_name(self.info.role)).options(timeout=None)[self.rank]
        return CallResult(target.call(METHOD, _named(method), args, kwargs), value_of)


def _named(method: str | Callable[..., Any]) -> str:
    return method if isinstance(method, str) else method.__name__


class RoleGroup(Sequence[RoleActor]):
    """The ranks of a role."""

    def __init__(self, role: str, optional: bool = False) -> None:  # noqa: FBT001, FBT002 - DLRover's signature
        try:
            infos = PrimeMasterApi.get_workers_by_role(role)
        except ValueError:
            if not optional:
                raise
            infos = []
        if not infos and not optional:
            raise ValueError(f"No actors found for role {role!r}")
        self.actors = [RoleActor(info) for info in infos]

    @overload
    def __getitem__(self, index: int) -> RoleActor: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[RoleActor]: ...
    def __getitem__(self, index: int | slice) -> RoleActor | Sequence[RoleActor]:
        return self.actors[index]

    def __len__(self) -> int:
        return len(self.actors)

    def call(
        self, method: str | Callable[..., Any], *args: Any, _scatter: bool = False, **kwargs: Any
    ) -> Future[list[Any]]:
        """Call a function of all ranks; with `_scatter` each gets its element of each argument.

        Raises:
            ValueError: an argument to scatter is no list with an element for each rank.
        """
        if not self.actors:
            return _done([])
        if not _scatter:
            group = calls.RoleGroup(role_name(self.actors[0].info.role)).options(timeout=None)
            call = group.call(METHOD, _named(method), args, kwargs)
            return CallResult(call, lambda answers: [value_of(argument) for argument in answers])
        for argument in (*args, *kwargs.values()):
            if not isinstance(argument, list) or len(argument) != len(self.actors):  # pyright: ignore[reportUnknownArgumentType]
                raise ValueError(f"_scatter: each argument is a list of {len(self.actors)}, one for each rank")
        sent = [
            actor.call(
                method, *(argument[at] for argument in args), **{key: argument[at] for key, argument in kwargs.items()}
            )
            for at, actor in enumerate(self.actors)
        ]
        return gathered(sent)

    def call_rank0(self, method: str | Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function of rank 0.

        Raises:
            ValueError: the role has no rank.
        """
        return self._first().call(method, *args, **kwargs)

    def call_batch(self, method: str | Callable[..., Any], size: int, *args: Any, **kwargs: Any) -> FutureSequence[Any]:
        """Split the sequences among the arguments, which have `size` items each, among the ranks; text is whole.

        Raises:
            ValueError: the role has no rank, or a sequence has another length.
        """
        self._first()
        for argument in (*args, *kwargs.values()):
            if _splits(argument) and len(argument) != size:
                raise ValueError(f"call_batch of {counted(size, 'item')}: an argument has {len(argument)}")
        bounds = [0, *accumulate(size // len(self.actors) + (at < size % len(self.actors)) for at in range(len(self)))]
        futures: list[Future[Sequence[Any]]] = []
        lens: list[int] = []
        for actor, start, end in zip(self.actors, bounds, bounds[1:], strict=False):
            if start == end:
                continue
            part = slice(start, end)
            part_kwargs = {key: argument[part] if _splits(argument) else argument for key, argument in kwargs.items()}
            futures.append(
                actor.call(
                    method, *(argument[part] if _splits(argument) else argument for argument in args), **part_kwargs
                )
            )
            lens.append(end - start)
        return FutureSequence(futures, lens)

    def _first(self) -> RoleActor:
        if not self.actors:
            raise ValueError("No actors in the role group.")
        return self.actors[0]


def _splits(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _done(value: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(value)
    return future


class _Gathered(Future[list[T]]):
    """All of some futures."""

    def __init__(self, parts: Sequence[Future[T]]) -> None:
        super().__init__()
        self._parts = parts

    def result(self, timeout: float | None = None) -> list[T]:
        return [part.result(timeout) for part in self._parts]

    def done(self) -> bool:
        return all(part.done() for part in self._parts)


def gathered(parts: Sequence[Future[T]]) -> Future[list[T]]:
    """Return the future of all values."""
    return _Gathered(parts)


class FutureSequence(Sequence[T], Generic[T]):
    """The items of a batch; each is waited for when it is read."""

    def __init__(self, futures: Sequence[Future[Sequence[T]]], lens: Sequence[int]) -> None:
        self._futures, self._lens = futures, lens

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"the batch has {counted(len(self), 'item')}, not {index}")
        at = index % len(self)
        for future, length in zip(self._futures, self._lens, strict=True):
            if at < length:
                return future.result()[at]
            at -= length
        raise UsageError("the lengths of the parts do not add up")  # pragma: no cover - their sum is the length

    def __len__(self) -> int:
        return sum(self._lens)

    def __iter__(self) -> Iterator[T]:
        for future in self._futures:
            yield from future.result()

    def __repr__(self) -> str:
        return f"FutureSequence(lens={list(self._lens)})"

    def wait(self) -> list[T]:
        """Wait for all items."""
        return list(self)
