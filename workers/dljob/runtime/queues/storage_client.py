"""The client of a storage actor, shared by `DataQueue` and `WeightChannel`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from dljob.calls.backlog import QueueCaller
from dljob.calls.mark import parse_timeout
from dljob.errors import CallError, RemoteError, UsageError
from dljob.runtime.process import wire
from dljob.runtime.process.context import current_worker
from dljob.runtime.process.messages import KEEPER, Reply
from dljob.runtime.process.wait_clocks import standing_still
from dljob.runtime.process.worker_context import RankCall, WorkerContext

SLICE_S = 20.0
"""Seconds that one request may wait in the actor for its answer; then the client repeats it."""
SLACK_S = 1.0
"""Seconds beyond its deadline that a request may take."""
LOOK_S = 0.5
"""Longest time, in seconds, between two bytecodes of a waiting thread: only there can it be interrupted."""


class Deadline:
    """The deadline of a user's call with a timeout in seconds; None: without limit."""

    def __init__(self, timeout: float | None) -> None:
        seconds = parse_timeout(timeout)
        self._end = None if seconds is None else time.monotonic() + seconds

    @property
    def seconds_left(self) -> float | None:
        """Seconds that are left, at least 0; None: without limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    @property
    def slice_s(self) -> float:
        """Seconds that the next request may wait for its answer."""
        return SLICE_S if self.seconds_left is None else min(SLICE_S, self.seconds_left)


class StorageClient:
    """This rank's client of one storage actor."""

    def __init__(self, kind: str, name: str, class_name: str) -> None:
        if not 1 <= len(name) <= 200 or not name.isprintable():
            raise UsageError(f"{class_name}({name!r}): a name is printable text of 1 to 200 characters")
        self.address = f"{KEEPER}{kind}:{name}"
        self.name = f"{class_name}({name!r})"

    @property
    def caller(self) -> QueueCaller:
        """This rank, in its present incarnation."""
        me = current_worker()
        return QueueCaller(me.name, me.incarnation, "")

    def ask(
        self,
        method: str,
        *args: Any,
        timeout_s: float | None,
        unless: Callable[[], bool] = lambda: False,
        more: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the actor's answer; while there is no actor it waits for the next one. None once `unless` is True.

        Raises:
            CallTimeoutError: There was no answer within `timeout_s` seconds.
            UsageError, CallError: The actor refused the request.
        """
        me, label = current_worker(), f"{self.name}.{method}"
        payload = wire.dump((args, dict(more or {})), label)
        # Idempotent: the actor recognises a repeated request by its numbers.
        call = RankCall(self.address, 0, method, payload, timeout_s, idempotent=True, label=label)
        reply = _waited(me, call, unless)
        if reply is None:
            return None
        if not reply.error_type:
            return wire.load(reply.payload)
        if reply.error_type == UsageError.__name__:
            raise UsageError(f"{label}: {reply.message}")
        if reply.error_type == CallError.__name__:
            raise CallError(f"{label}: {reply.message}", role=me.role, rank=me.rank)
        raise RemoteError(
            f"{label}: {reply.error_type}: {reply.message}", role=me.role, rank=me.rank, remote_traceback=""
        )


def _waited(me: WorkerContext, call: RankCall, unless: Callable[[], bool]) -> Reply | None:
    """Wait for the reply, so that this thread can be interrupted; None once `unless` returns True."""
    future = me.calls.send(call)
    with standing_still(call.role, me.note):
        while not unless():
            try:
                return future.result(LOOK_S)
            except TimeoutError:
                if future.done():
                    return future.result()
    return None
