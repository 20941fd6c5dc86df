"""`DataQueue(name)`: any rank puts, any rank gets. No rank's process holds the items, so its death loses none."""

from __future__ import annotations

import operator
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dljob.calls.backlog import PutRefusal, QueueCaller
from dljob.errors import CallError, CallTimeoutError, QueueClosedError, UsageError
from dljob.runtime.process import activities, wire
from dljob.runtime.process.activities import Waiting
from dljob.runtime.process.context import current_worker
from dljob.runtime.process.handover import Handover, in_thread
from dljob.runtime.queues import session
from dljob.runtime.queues.session import QueueSession, line_of
from dljob.runtime.queues.storage_client import SLACK_S, Deadline, StorageClient
from dljob.telemetry.wording import counted

ITEMS, BYTES, DELIVERIES = 1000, 1 << 30, 3
"""The default bounds of a queue."""


@dataclass(frozen=True, slots=True)
class DeadItem:
    """An item that its queue has set aside, as `max_deliveries` of its holders failed."""

    key: str
    """As its `put` gave it; empty: it gave none."""
    rank: str
    """The rank that failed with it last, as "engine/1"."""
    error: str
    """How that rank failed."""
    deliveries: int
    """How many of its holders have failed."""
    body: bytes = field(repr=False)

    @property
    def item(self) -> Any:
        """The item itself, unpickled now; raises what that raises."""
        return wire.load(self.body)


class DataQueue:
    """A queue of the job, by name: ranks that use the same name share it, in one order for all.

    Each item is delivered to one consumer. A consumer is a thread of a rank, whichever objects of the queue it uses;
    threads that share one object are one consumer. Its next get acknowledges the item it got before. If the rank dies
    before that, the item goes back to the front. If it died by a failure of its own, another rank gets the item next,
    and after `max_deliveries` such failures the queue sets it aside (`dead`); no restart budget pays for them.

    Args:
        name: The queue's name in the job; all ranks must give it the same bounds.
        max_items: The most items that wait; `put` waits for room.
        max_bytes: The most bytes of them, pickled. An empty queue accepts one larger item, and a queue with fewer items
            than a `get_batch` waits for accepts the missing ones.
        max_deliveries: How many ranks may fail with an item before it is set aside; None: it is delivered again for
            ever, and the budget of the failed rank's role pays. Lost nodes, scaling and outside kills do not count.

    Raises:
        UsageError: A bound is no positive whole number, or (at the first use) others gave other bounds.
    """

    def __init__(
        self,
        name: str,
        *,
        max_items: int = ITEMS,
        max_bytes: int = BYTES,
        max_deliveries: int | None = DELIVERIES,
    ) -> None:
        deliveries = (("max_deliveries", max_deliveries),) if max_deliveries is not None else ()
        for key, value in (("max_items", max_items), ("max_bytes", max_bytes), *deliveries):
            # True is an int in Python, and no bound.
            if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
                raise UsageError(f"DataQueue({name!r}, {key}={value!r}): wanted a whole number from 1")
        self.name = name
        most = 0 if max_deliveries is None else max_deliveries
        self._bounds = (operator.index(max_items), operator.index(max_bytes), operator.index(most))  # not of NumPy
        self._keeper = StorageClient("queue", name, "DataQueue")

    @property
    def aio(self) -> AsyncQueue:
        """The same queue for asyncio: `await queue.aio.get()`, `async for item in queue.aio`."""
        return AsyncQueue(self)

    def put(self, item: Any, timeout: float | None = None, *, key: str = "") -> None:
        """Append an item. When this returns, the item outlives this process.

        Args:
            item: Any value that pickle takes; it is pickled now.
            timeout: Seconds to wait for room; None: without limit.
            key: The queue drops another item with the same key, such as that of a prompt which was done twice because
                its first process died. The last 65,536 keys are remembered.

        Raises:
            TimeoutError: There was no room in time. The item is not in the queue, unless the message says it may be.
            QueueClosedError: The queue is closed.
            CallError: A later process of this rank has begun.
        """
        self._put(line_of(self, self.name), item, timeout, key=key)

    def _put(
        self,
        line: QueueSession,
        item: Any,
        timeout: float | None,
        unless: Callable[[], bool] = lambda: False,
        *,
        key: str = "",
    ) -> None:
        """Do a `put` by a session; gives up once `unless` returns True."""
        # Before the lock and the number: an item that cannot be pickled is no put.
        body = wire.dump(item, f"DataQueue({self.name!r}).put: the item")
        deadline = Deadline(timeout)
        activities.use("queue", self.name, "put")
        lock = _Lock(line.putting, deadline, f"DataQueue({self.name!r}).put: another thread's put")
        with Waiting("queue", self.name, "put", lambda: ()), lock:
            # The number of the put: one that is sent again must not add its item twice.
            line.puts += 1
            while not unless():
                which, stamp = (line.token, line.puts), line.stamp
                more = {"stamp": stamp, **({"key": key} if key else {})}
                reply = self._ask(
                    line, "put", which, body, deadline.slice_s, more=more, deadline=deadline, doubt=True, unless=unless
                )
                verdict = None if reply is None else reply[0]
                if reply is not None:
                    line.learn(reply[1])
                if verdict == PutRefusal.PAST:
                    current_worker().log.info("%r: an item was dropped: it was made before a restore", self.name)
                if verdict == PutRefusal.CLOSED:
                    raise QueueClosedError(f"DataQueue({self.name!r}).put: the queue is closed")
                if verdict != PutRefusal.FULL:
                    return
                if deadline.seconds_left == 0:
                    raise TimeoutError(f"DataQueue({self.name!r}).put: the queue has been full for {timeout:g} s")

    def get(self, timeout: float | None = None) -> Any:
        """Return the first item; waits for one.

        Args:
            timeout: Seconds to wait; None: without limit.

        Raises:
            TimeoutError: None came in time; nothing was taken.
            QueueClosedError: The queue is closed and empty.
            CallError: A later process of this rank has begun; the queue's items were lost; or an item cannot be
                unpickled in this process: then the next get skips it, and returns those that came with it.
        """
        return self.get_batch(1, timeout)[0]

    def get_batch(self, size: int, timeout: float | None = None) -> list[Any]:
        """Return the first `size` items, once there are so many. Once the queue is closed: fewer, but at least one.

        Raises as `get` does.
        """
        return self._get(line_of(self, self.name), self._checked(size), timeout)

    def _checked(self, size: int) -> int:
        if isinstance(size, bool) or not hasattr(size, "__index__") or not 1 <= size <= self._bounds[0]:
            hint = "a queue never holds a batch larger than max_items"
            raise UsageError(f"DataQueue({self.name!r}).get_batch({size!r}): wanted 1 to {self._bounds[0]}", hint=hint)
        return operator.index(size)

    def _get(
        self,
        line: QueueSession,
        size: int,
        timeout: float | None,
        keep: Callable[[list[Any]], bool] = lambda _: True,
        unless: Callable[[], bool] = lambda: False,
    ) -> list[Any]:
        """Do a `get_batch` by a session. Items that `keep` refuses go back to the front, as when `unless` ends it."""
        deadline = Deadline(timeout)
        activities.use("queue", self.name, "get")
        lock = _Lock(line.getting, deadline, f"DataQueue({self.name!r}).get: another thread's get")
        with Waiting("queue", self.name, "get", lambda: ()), lock:
            while not unless():
                line.turn += 1
                turn, turns = line.turn, (line.turn, line.last_seen_turn, line.bad)
                # In slices: between two of them the thread can be interrupted, and `unless` is looked at.
                reply = self._ask(
                    line,
                    "get",
                    turns,
                    size,
                    deadline.slice_s,
                    more={"stamp": line.stamp},
                    deadline=deadline,
                    unless=unless,
                )
                if reply is not None:
                    items: list[bytes] = reply[0]
                    line.learn(reply[1])
                    read_items, faults = _read(items)
                    # Before `seen` is set: items that no caller took are not acknowledged.
                    if items and not faults and not keep(read_items):
                        break
                    line.last_seen_turn, line.bad = turn, tuple(faults)
                    if faults:
                        raise self._unreadable(faults, len(items))
                    if not items:
                        raise QueueClosedError(f"DataQueue({self.name!r}).get: the queue is closed and empty")
                    return read_items
                if deadline.seconds_left == 0:
                    raise TimeoutError(
                        f"DataQueue({self.name!r}).get: fewer than {counted(size, 'item')} arrived in {timeout:g} s"
                    )
            # A get of no items: it does not acknowledge the last answer, so its items go back to the front.
            line.turn += 1
            turns, more = (line.turn, line.last_seen_turn, line.bad), {"stamp": line.stamp}
            self._ask(line, "get", turns, 0, 0.0, more=more, deadline=Deadline(None))
            return []

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the items, until the queue is closed and empty."""
        while True:
            try:
                item = self.get()
            except QueueClosedError:
                return
            yield item

    def close(self) -> None:
        """Close the queue for all ranks: no more puts; items in it can still be got. Idempotent."""
        self._ask(line_of(self, self.name), "close", deadline=Deadline(None))

    def stats(self) -> dict[str, Any]:
        """Return `items` and `bytes` that wait, `held` and `dead` items, and whether the queue is `closed`.

        Held items were got and not acknowledged yet.
        """
        return self._ask(line_of(self, self.name), "stats", deadline=Deadline(None))

    def qsize(self) -> int:
        """Return the number of items that wait."""
        return self.stats()["items"]

    def dead(self) -> list[DeadItem]:
        """Return the last 1,000 items that were set aside, the oldest first."""
        rows = self._ask(line_of(self, self.name), "dead", deadline=Deadline(None))
        return [DeadItem(item.key, item.rank, item.error, item.deliveries, body) for item, body in rows]

    def _unreadable(self, faults: Mapping[int, Exception], count: int) -> CallError:
        me, (at, error) = current_worker(), next(iter(faults.items()))
        which = f"item {at + 1} of {count}" if count > 1 else "the item"
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        rest = "; the others come with it" if count > len(faults) else ""
        return CallError(
            f"DataQueue({self.name!r}).get: {which} cannot be unpickled here: {type(error).__name__}: {error}{more}",
            role=me.role,
            rank=me.rank,
            hint=f"the next get skips it{rest}; the classes of items must be importable in consumers, too",
        )

    def _ask(
        self,
        line: QueueSession,
        method: str,
        *args: Any,
        deadline: Deadline,
        doubt: bool = False,
        unless: Callable[[], bool] = lambda: False,
        more: Mapping[str, Any] | None = None,
    ) -> Any:
        """Ask the queue's actor; None once `unless` returns True.

        Raises CallError if the queue's items were lost: once in each session, whichever objects of the queue it uses.
        """
        # Of this request: another thread with this session may hear of the loss first, and this put is refused, too.
        sent = args[0][0] if method == "put" else line.token
        # Of the session's incarnation, maybe an earlier one than this process's.
        seconds_left, caller = deadline.seconds_left, QueueCaller(*line.creator, line.name)
        try:
            within = None if seconds_left is None else seconds_left + SLACK_S
            answer = self._keeper.ask(method, caller, self._bounds, *args, timeout_s=within, unless=unless, more=more)
        except CallTimeoutError as error:
            rest = "; the item may be in the queue, or not" if doubt else ""
            raise TimeoutError(f"{error.message}{rest}") from None
        if answer is None:
            return None
        token, reply = answer
        # A new token means a new folder: the machine with the old one is gone.
        if line.follow(sent, token):
            me = current_worker()
            raise CallError(
                f"DataQueue({self.name!r}): its items are lost with the machine that held them; the queue is empty now",
                role=me.role,
                rank=me.rank,
                hint="put the remaining work again, or restart the job from its checkpoint",
            )
        return reply


def mark(number: int, timeout_s: float) -> str:
    """Send the marker of a cut to all queues of this process, for the thread that saves; return why not, else empty."""
    refused = list[str]()
    for name, (line, lines) in session.marked().items():
        keeper = StorageClient("queue", name, "DataQueue")
        try:
            done = keeper.ask("mark", QueueCaller(*line.creator, line.name), number, lines, timeout_s=timeout_s)
        except CallError as error:
            refused.append(f"queue {name}: {error.message}")
            continue
        if not done:
            refused.append(f"queue {name} has no part in the cut")
    return "; ".join(refused)


class AsyncQueue:
    """The awaitable versions of a queue's methods. The coroutines of one event loop are one consumer, as a thread is.

    A cancelled get takes nothing. The item of a cancelled put may be in the queue, or not.
    """

    def __init__(self, queue: DataQueue) -> None:
        self._queue = queue

    async def put(self, item: Any, timeout: float | None = None, *, key: str = "") -> None:  # noqa: ASYNC109 - as its blocking twin
        """Await `DataQueue.put`; the item must not change until it returns."""
        queue, line = self._queue, line_of(self._queue, self._queue.name)
        put = Handover[None]()
        await put.run(lambda: put.offer(queue._put(line, item, timeout, lambda: put.cancelled, key=key)))

    async def get(self, timeout: float | None = None) -> Any:  # noqa: ASYNC109 - the same
        """Await `DataQueue.get`."""
        return (await self.get_batch(1, timeout))[0]

    async def get_batch(self, size: int, timeout: float | None = None) -> list[Any]:  # noqa: ASYNC109 - the same
        """Await `DataQueue.get_batch`."""
        queue, line, count = self._queue, line_of(self._queue, self._queue.name), self._queue._checked(size)
        got = Handover[list[Any]]()
        return await got.run(lambda: queue._get(line, count, timeout, got.offer, lambda: got.cancelled))

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Iterate over the items, until the queue is closed and empty."""
        while True:
            try:
                item = await self.get()
            except QueueClosedError:
                return
            yield item

    async def close(self) -> None:
        """Await `DataQueue.close`."""
        await in_thread(self._queue.close)

    async def stats(self) -> dict[str, Any]:
        """Await `DataQueue.stats`."""
        return await in_thread(self._queue.stats)

    async def qsize(self) -> int:
        """Await `DataQueue.qsize`."""
        return await in_thread(self._queue.qsize)

    async def dead(self) -> list[DeadItem]:
        """Await `DataQueue.dead`."""
        return await in_thread(self._queue.dead)


def _read(bodies: Sequence[bytes]) -> tuple[list[Any], dict[int, Exception]]:
    """Return the items that can be unpickled, and the errors of the others by their index, from 0."""
    read_items, faults = list[Any](), dict[int, Exception]()
    for at, body in enumerate(bodies):
        try:
            read_items.append(wire.load(body))
        except Exception as error:  # noqa: BLE001 - unpickling runs code of the item's class, which may raise anything
            faults[at] = error
    return read_items, faults


class _Lock:
    """Holds a lock; raises TimeoutError if it is not free in time."""

    def __init__(self, lock: threading.Lock, deadline: Deadline, subject: str) -> None:
        self._lock, self._deadline, self._what = lock, deadline, subject

    def __enter__(self) -> None:
        seconds_left = self._deadline.seconds_left
        if not self._lock.acquire(timeout=-1 if seconds_left is None else seconds_left):
            raise TimeoutError(f"{self._what} did not end in time")

    def __exit__(self, *_: object) -> None:
        self._lock.release()
