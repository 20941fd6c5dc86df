"""Asynchronous calls for callers that are not: one event loop in a thread of its own, whoever calls from wherever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def wait(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns or raises; also from inside a running loop, such as a notebook's, which then stands."""
    return asyncio.run_coroutine_threadsafe(work, _running()).result()


def _running() -> asyncio.AbstractEventLoop:
    global _loop  # noqa: PLW0603 - one for the process
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="kuberay_client", daemon=True).start()
        return _loop
