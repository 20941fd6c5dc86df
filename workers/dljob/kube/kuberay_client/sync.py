"""Bridge for synchronous callers: one event loop in a thread of its own, for all calling threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def wait(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine and return its result; also within a running loop, such as a notebook's, which it blocks."""
    # Not `asyncio.run`, which refuses to start in a thread whose loop runs already.
    return asyncio.run_coroutine_threadsafe(work, _running()).result()


def _running() -> asyncio.AbstractEventLoop:
    global _loop  # noqa: PLW0603 - one for the process
    # Two threads may make their first call at once; two loops would each hold a part of the connections.
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            # A daemon: the loop never ends by itself, and must not keep the interpreter alive.
            threading.Thread(target=_loop.run_forever, name="kuberay_client", daemon=True).start()
        return _loop
