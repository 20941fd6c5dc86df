"""From a call of a role to the calls of its ranks: the card, the plan, the pickling, the way out."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from dljob.calls import batch, collect, dispatch, rows
from dljob.calls.dispatch import Dispatched, RoleSnapshot, Send
from dljob.calls.mark import DEFAULT_TIMEOUT_S, RpcMark, ServiceDescriptor, changed
from dljob.errors import RemoteError, UsageError
from dljob.runtime.process import arrays, wire
from dljob.runtime.process.messages import CARD, Reply
from dljob.runtime.process.service_descriptor import Heard
from dljob.runtime.process.worker_context import Outgoing, WorkerContext
from dljob.runtime.rpc.futures import then
from dljob.runtime.rpc.invocation import Invocation

AHEAD = 8
"""How many items a stream's rank makes ahead of its caller, where the method does not say."""
arrays.register()
TAKES_TURNS = ("round_robin", "least_loaded")


@dataclass(frozen=True, slots=True)
class CallTarget:
    """Whom a call is for: a role, or one rank of it; with the options of the handle laid over those of the method."""

    context: WorkerContext
    role: str
    rank: int | None
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """As in `rollout` or `rollout/1`."""
        return self.role if self.rank is None else f"{self.role}/{self.rank}"

    @property
    def ranks(self) -> int:
        """How many ranks the role has, as far as this process has heard."""
        return self.context.calls.sizes.get(self.role, self.context.peers[self.role])

    @property
    def card(self) -> ServiceDescriptor | None:
        """What the role says of itself; None while it has not been asked, as it is now."""
        return self.context.cards.known(self.role, self.heard)

    @property
    def heard(self) -> Heard:
        """What tells a role from what it was: another mesh comes with other ranks, or a restart of them all."""
        return self.ranks, self.context.calls.lives.get(self.role, 0)

    def ask(self, method: str) -> Future[ServiceDescriptor]:
        """Ask the role, which may have to come up first; `method` is what it is asked for."""
        rank, timeout = self.rank or 0, self.options.get("timeout", DEFAULT_TIMEOUT_S)
        asking = Outgoing(self.role, rank, CARD, b"", timeout, idempotent=True, label=method)
        before = self.heard if self.role in self.context.calls.lives else None  # it may be another while it answers

        def read(reply: Reply) -> ServiceDescriptor:
            if reply.error_type:
                raise RemoteError(reply.message, role=self.role, rank=rank, remote_traceback=reply.traceback)
            return self.context.cards.learn(self.role, wire.load(reply.payload), before or self.heard)

        return then(self.context.calls.send(asking), read)

    def mark(self, card: ServiceDescriptor, method: str) -> RpcMark:
        """What counts for a call of a method. One that the role has not is called as it comes: it refuses it."""
        said = card.methods.get(method, RpcMark())
        return changed(said, self.options, dispatch.registered(), collect.registered()) if self.options else said

    def is_stream(self, method: str) -> bool:
        """Whether a method is a stream; asks the role when it was not asked yet."""
        mark = (self.card or self.ask(method).result()).methods.get(method)
        return mark is not None and bool(mark.stream)


@dataclass(frozen=True, slots=True)
class Request:
    """What a caller wants: a method, its arguments, and in what form."""

    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    rows: int | None = None
    """How many rows the arguments must have."""
    stream: bool = False
    """The items of a generator are wanted."""


def begin(target: CallTarget, request: Request) -> Future[Invocation]:
    """Send a call to the ranks that it is for; the future is done once it is on its way.

    Raises:
        WireError: an argument cannot be pickled.
    """
    card = target.card
    if card is not None:
        return _now(target, card, request)
    # The first call of a role asks for its card, and keeps the arguments as they are now.
    kept = _pickled(f"{target.name}.{request.method}", request.args, request.kwargs)
    begun = time.monotonic()

    def later(card: ServiceDescriptor) -> Invocation:
        args, kwargs = wire.load(kept)
        return _now(target, card, replace(request, args=args, kwargs=kwargs), time.monotonic() - begun).result()

    return then(target.ask(request.method), later)


def _now(target: CallTarget, card: ServiceDescriptor, request: Request, spent_s: float = 0.0) -> Future[Invocation]:
    made: Future[Invocation] = Future()
    method = request.method
    try:
        mark = target.mark(card, method)
        if "timeout" in target.options and mark.timeout_s is not None and spent_s:
            mark = replace(mark, timeout_s=max(0.001, mark.timeout_s - spent_s))
        _check_kind(mark, method, known=method in card.methods, stream=request.stream)
        made.set_result(send(target, method, mark, plan(target, card, mark, request)))
    except UsageError as error:
        made.set_exception(UsageError(f"{target.name}.{method}: {error.message}", hint=error.hint))
    return made


def _check_kind(mark: RpcMark, method: str, *, known: bool, stream: bool) -> None:
    if mark.stream and not stream:
        raise UsageError("it is a stream", hint=f"use .stream({method!r}, ...), or call it by its name")
    if stream and known and not mark.stream:
        raise UsageError("it is no stream", hint=f"use .call({method!r}, ...), or declare it @rpc(stream=True)")


def plan(target: CallTarget, card: ServiceDescriptor, mark: RpcMark, request: Request) -> Dispatched:
    """Who gets what."""
    args, kwargs = request.args, request.kwargs
    if target.rank is not None:
        return Dispatched((Send(target.rank, 0),), (rows.bare(args, kwargs),), single=True)
    if request.rows is not None and (found := batch.count_rows(args, kwargs, mark.parameters)) != request.rows:
        raise UsageError(f"call_batch says size={request.rows}, but the arguments have {found} rows")
    context, role = target.context, target.role
    view = RoleSnapshot(
        role,
        target.ranks,
        card.mesh,
        (context.rank, context.world_size),
        context.cards.in_flight(role) if mark.dispatch == "least_loaded" else {},
        context.cards.turn(role) if mark.dispatch in TAKES_TURNS else 0,
    )
    return dispatch.plan_call(view, mark, args, kwargs)


def send(target: CallTarget, method: str, mark: RpcMark, sent: Dispatched) -> Invocation:
    """Send what was planned. Arguments are pickled once, however many ranks they go to."""
    role, calls = target.role, target.context.calls
    what = f"{target.name}.{method}"
    common, payloads = pickled(what, sent.arguments)
    window = AHEAD if mark.stream is True else int(mark.stream)
    futures = tuple(
        calls.send(
            Outgoing(
                role,
                one.rank,
                method,
                payloads[one.arguments],
                mark.timeout_s,
                mark.idempotent,
                common,
                quiet=one.quiet,
                window=window,
                ranks=0 if target.rank is not None else target.ranks,
            )
        )
        for one in sent.sends
    )
    left: Future[None] | None = None
    if mark.dispatch == "least_loaded":
        left = Future() if mark.stream else None
        target.context.cards.count(role, sent.sends[0].rank, left or futures[0])
    if mark.collect == "none" and not mark.stream:
        for future in futures:
            future.add_done_callback(lambda done: _forgotten(target, what, done))
    return Invocation(role, method, mark, sent, futures, left)


def _forgotten(target: CallTarget, what: str, done: Future[Reply]) -> None:
    """Nobody waits for the answer: an error goes to the log."""
    error = done.exception()
    said = str(error) if error else done.result().message if done.result().error_type else ""
    if said:
        target.context.log.warning("%s, whose answer nobody waits for, failed: %s", what, said)


def pickled(what: str, arguments: Sequence[batch.Arguments]) -> tuple[bytes, list[bytes]]:
    """The arguments of each call, and what is large in all of them, which goes apart: it is stored once."""
    if len(arguments) == 1:
        return b"", [_pickled(what, *arguments[0])]
    first, rest = arguments[0], arguments[1:]
    same = {n: v for n, v in enumerate(first[0]) if all(len(o[0]) > n and o[0][n] is v for o in rest)}
    named = {k: v for k, v in first[1].items() if all(k in o[1] and o[1][k] is v for o in rest)}
    if not same and not named:
        return b"", [_pickled(what, args, kwargs) for args, kwargs in arguments]
    common = _pickled(what, tuple(same.items()), named)
    if len(common) < wire.LARGE:
        return b"", [_pickled(what, args, kwargs) for args, kwargs in arguments]
    hole = wire.Apart()
    holed = [
        (
            tuple(hole if n in same else v for n, v in enumerate(args)),
            {k: hole if k in named else v for k, v in kw.items()},
        )
        for args, kw in arguments
    ]
    return common, [_pickled(what, args, kwargs) for args, kwargs in holed]


def _pickled(what: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    parts = itertools.chain(((f"argument {i}", a) for i, a in enumerate(args, 1)), kwargs.items())
    return wire.dump((args, dict(kwargs)), what, tuple(parts))
