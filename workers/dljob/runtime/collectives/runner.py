"""Operations of a group, each to its end: done, failed, or broken off because a member is lost."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from typing import Protocol

from dljob.errors import CollectiveAbortedError

TOLD_S = 15.0
"""After an error that a lost peer may have made, PrimeMaster has so long to say who it was."""
LOOK_S = 0.05
_BROKEN = re.compile(r"connection|peer|timed? ?out|abort|socket|store|closed|nccl|hccl", re.IGNORECASE)
_KINDS = (RuntimeError, OSError)
"""What backends raise when a connection breaks; torch's DistBackendError is a RuntimeError, a timeout an OSError."""

Op = Callable[[], None]


class MemberLives(Protocol):
    """What is known of the members' lives."""

    lost: threading.Event
    """Set when one is lost."""

    def at_work(self) -> AbstractContextManager[None]:
        """While an operation is under way."""
        ...

    def error(self, group: str, what: str, *, recreate: bool) -> CollectiveAbortedError:
        """What the caller of an operation is told then."""
        ...


class OperationRunner:
    """Runs the operations of one group.

    A backend with an `abort` method is called in the caller's thread. One without cannot be broken off: its operations
    run in a thread of their own, which stays behind in one that nobody will ever end, while its caller is told.
    """

    def __init__(self, group: str, epoch: int, watch: MemberLives, *, abortable: bool, recreate: bool) -> None:
        self._group = group
        self._epoch = epoch
        self._watch = watch
        self._recreate = recreate
        self.broken = ""
        """The error after which it cannot be used, though nobody is known to be lost."""
        self._orders: queue.SimpleQueue[tuple[Op, Future[None]]] | None = None
        if not abortable:
            self._orders = queue.SimpleQueue()
            threading.Thread(target=self._serve, args=(self._orders,), name="dljob-collective", daemon=True).start()

    def run(self, what: str, operation: Op) -> None:
        """Run one.

        Raises:
            CollectiveAbortedError: A member is lost, or the connection to one is.
        """
        self.check(what)
        with self._watch.at_work():
            self._run(what, operation)

    def _run(self, what: str, operation: Op) -> None:
        try:
            operation() if self._orders is None else self._apart(what, operation, self._orders)
        except _KINDS as error:
            if self._watch.lost.is_set():
                raise self._error(what) from error
            if not _BROKEN.search(str(error)):
                raise
            if self._watch.lost.wait(TOLD_S):
                raise self._error(what) from error
            self.broken = f"{type(error).__name__}: {error}"
            raise self._cut(what, self.broken) from error

    def check(self, what: str) -> None:
        """Raise CollectiveAbortedError where none can be run any more."""
        if self._watch.lost.is_set():
            raise self._error(what)
        if self.broken:
            raise self._cut(what, self.broken)

    def end(self) -> None:
        """No more operations."""
        if self._orders is not None:
            self._orders.put((_stop, Future()))

    def _apart(self, what: str, operation: Op, orders: queue.SimpleQueue[tuple[Op, Future[None]]]) -> None:
        future: Future[None] = Future()
        orders.put((operation, future))
        while not wait([future], LOOK_S).done:
            if self._watch.lost.is_set():
                raise self._error(what)
        future.result()

    @staticmethod
    def _serve(orders: queue.SimpleQueue[tuple[Op, Future[None]]]) -> None:
        while True:
            operation, future = orders.get()
            if operation is _stop:
                return
            try:
                operation()
            except BaseException as error:  # noqa: BLE001 - it is its caller's
                future.set_exception(error)
            else:
                future.set_result(None)

    def _error(self, what: str) -> CollectiveAbortedError:
        return self._watch.error(self._group, what, recreate=self._recreate)

    def _cut(self, what: str, why: str) -> CollectiveAbortedError:
        return CollectiveAbortedError(
            f"{what}: group {self._group} (epoch {self._epoch}) is broken, though no member is known to be lost: {why}",
            group=self._group,
            epoch=self._epoch,
            hint=f'did all members call it, and none close the group? CollectiveGroup("{self._group}") makes it anew',
        )


def _stop() -> None:
    """Ends the thread."""
