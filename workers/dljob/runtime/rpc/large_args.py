"""Large arguments of calls: they are in the object store for as long as a call is under way that has them."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import Any

import ray

from dljob.runtime.process.wire import LARGE
from dljob.runtime.rpc.pending_call import PendingCall

Payload = tuple[Any, ...]
"""What goes beside a call: its arguments, and those that are the same for several ranks; none where they are in it."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Stored:
    """Bytes that are in the store. It has them itself, so that no others can be taken for them."""

    data: bytes
    ref: Any


class Parcels:
    """What calls that are under way have in the store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stored: weakref.WeakValueDictionary[int, _Stored] = weakref.WeakValueDictionary()

    def of(self, sending: PendingCall) -> Payload:
        """The large arguments of a call: the same bytes are put once, however many ranks they go to."""
        call = sending.call
        if len(call.payload) < LARGE and not call.common:
            return ()
        return self._part(sending, call.payload), self._part(sending, call.common)

    def _part(self, sending: PendingCall, data: bytes) -> Any:
        if len(data) < LARGE:
            return data
        with self._lock:
            stored = self._stored.get(id(data))
        if stored is None:
            stored = _Stored(data, ray.put(data))  # not under the lock: other threads would wait for the copy
            with self._lock:
                self._stored[id(data)] = stored
        sending.stored.append(stored)
        return stored.ref
