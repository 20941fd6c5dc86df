"""Large arguments of calls, kept in Ray's object store while a call that has them is under way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dljob.runtime.process.wire import LARGE
from dljob.runtime.process.worker_context import RankCall
from dljob.runtime.rpc import object_store


def store(calls: Sequence[RankCall]) -> None:
    """Store the large arguments of the calls of some ranks, the same bytes object once; each call has its references.

    Raises:
        UsageError: The store has no room for one of them. The others are dropped from it again.
    """
    refs: dict[int, Any] = {}
    for call in calls:
        call.stored = _stored(call, refs, "" if len(calls) == 1 else "no rank was called: ")


def _stored(call: RankCall, refs: dict[int, Any], prefix: str) -> tuple[Any, ...]:
    # The usual call: nothing is large, and all arguments travel inside of the message.
    if len(call.payload) < LARGE and not call.common:
        return ()
    for data in (call.payload, call.common):
        if len(data) >= LARGE and id(data) not in refs:
            description = f"{prefix}arguments for {call.role}/{call.rank}: "
            refs[id(data)] = object_store.put(data, len(data), description)
    return refs.get(id(call.payload), call.payload), refs.get(id(call.common), call.common)
