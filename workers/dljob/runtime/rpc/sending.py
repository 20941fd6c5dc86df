"""One role call becomes calls of its ranks: read the role's descriptor, plan, pickle, send."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from dljob.calls import batch, collect, dispatch, rows
from dljob.calls.dispatch import CallPlan, RoleSnapshot, Send
from dljob.calls.mark import DEFAULT_TIMEOUT_S, RpcMark, ServiceDescriptor, change_options
from dljob.errors import RemoteError, UsageError
from dljob.runtime.process import arrays, wire
from dljob.runtime.process.messages import BATCH, DESCRIBE, Reply
from dljob.runtime.process.service_descriptor import DescriptorVersion
from dljob.runtime.process.worker_context import RankCall, WorkerContext
from dljob.runtime.rpc.futures import Invocation, begun, then, then_in_thread
from dljob.runtime.rpc.mapped import CallBatch, MappedFuture, packed_calls
from dljob.runtime.rpc.resuming import split_prefix, with_prefix
from dljob.telemetry.wording import counted

AHEAD = 8
"""Number of items that a rank produces ahead of a stream's caller, by default."""
arrays.register()
TAKES_TURNS = ("round_robin", "least_loaded")
"""Dispatches that count the caller's calls; `least_loaded` breaks ties by them."""


@dataclass(frozen=True, slots=True)
class CallTarget:
    """The callee of a call: a role, or one rank of it. The handle's options take precedence over the method's."""

    context: WorkerContext
    role: str
    rank: int | None
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """`rollout`, or `rollout/1`."""
        return self.role if self.rank is None else f"{self.role}/{self.rank}"

    @property
    def ranks(self) -> int:
        """Number of ranks of the role, by the newest answer that this process got."""
        return self.context.calls.sizes.get(self.role, self.context.peers[self.role])

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the role's ranks; empty where they are 0 to n-1."""
        known_numbers = self.context.calls.numbers.get(self.role, ())
        # Both are set one after the other: where they differ, the next answer tells.
        return known_numbers if len(known_numbers) == self.ranks else ()

    @property
    def present(self) -> Sequence[int]:
        """Numbers of the role's ranks."""
        return self.numbers or range(self.ranks)

    @property
    def descriptor(self) -> ServiceDescriptor | None:
        """The role's descriptor; None until the role was asked, and again after its ranks or their lives changed."""
        return self.context.descriptors.get(self.role, self.descriptor_version)

    @property
    def descriptor_version(self) -> DescriptorVersion:
        """The version of a descriptor: a new mesh comes with another number of ranks, or with a restart of rank 0."""
        return self.ranks, self.context.calls.incarnations.get(self.role, 0)

    def ask(self, method: str) -> Future[ServiceDescriptor]:
        """Ask the role for its descriptor, once it is up; `method` names the call in errors."""
        first = (self.numbers or (0,))[0]
        rank, timeout = first if self.rank is None else self.rank, self.options.get("timeout", DEFAULT_TIMEOUT_S)
        asking = RankCall(self.role, rank, DESCRIBE, b"", timeout, idempotent=True, label=method)
        # The role may restart while it answers: the descriptor belongs to the version that was asked.
        before = self.descriptor_version if self.role in self.context.calls.incarnations else None

        def read(reply: Reply) -> ServiceDescriptor:
            if reply.error_type:
                raise RemoteError(reply.message, role=self.role, rank=rank, remote_traceback=reply.traceback)
            return self.context.descriptors.learn(
                self.role, wire.load(reply.payload), before or self.descriptor_version
            )

        return then(self.context.calls.send(asking), read)

    def learn_descriptor(self, method: str) -> ServiceDescriptor:
        """Return the role's descriptor; asks the role if it is not known, which a report of this rank's waits tells."""
        return self.descriptor or begun(self.ask(method), f"{self.name}.{method}")

    def mark(self, descriptor: ServiceDescriptor, method: str, spent_s: float = 0.0) -> RpcMark:
        """Return the options of one call: the method's, then the handle's; `spent_s` is taken off an explicit timeout.

        An unknown method gets the defaults: the callee refuses the call, and names the methods that it has.
        """
        mark = descriptor.methods.get(method, RpcMark())
        if self.options:
            mark = change_options(mark, self.options, dispatch.user_dispatches(), collect.user_collects())
        # Only the caller's own timeout: that of the method counts from the descriptor on (ADR 44).
        if spent_s and "timeout" in self.options and mark.timeout_s is not None:
            return replace(mark, timeout_s=max(0.001, mark.timeout_s - spent_s))
        return mark

    def is_stream(self, method: str) -> bool:
        """Whether a method is a stream; asks the role if its descriptor is not known."""
        mark = self.learn_descriptor(method).methods.get(method)
        return mark is not None and bool(mark.stream)


def begin(
    target: CallTarget,
    method: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    rows: int | None = None,
    stream: bool = False,
    descriptor: ServiceDescriptor | None = None,
    spent_s: float = 0.0,
) -> Future[Invocation]:
    """Plan a call, pickle its arguments and send a request to each rank that it goes to.

    Args:
        target: the role or rank, with the caller's options.
        method: the callee's @rpc method.
        args: positional arguments.
        kwargs: keyword arguments.
        rows: number of rows that the arguments must have; None: not checked.
        stream: the caller wants the items of a generator.
        descriptor: the role's descriptor; None: the one that is known, or the role is asked for it first.
        spent_s: seconds of the timeout that went into asking for the descriptor.

    The future completes when all requests are sent; it raises UsageError for arguments or options that do not fit.

    Raises:
        WireError: an argument cannot be pickled.
    """
    # The plan needs the methods' options and the mesh, which only the callee knows (ADR 44).
    if (descriptor := descriptor or target.descriptor) is None:
        return _after_descriptor(target, method, args, kwargs, rows=rows, stream=stream)
    invocation_future: Future[Invocation] = Future()
    try:
        mark = target.mark(descriptor, method, spent_s)
        _check_kind(mark, method, known=method in descriptor.methods, stream=stream)
        prefix, kwargs = split_prefix(mark, kwargs)
        sent = plan(target, descriptor, mark, args, kwargs, expected=rows)
        requests = _rank_calls(target, method, mark, with_prefix(mark, sent, prefix))
        futures = tuple(target.context.calls.send_all(requests))
        released = _count(target, method, mark, futures, sent)
        note = target.context.note
        sent, resumed = replace(sent, arguments=()), tuple(requests) if mark.resume else ()
        ids = tuple(call.id for call in requests)
        invocation = Invocation(target.role, method, mark, sent, futures, released, resumed, prefix.packed, note, ids)
        invocation_future.set_result(invocation)
    # In the future, not raised: a call whose role must be asked first could not raise it here either.
    except UsageError as error:
        prefix_words = f"{target.name}.{method}: "
        # What pickling says names the call already.
        invocation_future.set_exception(
            UsageError(prefix_words + error.message.removeprefix(prefix_words), hint=error.hint)
        )
    return invocation_future


def mapped(
    target: CallTarget, rank: int, method: str, arguments: Iterable[tuple[Any, ...]], batch_size: int
) -> list[MappedFuture[Any]]:
    """Call a method of `target`, one rank, once for each tuple of arguments, `batch_size` of them in a request.

    Raises:
        UsageError: the method is a stream.
        WireError: an argument cannot be pickled.
    """
    descriptor = target.learn_descriptor(method)
    mark = target.mark(descriptor, method)
    try:
        _check_kind(mark, method, known=method in descriptor.methods, stream=False)
    except UsageError as error:
        raise UsageError(f"{target.name}.{method}: {error.message}", hint=error.hint) from None
    sent, note = CallPlan((Send(rank, 0),), (((), {}),), picks_one_rank=True), target.context.note
    full_name, remaining, mapped_futures = f"{target.name}.{method}", iter(arguments), list[MappedFuture[Any]]()
    while some := list(itertools.islice(remaining, batch_size)):
        payloads = [_pickled(full_name, args, {}) for args in some]
        packed = packed_calls(method, payloads)
        call = RankCall(target.role, rank, BATCH, packed, mark.timeout_s, mark.idempotent, label=method)
        call.restarts_callee = mark.on_timeout == "restart"
        futures = (target.context.calls.send(call),)
        started = Invocation(target.role, method, mark, sent, futures, note=note, ids=(call.id,))
        batch = CallBatch(started, len(payloads), full_name)
        mapped_futures += [MappedFuture(batch, number) for number in range(len(payloads))]
    return mapped_futures


def _after_descriptor(
    target: CallTarget, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], **how: Any
) -> Future[Invocation]:
    """Ask the role for its descriptor, then begin the call. Arguments are copied now: the caller may change them."""
    payloads = [_pickled(f"{target.name}.{method}", args, kwargs)]
    asked = time.monotonic()

    def later(descriptor: ServiceDescriptor) -> Invocation:
        # Taken out: the future of the answer may keep this function as long as the garbage collector does not run.
        args, kwargs = wire.load(payloads.pop())
        return begin(
            target, method, args, kwargs, descriptor=descriptor, spent_s=time.monotonic() - asked, **how
        ).result()

    # The thread that reads answers must not pickle and store gigabytes meanwhile. Small calls stay behind large ones.
    return then_in_thread(target.ask(method), later)


def _check_kind(mark: RpcMark, method: str, *, known: bool, stream: bool) -> None:
    if mark.stream and not stream:
        raise UsageError("it is a stream", hint=f"use .stream({method!r}, ...), or call it by its name")
    if stream and known and not mark.stream:
        raise UsageError("it is no stream", hint=f"use .call({method!r}, ...), or declare it @rpc(stream=True)")


def plan(
    target: CallTarget,
    descriptor: ServiceDescriptor,
    mark: RpcMark,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    expected: int | None = None,
) -> CallPlan:
    """Decide which ranks get which arguments; raises UsageError when the rows are not as many as `expected`."""
    # One rank: there is nothing to split, so `whole(...)` is only unwrapped.
    if target.rank is not None:
        return CallPlan((Send(target.rank, 0),), (rows.unwrap_whole(args, kwargs),), picks_one_rank=True)
    if expected is not None and (row_count := batch.count_rows(args, kwargs, mark.parameters)) != expected:
        raise UsageError(f"call_batch says size={expected}, but the arguments have {counted(row_count, 'row')}")
    context, role = target.context, target.role
    view = RoleSnapshot(
        role,
        target.ranks,
        descriptor.mesh,
        (context.rank, context.world_size),
        # Counted only for dispatches that use it: a turn that is taken must belong to a call.
        context.descriptors.in_flight(role) if mark.dispatch == "least_loaded" else {},
        context.descriptors.turn(role) if mark.dispatch in TAKES_TURNS else 0,
        target.numbers,
    )
    return dispatch.plan_call(view, mark, args, kwargs)


def _rank_calls(target: CallTarget, method: str, mark: RpcMark, sent: CallPlan) -> list[RankCall]:
    """Return the calls of a plan, one for each rank; arguments are pickled once, however many ranks receive them."""
    # Before any request goes out: an argument that cannot be pickled must not reach some of the ranks.
    common, payloads = pickled(f"{target.name}.{method}", sent.arguments)
    return [
        RankCall(
            target.role,
            send.rank,
            method,
            payloads[send.arguments_index],
            mark.timeout_s,
            mark.idempotent and not mark.resume,
            common,
            quiet=send.discards_answer or mark.collect == "none",
            window=AHEAD if mark.stream is True else int(mark.stream),
            # The callee's size must still be that of the plan; a call of a single rank does not depend on it.
            ranks=0 if target.rank is not None else target.ranks,
            once=bool(mark.resume),
            restarts_callee=mark.on_timeout == "restart",
        )
        for send in sent.sends
    ]


def _count(
    target: CallTarget, method: str, mark: RpcMark, futures: Sequence[Future[Reply]], sent: CallPlan
) -> Future[None] | None:
    """Watch the sent requests: the load that `least_loaded` compares, and errors of a call without an answer.

    Returns a future to complete when a stream ends, where its rank counts as loaded until then.
    """
    released: Future[None] | None = None
    if mark.dispatch == "least_loaded":
        rank = sent.sends[0].rank
        # A stream counts until its end, an answer until it arrives.
        if mark.stream:
            released = load(target, rank)
        else:
            target.context.descriptors.count(target.role, rank, futures[0])
    if mark.collect == "none" and not mark.stream:
        for future in futures:
            future.add_done_callback(lambda done: _forgotten(target, f"{target.name}.{method}", done))
    return released


def load(target: CallTarget, rank: int) -> Future[None]:
    """Count a stream as loading a rank until the returned future is completed."""
    released: Future[None] = Future()
    target.context.descriptors.count(target.role, rank, released)
    return released


def _forgotten(target: CallTarget, call_name: str, done: Future[Reply]) -> None:
    """Log the error of a call whose answer is discarded."""
    # Two kinds of failure: the call was lost, or the callee's method raised.
    error = done.exception()
    message = str(error) if error else done.result().message if done.result().error_type else ""
    if message:
        target.context.log.warning("%s, whose answer nobody waits for, failed: %s", call_name, message)


def pickled(call_name: str, arguments: Sequence[batch.Arguments]) -> tuple[bytes, list[bytes]]:
    """Pickle the arguments of each request; returns (large arguments that all share, payload of each request).

    Shared arguments are told by identity: comparing tensors by value would cost more than sending them twice.
    """
    if len(arguments) == 1:
        return b"", [_pickled(call_name, *arguments[0])]
    first, rest = arguments[0], arguments[1:]
    same = {n: v for n, v in enumerate(first[0]) if all(len(o[0]) > n and o[0][n] is v for o in rest)}
    named = {k: v for k, v in first[1].items() if all(k in o[1] and o[1][k] is v for o in rest)}
    if not same and not named:
        return b"", [_pickled(call_name, args, kwargs) for args, kwargs in arguments]
    common = _pickled(call_name, tuple(same.items()), named)
    # Small shared arguments stay inside of each request: an entry in the object store would cost more.
    if len(common) < wire.LARGE:
        return b"", [_pickled(call_name, args, kwargs) for args, kwargs in arguments]
    hole = wire.Apart()
    holed = [
        (
            tuple(hole if n in same else v for n, v in enumerate(args)),
            {k: hole if k in named else v for k, v in kw.items()},
        )
        for args, kw in arguments
    ]
    return common, [_pickled(call_name, args, kwargs) for args, kwargs in holed]


def _pickled(call_name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    try:
        return wire.dump((args, dict(kwargs)), call_name)
    except wire.WireError:
        # Named one by one, so that the error says which argument cannot be pickled.
        parts = itertools.chain(((f"argument {i}", a) for i, a in enumerate(args, 1)), kwargs.items())
        return wire.dump((args, dict(kwargs)), call_name, tuple(parts))
