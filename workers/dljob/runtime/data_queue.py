"""`DataQueue(name)`: any rank puts, any rank gets; no process of a rank has the items, so none takes them along."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dljob.calls.backlog import Verdict, Who
from dljob.errors import CallError, CallTimeoutError, QueueClosedError, UsageError
from dljob.runtime import wire
from dljob.runtime.asking import SLACK_S, Asker, Deadline
from dljob.runtime.context import current_worker
from dljob.runtime.queue_lines import QueueLine, line_of

ITEMS, BYTES = 1000, 1 << 30


class DataQueue:
    """A queue of a job, by name; ranks that name it share it, in the same order for all.

    An item is got once. What a thread of a rank got last is done with when it asks for the next, by this object or by
    another one; threads that share an object are as one there. If the rank dies before that, the item goes back to the
    front when the rank's next process first uses the queue.

    Args:
        name: of the queue, in the whole job; whoever names it says the same bounds.
        max_items: how many items wait at most; `put` waits for room.
        max_bytes: how many bytes they have at most, pickled. A queue that is empty takes one larger item, and one whose
            items are fewer than a `get_batch` waits for takes what is missing.

    Raises:
        UsageError: a bound makes no sense; others have said other bounds (when it is first used).
    """

    def __init__(self, name: str, *, max_items: int = ITEMS, max_bytes: int = BYTES) -> None:
        for key, value in (("max_items", max_items), ("max_bytes", max_bytes)):
            if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
                raise UsageError(f"DataQueue({name!r}, {key}={value!r}): wanted a whole number from 1")
        self.name = name
        self._bounds = (operator.index(max_items), operator.index(max_bytes))  # numbers of NumPy are no JSON
        self._keeper = Asker("queue", name, "DataQueue")
        self._token = ""

    def put(self, item: Any, timeout: float | None = None) -> None:
        """Put an item at the end; when this returns it outlives this process.

        Args:
            item: what pickle takes; it is pickled now.
            timeout: seconds to wait for room; None: as long as it takes.

        Raises:
            TimeoutError: there was no room in time: it is not in the queue, unless the message says that it may be.
            QueueClosedError: the queue is closed.
            CallError: a later process of this rank has begun.
        """
        body = wire.dump(item, f"DataQueue({self.name!r}).put: the item")
        deadline = Deadline(timeout)
        line = line_of(self, self.name)
        with _held(line.putting, deadline, f"DataQueue({self.name!r}).put: another thread's put"):
            line.puts += 1
            while True:
                which = self._token, line.puts
                verdict = self._ask(line, "put", which, body, deadline.slice_s, deadline=deadline, doubt=True)
                if verdict == Verdict.CLOSED:
                    raise QueueClosedError(f"DataQueue({self.name!r}).put: it is closed")
                if verdict != Verdict.FULL:
                    return
                if deadline.left == 0:
                    raise TimeoutError(f"DataQueue({self.name!r}).put: it is full, for {timeout:g} s")

    def get(self, timeout: float | None = None) -> Any:
        """The first item; waits for one.

        Args:
            timeout: seconds to wait; None: as long as it takes.

        Raises:
            TimeoutError: none came in time; nothing was taken.
            QueueClosedError: it is closed, and all was got.
            CallError: a later process of this rank has begun; what was in the queue is lost; an item cannot be
                unpickled in this process: the next get leaves it out, and has those that came with it.
        """
        return self.get_batch(1, timeout)[0]

    def get_batch(self, size: int, timeout: float | None = None) -> list[Any]:
        """The first `size` items, once there are so many; fewer, but one at least, only when it is closed.

        Raises as `get` does.
        """
        if isinstance(size, bool) or not hasattr(size, "__index__") or not 1 <= size <= self._bounds[0]:
            hint = "a batch larger than max_items would never be there"
            raise UsageError(f"DataQueue({self.name!r}).get_batch({size!r}): wanted 1 to {self._bounds[0]}", hint=hint)
        size = operator.index(size)
        deadline, line = Deadline(timeout), line_of(self, self.name)
        with _held(line.getting, deadline, f"DataQueue({self.name!r}).get: another thread's get"):
            while True:
                line.turn += 1
                turn, turns = line.turn, (line.turn, line.seen, line.bad)
                items = self._ask(line, "get", turns, size, deadline.slice_s, deadline=deadline)
                if items is not None:
                    made, faults = _read(items)
                    line.seen, line.bad = turn, tuple(faults)
                    if faults:
                        raise self._unreadable(faults, len(items))
                    if not items:
                        raise QueueClosedError(f"DataQueue({self.name!r}).get: it is closed, and all was got")
                    return made
                if deadline.left == 0:
                    raise TimeoutError(f"DataQueue({self.name!r}).get: {size} items were not there in {timeout:g} s")

    def __iter__(self) -> Iterator[Any]:
        """The items, one after the other, until it is closed and all was got."""
        while True:
            try:
                item = self.get()
            except QueueClosedError:
                return
            yield item

    def close(self) -> None:
        """Take nothing more in, for all ranks; what is in it may be got. Closing it again does nothing."""
        self._ask(line_of(self, self.name), "close", deadline=Deadline(None))

    def stats(self) -> dict[str, Any]:
        """`items` and `bytes` that wait, and whether it is `closed`."""
        return self._ask(line_of(self, self.name), "stats", deadline=Deadline(None))

    def qsize(self) -> int:
        """How many items wait."""
        return self.stats()["items"]

    def _unreadable(self, faults: Mapping[int, Exception], count: int) -> CallError:
        me, (at, error) = current_worker(), next(iter(faults.items()))
        which = f"item {at + 1} of {count}" if count > 1 else "the item"
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        rest = "; the others come with it" if count > len(faults) else ""
        return CallError(
            f"DataQueue({self.name!r}).get: {which} cannot be unpickled here: {type(error).__name__}: {error}{more}",
            role=me.role,
            rank=me.rank,
            hint=f"the next get leaves out what cannot be read{rest}; what was put must be importable here too",
        )

    def _ask(self, line: QueueLine, method: str, *args: Any, deadline: Deadline, doubt: bool = False) -> Any:
        """Ask its keeper, and see that the queue is still the one that it was."""
        left, who = deadline.left, Who(*line.life, line.name)  # whoever waits since an earlier life stays of that one
        try:
            token, said = self._keeper.ask(
                method, who, self._bounds, *args, timeout_s=None if left is None else left + SLACK_S
            )
        except CallTimeoutError as error:
            more = "; the item may be in the queue, or not" if doubt else ""
            raise TimeoutError(f"{error.message}{more}") from None
        known, self._token = self._token, token
        if known not in ("", token):
            me = current_worker()
            raise CallError(
                f"DataQueue({self.name!r}): what was in it is lost with the machine that had it; it is empty now",
                role=me.role,
                rank=me.rank,
                hint="put again what is still to be done, or restart the job from its checkpoint",
            )
        return said


def _read(bodies: Sequence[bytes]) -> tuple[list[Any], dict[int, Exception]]:
    """The items that can be unpickled, and which of them cannot, counted from 0, and why."""
    made, faults = list[Any](), dict[int, Exception]()
    for at, body in enumerate(bodies):
        try:
            made.append(wire.load(body))
        except Exception as error:  # noqa: BLE001 - unpickling runs whatever the item's class does
            faults[at] = error
    return made, faults


class _held:  # noqa: N801 - used as a function
    """A lock, held; TimeoutError when it is not to be had in time."""

    def __init__(self, lock: threading.Lock, deadline: Deadline, what: str) -> None:
        self._lock, self._deadline, self._what = lock, deadline, what

    def __enter__(self) -> None:
        left = self._deadline.left
        if not self._lock.acquire(timeout=-1 if left is None else left):
            raise TimeoutError(f"{self._what} did not end in time")

    def __exit__(self, *_: object) -> None:
        self._lock.release()
