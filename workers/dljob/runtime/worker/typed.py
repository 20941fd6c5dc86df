"""`dljob.RoleGroup`, `dljob.rpc` and `dljob.Worker` as type checkers see them; never imported at run time.

`RoleGroup["Rollout"]("rollout")` has the type `type[Rollout]`. On the class, an @rpc method is a descriptor that takes
the method's arguments and returns `Any`, because the return type depends on how `@rpc` collects the ranks' answers. An
unknown method or argument is a type error. The methods of every role (`call`, `options`, `len`, an index) come from a
metaclass that `Worker` has only here. On an instance, `self.generate(...)` has the type that was written.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, Self, overload

from typing_extensions import TypeVar

from dljob.calls.batch import Pad
from dljob.calls.mark import DEFAULT_TIMEOUT_S
from dljob.runtime.rpc import rpc as made
from dljob.runtime.rpc.futures import CallFuture, FutureSequence
from dljob.runtime.rpc.streams import Stream
from dljob.runtime.worker import worker

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
C = TypeVar("C")


class Untyped:
    """The class of a role in `RoleGroup("name")`, where no class is named: nothing is checked."""


T = TypeVar("T", default=Untyped)


class RemoteMethod(Protocol[P]):
    """An @rpc method of another role: takes the method's arguments, returns the collected answers."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the method and wait for its answer; for a stream, its items."""
        ...

    def options(self, **changes: Any) -> RemoteMethod[P]:
        """Return the same method with other options."""
        ...


class RpcMethod(Protocol[P, R_co]):
    """The descriptor that `@rpc` makes of a method."""

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> RemoteMethod[P]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any]) -> Callable[P, R_co]: ...


@overload
def rpc(method: Callable[Concatenate[Any, P], R_co]) -> RpcMethod[P, R_co]: ...
@overload
def rpc(
    *,
    dispatch: Literal["each"],
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
) -> Callable[[Callable[Concatenate[Any, P], R_co]], RpcMethod[..., R_co]]: ...
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
) -> Callable[[Callable[Concatenate[Any, P], R_co]], RpcMethod[P, R_co]]: ...
def rpc(method: Any = None, **options: Any) -> Any:
    """Mark a method as `dljob.runtime.rpc.rpc.rpc` does. With dispatch="each" the lists of arguments are unchecked."""
    return made.rpc(method, **options)


class Callee(ABCMeta):
    """The members of `RoleGroup["Rollout"]("rollout")` beside the @rpc methods of `Rollout`."""

    role: str

    def call(cls, method: str, /, *args: Any, **kwargs: Any) -> CallFuture[Any]:
        """Call an @rpc method by its name; return a future of its answer."""
        raise NotImplementedError

    def call_rank0(cls, method: str, /, *args: Any, **kwargs: Any) -> CallFuture[Any]:
        """Call an @rpc method of rank 0."""
        raise NotImplementedError

    def call_batch(cls, method: str, size: int, /, *args: Any, **kwargs: Any) -> FutureSequence[Any]:
        """Split a batch of `size` items among the ranks."""
        raise NotImplementedError

    def stream(cls, method: str, /, *args: Any, **kwargs: Any) -> Stream:
        """Return the items of an @rpc(stream=...) method, as they are produced."""
        raise NotImplementedError

    def options(cls: type[C], **changes: Any) -> type[C]:
        """Return the same role or rank with other options."""
        raise NotImplementedError

    def __len__(cls) -> int:
        raise NotImplementedError

    @overload
    def __getitem__(cls: type[C], index: int) -> type[C]: ...
    @overload
    def __getitem__(cls: type[C], index: slice) -> Sequence[type[C]]: ...
    def __getitem__(cls, index: Any) -> Any:
        raise NotImplementedError

    def __iter__(cls: type[C]) -> Iterator[type[C]]:
        raise NotImplementedError


class TypedWorker(worker.Worker, metaclass=Callee):
    """As `dljob.runtime.worker.worker.Worker`."""


class TypedRoleGroup(made.RoleGroup, Generic[T]):
    """As `dljob.runtime.rpc.rpc.RoleGroup`: checked with the class of the role in brackets, untyped without."""

    @overload
    def __new__(cls: type[TypedRoleGroup[Untyped]], role: str) -> TypedRoleGroup[Untyped]: ...
    @overload
    def __new__(cls, role: str) -> type[T]: ...
    def __new__(cls, role: str) -> Any:
        """Return the role as a callee."""
        raise NotImplementedError

    def __init__(self, role: str) -> None:
        super().__init__(role)

    def options(self, **changes: Any) -> Self:
        """Return the same role with other options."""
        raise NotImplementedError

    def __getattr__(self: TypedRoleGroup[Untyped], method: str) -> made.Method:
        raise NotImplementedError
