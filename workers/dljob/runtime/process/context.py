"""`current_worker()` returns this process's rank, and `progress(step, ...)` records how far it is.

Scripts import this module in processes without ray and torch, so it imports neither.
"""

from __future__ import annotations

import itertools
import os
import threading

from dljob.errors import UsageError
from dljob.runtime.process import activities
from dljob.runtime.process.worker_context import COUNTED, WorkerContext, renew

SOCKET_ENV = "DLJOB_HOST_SOCKET"
"""The address of the fork host's socket, set only in the environment of its ranks."""

_current: WorkerContext | None = None
_inherited: WorkerContext | None = None
"""In a forked child of a script: the context that its parent had, until the child connects."""
_first_pid = 0
"""The process that was a worker first, of this one and those that it was forked from; 0: none was."""
_connect_lock = threading.Lock()


def install(context: WorkerContext | None) -> None:
    """Set this process's worker; None: it is no worker any more."""
    global _current, _first_pid  # noqa: PLW0603 - one rank per process: that is what a rank is
    _current = context
    _first_pid = 0 if context is None else _first_pid or os.getpid()


def is_forked_child() -> bool:
    """Whether this process is a fork of the one that is the rank, such as a worker of a DataLoader."""
    return _first_pid not in (0, os.getpid())


def current_worker() -> WorkerContext:
    """Return the rank that this process is.

    Raises:
        UsageError: This process is no rank of a job.
    """
    if _current is not None:
        return _current
    path = os.environ.get(SOCKET_ENV)
    if not path:
        raise UsageError(
            "current_worker() was called in a process that is no rank of a DLJob",
            hint="start this code with `dljob run FILE`, or pass what you need as an argument",
        )
    with _connect_lock:
        # Another thread may have connected while this one waited for the lock.
        if _current is None:
            from dljob.runtime.process.rank_link import connect

            install(_made_own(connect(path, current_worker)))
            os.register_at_fork(after_in_child=_reset_after_fork)
    return _current or current_worker()


def _made_own(context: WorkerContext) -> WorkerContext:
    """Return the context of this process: the one that a forked child inherited, which its objects hold, updated."""
    if _inherited is None:
        return context
    renew(_inherited, context)
    return _inherited


def _reset_after_fork() -> None:
    """Have a forked child connect by itself at its next use."""
    global _connect_lock, _current, _inherited  # noqa: PLW0603 - as above
    _current, _inherited = None, _current or _inherited
    # Another thread of the parent may have held it.
    _connect_lock = threading.Lock()


_work_numbers = (0, itertools.count(1))
"""(incarnation, numbers of what it finished without a step)."""


def progress(step: int | None = None, **metrics: float) -> None:
    """Record that this rank has finished `step`, with metrics of that step.

    Without a step it has finished one more piece of work, such as an episode: for ranks that keep no state, which
    repeat nothing after a restart. PrimeMaster counts on from what the rank's earlier processes did.

    Cheap: it writes to shared memory. Only the last step is sent on, every 0.2 s.

    Raises:
        TypeError: The step is no integer, or a metric no number; the message says which.
    """
    global _work_numbers  # noqa: PLW0603 - of the process
    me = current_worker()
    if step is None:
        if _work_numbers[0] != me.incarnation:
            _work_numbers = me.incarnation, itertools.count(1)
        step = next(_work_numbers[1])
        if step == 1:
            me.note(COUNTED, 1)
    # True is an int in Python, and no step.
    if isinstance(step, bool) or not hasattr(step, "__index__"):
        raise TypeError(f"progress(step): the step must be an integer, got {type(step).__name__}")
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"progress({name}=...): a metric must be a number, got {type(value).__name__}") from None
    me.report(step.__index__(), numbers)
    activities.progressed()
