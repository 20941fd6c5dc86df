"""Large arguments of calls, kept in Ray's object store while a call that has them is under way."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import Any

from dljob.runtime.process.wire import LARGE
from dljob.runtime.process.worker_context import RankCall
from dljob.runtime.rpc import object_store

Payload = tuple[Any, ...]
"""Large arguments beside a call's message: its own, then those that several ranks share; empty where all are small."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Stored:
    """Bytes in the store, and the bytes themselves: the key is their `id`, which Python reuses once they are freed."""

    data: bytes
    ref: Any


class LargeArguments:
    """The large arguments of this process's calls, each stored once for all ranks that receive it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stored: weakref.WeakValueDictionary[int, _Stored] = weakref.WeakValueDictionary()

    def stored_for(self, call: RankCall) -> Payload:
        """Store a call's large arguments and keep them in the call; the same bytes object is stored once."""
        # The usual call: nothing is large, and all arguments travel inside of the message.
        if len(call.payload) < LARGE and not call.common:
            return ()
        return self._store_part(call, call.payload), self._store_part(call, call.common)

    def _store_part(self, call: RankCall, data: bytes) -> Any:
        if len(data) < LARGE:
            return data
        with self._lock:
            stored = self._stored.get(id(data))
        if stored is None:
            stored = _Stored(
                data, object_store.put(data, len(data), f"arguments for {call.role}/{call.rank}: ")
            )  # outside the lock: other threads would wait for the copy
            with self._lock:
                self._stored[id(data)] = stored
        # The call keeps it alive: the table is weak, so Ray frees the bytes with the last call that has them.
        call.stored.append(stored)
        return stored.ref
