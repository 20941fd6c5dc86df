"""`DataQueue` of DLRover on dljob's queues: the owner says the size, all others wait until it has."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, Generic, TypeVar

from dljob.runtime.queues.data_queue import DataQueue as Queue

T = TypeVar("T")
SLICE_S = 0.5
"""Seconds after which `get` looks again at how many items there are."""


class DataQueue(Generic[T]):
    """A queue of the job, by name.

    Args:
        name: the queue's name.
        is_master: this worker is its owner, and says its size.
        size: most items that wait.
    """

    _writers = ThreadPoolExecutor(8, "dlrover-put")

    def __init__(self, name: str, is_master: bool = False, size: int = 1000) -> None:  # noqa: FBT001, FBT002
        self.name = name
        # Queues refuse ranks that give other bounds, and only the owner knows them here: it leaves them in another
        # queue, and each rank that takes them puts them back.
        self._bounds = Queue(f"{name}.dlrover-size")
        self._size = size if is_master else 0
        if is_master:
            self._bounds.put(size)

    @cached_property
    def _queue(self) -> Queue:
        if not self._size:
            self._size = int(self._bounds.get())
            self._bounds.put(self._size)
        return Queue(self.name, max_items=self._size)

    def qsize(self) -> int:
        """Return the number of items that wait."""
        return self._queue.qsize()

    def put(self, *obj: T) -> None:
        """Append items; waits for room."""
        for item in obj:
            self._queue.put(item)

    def put_async(self, *obj: T) -> Future[None]:
        """Append items in another thread."""
        return self._writers.submit(self.put, *obj)

    def get(self, batch_size: int = 1) -> list[T]:
        """Return the first items, at most `batch_size`; waits for one."""
        while True:
            count = max(1, min(batch_size, self.qsize()))
            try:
                return self._queue.get_batch(count, SLICE_S)
            except TimeoutError:  # others were faster
                continue

    def get_nowait(self, max_size: int = 1) -> Sequence[T]:
        """Return the first items, at most `max_size`; an empty list where there is none."""
        while count := min(max_size, self.qsize()):
            try:
                items: list[Any] = self._queue.get_batch(count, 0.0)
            except TimeoutError:  # others were faster
                continue
            return items
        return []
