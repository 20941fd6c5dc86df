"""Pools of threads that do not hold up the end of their process.

Python joins the threads of a ThreadPoolExecutor at exit: one that waits in a call of a Ray whose GCS is gone would keep
the process for a minute, and then Ray's client ends it with its own exit code, 1.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThreads:
    """A pool of threads that end with the process, whatever runs in them."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._made = 0

    def submit(self, work: Callable[[], None]) -> None:
        """Have some work done, which must not raise, as soon as a thread is free. One thread submits.

        Raises:
            RuntimeError: No thread is there, and none can be started.
        """
        if not self._idle.acquire(blocking=False) and self._made < self._most:
            try:
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
            except RuntimeError:  # the limit of processes: the threads that are there take it in turn
                if not self._made:
                    raise
            else:
                self._made += 1
        self._work.put(work)

    def _run(self) -> None:
        while True:
            try:
                self._work.get()()
            except Exception:
                log.exception("a thread of %s goes on after an error of its work", self._name)
            self._idle.release()


class DaemonExecutor(Executor):
    """An executor of at most so many daemon threads."""

    def __init__(self, most: int, name: str) -> None:
        self._threads = DaemonThreads(most, name)
        self._submitting = threading.Lock()

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Return the future of a call that a thread makes as soon as one is free."""
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = function(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - raised where the future is awaited
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._submitting:
            self._threads.submit(call)
        return future
