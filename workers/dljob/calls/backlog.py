"""State of a `DataQueue`: item numbers, sizes and the items each consumer holds, without the items' bytes or waiting.

Each thread that puts or gets has a session. A get names the last answer that its session received: items of
that answer are acknowledged, items of an answer that was not received return to the front. So a lost answer neither
loses nor duplicates an item.

Once PrimeMaster says that a process has ended, its items go back to the front. If the process failed by itself, the
failure is counted for the items that it held and not for its role: each of them goes to another rank next, and is set
aside after `max_deliveries` failures.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any


class PutRefusal(StrEnum):
    """Reason why a put adds no item."""

    AGAIN = "again"
    """A repeated put: the queue has accepted the item already, and the caller sent it twice."""
    KNOWN = "known"
    """The queue has had an item with the same key."""
    PAST = "past"
    """The caller made the item in an epoch that ended when the job went back to a cut."""
    FULL = "full"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class QueueCaller:
    """The caller of a queue: a rank such as `rollout/1`, its incarnation, and the session of its thread."""

    rank: str
    incarnation: int
    session: str


@dataclass(slots=True)
class ThreadSession:
    """The queue's record of one thread that puts or gets."""

    rank: str
    last_put: int = 0
    """Number of the last accepted put."""
    last_get: int = 0
    """Number of the last get that arrived."""
    answered: bool = False
    ids: tuple[int, ...] = ()
    """Items handed out for that get and not yet acknowledged."""


class HolderEnd(StrEnum):
    """How a process ended that may hold items."""

    DONE = "done"
    """Successfully: its last items are acknowledged."""
    FAILED = "failed"
    """By a failure of its own, which counts as a failed delivery of the items that it held."""
    LOST = "lost"
    """For another reason: its node was lost, its role shrank, or it was restarted together with others."""


@dataclass(frozen=True, slots=True)
class FailedItem:
    """An item whose holder failed. `rank` and `error`: of the last holder."""

    number: int
    key: str
    rank: str
    error: str
    deliveries: int
    """How many of its holders have failed."""
    content: str = ""
    """Digest of its bytes, where it has no key: by this it is known if the job goes back to before its put."""


DEAD_STREAK_LIMIT = 3
"""Items set aside in a row, with none acknowledged between, after which a failure is the role's fault again."""
MAX_DEAD_ITEMS = 1000
"""Number of items that are kept after they were set aside; beyond it the oldest is dropped."""
MAX_KEYS = 65_536
"""Number of item keys that a queue remembers; beyond it the oldest is forgotten."""


@dataclass(slots=True)
class Backlog:
    """The items by number, in the order of their puts; the bounds count only waiting items, not those handed out."""

    max_items: int
    max_bytes: int
    max_deliveries: int = 0
    """Failed deliveries after which an item is set aside; 0: failures are not counted."""
    closed: bool = False
    next: int = 1
    """Number of the next item."""
    bytes: int = 0
    """Bytes of the waiting items."""
    sizes: dict[int, int] = field(default_factory=dict[int, int])
    """Item -> bytes, of waiting items and of those handed out."""
    waiting: list[int] = field(default_factory=list[int])
    """Heap of item numbers: a returned item comes before items that were put after it."""
    incarnations: dict[str, int] = field(default_factory=dict[str, int])
    """Rank -> the lowest of its incarnations whose requests are accepted."""
    sessions: dict[str, ThreadSession] = field(default_factory=dict[str, ThreadSession])
    consumers: dict[str, None] = field(default_factory=dict[str, None])
    """Ranks that have asked for items and have not ended well: one that is away is expected back."""
    keys: dict[str, None] = field(default_factory=dict[str, None])
    """Keys of the last items, the oldest first: another item with one of them is not accepted."""
    item_keys: dict[int, str] = field(default_factory=dict[int, str])
    """Item -> its key, of items that have one and are not acknowledged."""
    failed: dict[int, FailedItem] = field(default_factory=dict[int, FailedItem])
    """Items with failed deliveries that are neither acknowledged nor set aside; also those of `awaited`."""
    dead: dict[int, FailedItem] = field(default_factory=dict[int, FailedItem])
    """Items that were set aside, the oldest first."""
    dead_streak: int = 0
    """Items set aside since one was last acknowledged."""
    returned: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict[str, tuple[int, tuple[int, ...]]])
    """Rank -> (incarnation, items that it held), where its next process asked before PrimeMaster reported its end."""
    waiting_get_sizes: list[int] = field(default_factory=list[int], compare=False)
    """Number of items that each waiting get wants. Not persisted: callers repeat their gets to a restarted queue."""

    # -- callers

    def register(self, caller: QueueCaller) -> bool:
        """Register a caller; False for an older incarnation of its rank.

        The first request of a newer incarnation returns the unacknowledged items of the one before it to the queue.
        """
        known_incarnation = self.incarnations.get(caller.rank, 0)
        # A process that was replaced may still send requests: items handed to it would be lost.
        if self.is_replaced(caller):
            return False
        if caller.incarnation > known_incarnation:
            self.incarnations[caller.rank] = caller.incarnation
            # The threads of the older process are gone with it: their sessions will acknowledge nothing more.
            item_numbers = self._end_sessions(caller.rank)
            self._requeue(item_numbers)
            if item_numbers and self.max_deliveries:
                self.returned[caller.rank] = (known_incarnation, item_numbers)
        self.sessions.setdefault(caller.session, ThreadSession(caller.rank))
        return True

    def is_replaced(self, caller: QueueCaller) -> bool:
        """Return whether a newer incarnation of the caller's rank has sent a request."""
        return self.incarnations.get(caller.rank, 0) > caller.incarnation

    def end_incarnation(
        self, rank: str, incarnation: int, end: HolderEnd, error: str = ""
    ) -> tuple[FailedItem, ...] | None:
        """Take back the items of a process that has ended, and refuse its late requests.

        Returns the items for which its failure is counted, each with the number of its failed deliveries; those with
        `max_deliveries` of them are set aside. None: it held items, but the failure counts for its role, since
        `DEAD_STREAK_LIMIT` items were set aside and none was acknowledged.
        """
        returned_by, returned_items = self.returned.pop(rank, (0, ()))
        # Without those that its next process acknowledged, or that were set aside meanwhile.
        item_numbers = tuple(n for n in returned_items if n in self.sizes) if returned_by == incarnation else ()
        if self.incarnations.get(rank, incarnation + 1) <= incarnation:
            item_numbers = self._end_sessions(rank)
            if end is HolderEnd.DONE:
                self.consumers.pop(rank, None)
                self.forget_items(item_numbers)
                return ()
            # Refuse its requests that are still under way: the items that they take would be lost.
            self.incarnations[rank] = incarnation + 1
            self._requeue(item_numbers)
        if end is not HolderEnd.FAILED or not self.max_deliveries or not item_numbers:
            return ()
        if self.dead_streak >= DEAD_STREAK_LIMIT:
            return None
        return tuple(self._count_failure(number, rank, error) for number in item_numbers)

    def _count_failure(self, item_number: int, rank: str, error: str) -> FailedItem:
        last_failure = self.failed.pop(item_number, None)
        failed_deliveries = 1 if last_failure is None else last_failure.deliveries + 1
        failed_item = FailedItem(item_number, self.item_keys.get(item_number, ""), rank, error, failed_deliveries)
        # An item that its next holder has got already is not taken away from it.
        if failed_deliveries < self.max_deliveries or item_number not in self.waiting:
            self.failed[item_number] = failed_item
            return failed_item
        self.waiting.remove(item_number)
        heapq.heapify(self.waiting)
        self.bytes -= self.sizes[item_number]
        self.forget_items((item_number,))
        self.dead[item_number] = failed_item
        self.dead_streak += 1
        if len(self.dead) > MAX_DEAD_ITEMS:
            del self.dead[next(iter(self.dead))]
        return failed_item

    def _end_sessions(self, rank: str) -> tuple[int, ...]:
        """Forget a rank's sessions, and return the items that they held."""
        session_names = [name for name, session in self.sessions.items() if session.rank == rank]
        return tuple(number for name in session_names for number in self.sessions.pop(name).ids)

    def forget_items(self, item_numbers: Iterable[int]) -> None:
        """Forget items that are acknowledged or set aside and no longer wait."""
        for number in item_numbers:
            del self.sizes[number]
            self.item_keys.pop(number, None)
            self.failed.pop(number, None)

    @property
    def awaited_items(self) -> list[FailedItem]:
        """The failed items that are no longer here since the job went back to before their put: they are put again."""
        return [item for number, item in self.failed.items() if number not in self.sizes]

    def note_content(self, number: int, content: str) -> None:
        """Note the digest of the bytes of an item without a key that has failed, or was set aside."""
        for items in (self.failed, self.dead):
            if number in items:
                items[number] = replace(items[number], content=content)

    @property
    def stored_items(self) -> frozenset[int]:
        """The items whose bytes are needed: those that wait, are handed out, or were set aside."""
        return frozenset((*self.sizes, *self.dead))

    # -- puts

    def put_refusal(self, caller: QueueCaller, put_number: int, size: int, key: str = "") -> PutRefusal | None:
        """Return why an item of `size` bytes is refused now, or None. An empty queue accepts one item of any size.

        The bound of bytes does not refuse an item that a get waits for: the get would wait for this put, and the put
        for the get (a deadlock).
        """
        # Before the other checks: a repeat of an accepted put succeeds even if the queue is full or closed by now.
        if put_number <= self.sessions[caller.session].last_put:
            return PutRefusal.AGAIN
        if key and key in self.keys:
            return PutRefusal.KNOWN
        if self.closed:
            return PutRefusal.CLOSED
        waiting_count = len(self.waiting)
        # While fewer items wait than the smallest waiting get wants, no get can be answered without this put.
        exceeds_bytes = self.bytes + size > self.max_bytes and waiting_count >= min(self.waiting_get_sizes, default=0)
        # `waiting_count`: without the exception for an empty queue, an item above `max_bytes` could never be put.
        return PutRefusal.FULL if waiting_count and (waiting_count >= self.max_items or exceeds_bytes) else None

    def put(self, caller: QueueCaller, put_number: int, size: int, key: str = "", content: str = "") -> int:
        """Add an item, return its number. One of `awaited_items`, by key or `content`, keeps its failed deliveries."""
        item_number, self.next = self.next, self.next + 1
        # By this number `put_refusal` recognizes a repeat of the put.
        self.sessions[caller.session].last_put = put_number
        same_items = [
            item for item in self.awaited_items if (item.key, item.content) == (key, content) and (key or content)
        ]
        if same_items:
            self.failed[item_number] = replace(self.failed.pop(same_items[0].number), number=item_number)
        self.sizes[item_number] = size
        self._requeue((item_number,))
        if key:
            self.keys[key] = None
            self.item_keys[item_number] = key
            if len(self.keys) > MAX_KEYS:
                del self.keys[next(iter(self.keys))]
        return item_number

    def close(self) -> None:
        """Refuse further puts; gets still receive the items that remain."""
        self.closed = True

    # -- gets

    def begin_get(
        self, caller: QueueCaller, get_number: int, received_get: int, unreadable_indices: Collection[int] = ()
    ) -> tuple[int, ...] | None:
        """Begin a get, and return the items that it acknowledges; None for a get that a later one has overtaken.

        `get_number` counts the gets of a session; `received_get` is the last one whose answer the caller got. If items
        of that answer could not be read (`unreadable_indices`), these alone are dropped, and the others return.
        """
        session = self.sessions[caller.session]
        # An equal number is the same get again: its items stay in the session, and `last_answer` repeats them.
        # A lower one is a late copy, whose caller has sent another get since.
        if get_number <= session.last_get:
            return () if get_number == session.last_get else None
        # An older `received_get` means that the last answer was lost on its way: nothing of it is acknowledged.
        delivered_items = session.ids if received_get == session.last_get else ()
        acknowledged_items = delivered_items
        if unreadable_indices:
            # The indices come from the caller, so one may be out of range.
            acknowledged_items = tuple(delivered_items[n] for n in unreadable_indices if n < len(delivered_items))
        self._requeue(set(session.ids).difference(acknowledged_items))
        # Only acknowledged items lose their size: `_requeue` needs it for the others.
        self.forget_items(acknowledged_items)
        if acknowledged_items and not unreadable_indices:
            self.dead_streak = 0
        session.last_get, session.ids, session.answered = get_number, (), False
        self.consumers[caller.rank] = None
        return acknowledged_items

    def is_last_get(self, caller: QueueCaller, get_number: int) -> bool:
        """Return whether a waiting get is still the last one of its session."""
        # The session itself is gone once a newer incarnation of the rank has asked (`register`).
        session = self.sessions.get(caller.session)
        return session is not None and session.last_get == get_number and not self.is_replaced(caller)

    def last_answer(self, caller: QueueCaller) -> tuple[int, ...] | None:
        """Return the items of a session's last get, or None while it has no answer."""
        session = self.sessions[caller.session]
        # An empty tuple is an answer too: that of a queue which is closed and empty.
        return session.ids if session.answered else None

    @contextmanager
    def count_waiting_get(self, item_count: int) -> Generator[None]:
        """Count a get of `item_count` items as waiting while the context is open, for `put_refusal`."""
        self.waiting_get_sizes.append(item_count)
        try:
            yield
        # Also when the get times out: a count that stayed behind would let puts exceed the bound of bytes.
        finally:
            self.waiting_get_sizes.remove(item_count)

    def choose_items(
        self,
        caller: QueueCaller,
        item_count: int,
        allowed_items: Collection[int] | None = None,
        items_for_any_rank: Collection[int] = (),
    ) -> Collection[int] | None:
        """Return the items that a get may take; `allowed_items` itself unless deliveries have failed.

        To find the bad item of a failed batch, a failed item goes to another rank than the last one if others ask the
        queue or are expected back, and it is not one of `items_for_any_rank`; and a batch that can be filled so has one
        of them at most.
        """
        if self.failed.keys().isdisjoint(self.sizes):
            return allowed_items
        has_other_ranks = not self.consumers.keys() <= {caller.rank}
        own_failures = {number for number, item in self.failed.items() if item.rank == caller.rank}
        barred_items = own_failures.difference(items_for_any_rank) if has_other_ranks else ()
        eligible_items = [
            number
            for number in sorted(self.waiting)
            if number not in barred_items and (allowed_items is None or number in allowed_items)
        ]
        suspects = [number for number in eligible_items if number in self.failed]
        batch = (*suspects[:1], *(number for number in eligible_items if number not in self.failed))
        return frozenset(batch if len(batch) >= item_count else eligible_items)

    def can_answer_get(self, item_count: int, allowed_items: Collection[int] | None = None) -> bool:
        """Return whether a get of `item_count` items can be answered: enough items wait, or the queue is closed.

        `allowed_items`: the items that the caller may get; None: all.
        """
        if allowed_items is not None:
            available_count = sum(number in allowed_items for number in self.waiting)
            return available_count >= item_count or (self.closed and available_count == len(self.waiting))
        # Nothing is put into a closed queue, so `item_count` items might never come together.
        return self.closed or len(self.waiting) >= item_count

    def take(
        self, caller: QueueCaller, item_count: int, allowed_items: Collection[int] | None = None
    ) -> tuple[int, ...]:
        """Hand a session the first waiting items: fewer than `item_count`, maybe none, if the queue is closed."""
        session = self.sessions[caller.session]
        if allowed_items is None:
            session.ids = tuple(heapq.heappop(self.waiting) for _ in range(min(item_count, len(self.waiting))))
        else:
            session.ids = tuple(sorted(number for number in self.waiting if number in allowed_items)[:item_count])
            handed_out_items = frozenset(session.ids)
            self.waiting = [number for number in self.waiting if number not in handed_out_items]
            heapq.heapify(self.waiting)
        session.answered = True
        # The sizes stay until the items are acknowledged: a returned item adds its bytes again.
        self.bytes -= sum(self.sizes[number] for number in session.ids)
        return session.ids

    # -- going back to a cut

    def restore(self, sizes: Mapping[int, int], keys: Mapping[str, int], *, closed: bool) -> None:
        """Go back to the items of a cut, and forget which items were handed out since.

        Item numbers and put numbers are not reset, so that no late request is mistaken for a newer one.
        """
        # Items that were set aside stay so, even if the cut has them.
        self.sizes = {number: size for number, size in sizes.items() if number not in self.dead}
        self.keys, self.closed = dict.fromkeys((*keys, *(item.key for item in self.dead.values() if item.key))), closed
        self.waiting, self.bytes = [], 0
        self._requeue(self.sizes)
        self.item_keys = {number: key for key, number in keys.items() if number in self.sizes}
        # An item that was put after the cut is put again: its failed deliveries count on. One without a key is not
        # refused where it was set aside, as another may have the same bytes.
        keyless = {number: item for number, item in self.dead.items() if item.content}
        self.failed = {
            number: item
            for number, item in {**self.failed, **keyless}.items()
            if number in self.sizes or item.content or (item.key and item.key not in self.keys)
        }
        self.returned.clear()
        for session in self.sessions.values():
            session.ids, session.answered = (), False

    def _requeue(self, item_numbers: Iterable[int]) -> None:
        for number in item_numbers:
            heapq.heappush(self.waiting, number)
            self.bytes += self.sizes[number]

    # -- as data

    def to_data(self) -> dict[str, Any]:
        """Return the state as JSON's own types, for `from_data`."""
        # As pairs: keys of a JSON object are texts, and the item numbers would come back as such.
        pairs = {name: list(getattr(self, name).items()) for name in ("sizes", "item_keys")}
        failed_items = {name: [asdict(item) for item in getattr(self, name).values()] for name in ("failed", "dead")}
        data = asdict(self) | pairs | failed_items | {"keys": list(self.keys)}
        # The waiting gets are not part of the state: their callers repeat them to a restarted queue.
        del data["waiting_get_sizes"]
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Backlog:
        """Rebuild the state from the data of `to_data`."""
        sessions = {name: ThreadSession(**session) for name, session in data["sessions"].items()}
        for session in sessions.values():
            # JSON has no tuples: the items of a session came back as a list.
            session.ids = tuple(session.ids)
        numbered = {name: dict(data[name]) for name in ("sizes", "item_keys")}
        failed_items = {
            name: {item["number"]: FailedItem(**item) for item in data[name]} for name in ("failed", "dead")
        }
        returned = {rank: (incarnation, tuple(numbers)) for rank, (incarnation, numbers) in data["returned"].items()}
        fields: dict[str, Any] = {**data, **numbered, **failed_items, "returned": returned, "sessions": sessions}
        fields["keys"] = dict.fromkeys(data["keys"])
        return cls(**fields)
