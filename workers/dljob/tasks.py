"""Owners of asyncio tasks: they log an exception that ends a task and pass it on, so that none is swallowed.

asyncio itself reports such an exception only when the task object is garbage-collected, so never for a referenced task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from dljob.errors import DLJobError

log = logging.getLogger(__package__)

T = TypeVar("T")
Failed = Callable[[Exception], None]

FIRST_S, MOST_S = 0.25, 10.0
"""Backoff of a repeated task: the first pause, and the longest. A run that took longer counts as a success."""
TRIES = 8
"""Failures in a row (over half a minute) after which a repeated task gives up and its owner receives the exception."""


class TaskOwner:
    """Starts tasks and is notified when each of them ends.

    `failed` receives the exception of a task that is not repeated and has no handler of its own. Exceptions of the
    `expected` types end a task like a cancellation.
    """

    def __init__(self, failed: Failed, *, expected: tuple[type[Exception], ...] = ()) -> None:
        self._failed = failed
        self._expected = expected
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def tasks(self) -> tuple[asyncio.Task[Any], ...]:
        """The tasks that have not ended; each is named by its kind."""
        return tuple(self._tasks)

    def start(self, kind: str, work: Coroutine[Any, Any, T], failed: Failed | None = None) -> asyncio.Task[T]:
        """Run a coroutine once; `failed` takes its exception in place of the owner's."""
        task = asyncio.create_task(work, name=kind)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, failed or self._failed))
        return task

    def repeat(
        self,
        kind: str,
        work: Callable[[], Coroutine[Any, Any, None]],
        failed: Failed | None = None,
        *,
        tries: float = TRIES,
    ) -> asyncio.Task[None]:
        """Run coroutines of `work` until one returns; after an exception a new one starts, at most `tries` in a row."""
        return self.start(kind, self._repeated(kind, work, tries), failed)

    def close(self) -> None:
        """Cancel all tasks."""
        for task in self.tasks:
            task.cancel()

    def _ended(self, task: asyncio.Task[Any], failed: Failed) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if not isinstance(error, Exception) or isinstance(error, self._expected):
            return  # asyncio itself raises SystemExit and KeyboardInterrupt out of the loop
        log.error("%s ended by an exception", task.get_name(), exc_info=error)
        failed(error)

    async def _repeated(self, kind: str, work: Callable[[], Coroutine[Any, Any, None]], tries: float) -> None:
        loop, failures = asyncio.get_running_loop(), 0
        while True:
            began = loop.time()
            try:
                await work()
            except self._expected:
                return
            except Exception:
                # A run that outlasted the longest pause worked for a while: its failure starts a new series.
                failures = 1 if loop.time() - began > MOST_S else failures + 1
                if failures >= tries:
                    raise
                pause = min(FIRST_S * 2 ** min(failures - 1, 10), MOST_S)
                log.exception("%s ended by an exception; it is started again in %g s", kind, pause)
            else:
                return
            await asyncio.sleep(pause)


def nobody_waits(_: Exception) -> None:
    """Ignore the exception: a `failed` for tasks whose result no code waits for. The owner has logged the exception."""


class ErrorLog:
    """Logs the errors of retried work, each once until the work succeeds or another error comes.

    `log` is the logger of the caller's room. Errors that dljob raises on purpose are logged without a traceback, which
    would add nothing to their message.
    """

    def __init__(self, subject: str, log: logging.Logger) -> None:
        self._what = subject
        self._log = log
        self._last = ""

    def failed(self, error: Exception) -> None:
        """Log an error of the work, unless it repeats the last one."""
        message = f"{type(error).__name__}: {error}"
        if message != self._last:
            trace = None if isinstance(error, DLJobError) else error
            self._log.warning("%s failed and is tried again: %s", self._what, message, exc_info=trace)
        self._last = message

    def worked(self) -> None:
        """Record a success, so that the next error is logged even if it repeats the last one."""
        self._last = ""
