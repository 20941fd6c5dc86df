"""The operations of a collective group. Each ends: done, failed, or broken off because a member is lost."""

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
"""Seconds for PrimeMaster to name the lost member, after an error that a lost peer may have caused."""
LOOK_S = 0.05
"""Seconds between checks for a lost member, by the caller of an operation in another thread."""
# A lost peer shows in an error's text alone, and with gloo first at its neighbours; these words may mean one.
_BROKEN = re.compile(r"connection|peer|timed? ?out|abort|socket|store|closed|nccl|hccl", re.IGNORECASE)
_KINDS = (RuntimeError, OSError)
"""The types that backends raise when a connection breaks; torch's DistBackendError is a RuntimeError, a timeout an
OSError."""

Op = Callable[[], None]


class MemberLives(Protocol):
    """The runner's view of the members' lives."""

    lost: threading.Event
    """Set once a member is lost."""

    def at_work(self) -> AbstractContextManager[None]:
        """Mark an operation as in progress."""
        ...

    def error(self, group: str, operation: str, *, recreate: bool) -> CollectiveAbortedError:
        """Return the error for an operation's caller once a member is lost."""
        ...


class OperationRunner:
    """Runs the operations of one group.

    A backend with an `abort` method is called in the caller's thread. One without cannot be broken off, so its
    operations run in a thread of their own: its caller gets the error, and the thread stays behind, in an operation
    that nothing will ever end.
    """

    def __init__(self, group: str, epoch: int, watch: MemberLives, *, abortable: bool, recreate: bool) -> None:
        self._group = group
        self._epoch = epoch
        self._watch = watch
        self._recreate = recreate
        self.broken = ""
        """The error after which the group is unusable, although no member is known to be lost."""
        self._orders: queue.SimpleQueue[tuple[Op, Future[None]]] | None = None
        if not abortable:
            self._orders = queue.SimpleQueue()
            threading.Thread(target=self._serve, args=(self._orders,), name="dljob-collective", daemon=True).start()

    def run(self, operation_name: str, operation: Op) -> None:
        """Run an operation.

        Raises:
            CollectiveAbortedError: A member is lost, or the connection to one is.
        """
        # Before the operation: in a group that has lost a member it would wait for its timeout.
        self.check(operation_name)
        with self._watch.at_work():
            self._run(operation_name, operation)

    def _run(self, operation_name: str, operation: Op) -> None:
        try:
            operation() if self._orders is None else self._apart(operation_name, operation, self._orders)
        except _KINDS as error:
            # The loss explains the error, whatever its words are.
            if self._watch.lost.is_set():
                raise self._error(operation_name) from error
            # Anything else (a wrong shape, a wrong type) is the caller's own error, and the group is as good as before.
            if not _BROKEN.search(str(error)):
                raise
            # All members shall raise the same error with the same names, and only PrimeMaster knows who is lost.
            if self._watch.lost.wait(TOLD_S):
                raise self._error(operation_name) from error
            self.broken = f"{type(error).__name__}: {error}"
            raise self._cut(operation_name, self.broken) from error

    def check(self, operation_name: str) -> None:
        """Raise CollectiveAbortedError if the group cannot run operations any more."""
        if self._watch.lost.is_set():
            raise self._error(operation_name)
        if self.broken:
            raise self._cut(operation_name, self.broken)

    def end(self) -> None:
        """End the thread of operations."""
        if self._orders is not None:
            self._orders.put((_stop, Future()))

    def _apart(self, operation_name: str, operation: Op, orders: queue.SimpleQueue[tuple[Op, Future[None]]]) -> None:
        future: Future[None] = Future()
        orders.put((operation, future))
        # A lost member ends the wait of the caller; the operation itself cannot be ended.
        while not wait([future], LOOK_S).done:
            if self._watch.lost.is_set():
                raise self._error(operation_name)
        # The operation's own error is raised here, in its caller's thread.
        future.result()

    @staticmethod
    def _serve(orders: queue.SimpleQueue[tuple[Op, Future[None]]]) -> None:
        while True:
            operation, future = orders.get()
            if operation is _stop:
                return
            try:
                operation()
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                future.set_exception(error)
            else:
                future.set_result(None)

    def _error(self, operation_name: str) -> CollectiveAbortedError:
        return self._watch.error(self._group, operation_name, recreate=self._recreate)

    def _cut(self, operation_name: str, reason: str) -> CollectiveAbortedError:
        return CollectiveAbortedError(
            f"{operation_name}: group {self._group} (epoch {self._epoch}) is broken,"
            f" though no member is known to be lost: {reason}",
            group=self._group,
            epoch=self._epoch,
            hint=f'did all members call it, and none close the group? CollectiveGroup("{self._group}") makes it anew',
        )


def _stop() -> None:
    """Order that ends the thread of operations."""
