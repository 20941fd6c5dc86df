"""`current_worker()` is the rank that this process is, and `progress(step, ...)` says how far it is.

Light on purpose: scripts import it in processes that have neither ray nor torch.
"""

from __future__ import annotations

import os
import threading

from dljob.errors import UsageError
from dljob.runtime.process.worker_context import WorkerContext

SOCKET_ENV = "DLJOB_HOST_SOCKET"
"""Where the ranks of a fork host find it; set in their environment only."""

_current: WorkerContext | None = None
_connect_lock = threading.Lock()


def install(context: WorkerContext | None) -> None:
    """Make this the process's worker (None: it is no worker any more)."""
    global _current  # noqa: PLW0603 - one rank per process: that is what a rank is
    _current = context


def current_worker() -> WorkerContext:
    """The rank that this process is. Raises UsageError in a process that is none."""
    if _current is not None:
        return _current
    path = os.environ.get(SOCKET_ENV)
    if not path:
        raise UsageError(
            "current_worker() was called in a process that is no rank of a DLJob",
            hint="start this code with `dljob run FILE`, or pass what you need as an argument",
        )
    with _connect_lock:
        if _current is None:
            from dljob.runtime.process.rank_link import connect

            install(connect(path))
            os.register_at_fork(after_in_child=lambda: install(None))  # a child of this rank needs a line of its own
    return _current or current_worker()


def progress(step: int, **metrics: float) -> None:
    """Say that this rank has finished `step`, with metrics of it; cheap, only the last one is sent (every 0.2 s).

    Raises:
        TypeError: when the step is no integer, or a metric no number; it says which.
    """
    if isinstance(step, bool) or not hasattr(step, "__index__"):
        raise TypeError(f"progress(step): the step must be an integer, got {type(step).__name__}")
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"progress({name}=...): a metric must be a number, got {type(value).__name__}") from None
    current_worker().report(step.__index__(), numbers)
