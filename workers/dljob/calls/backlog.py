"""State of a `DataQueue`: item numbers, sizes and the items each consumer holds, without the items' bytes or waiting.

Each thread that puts or gets has a session. A get names the last answer that its session received: items of
that answer are acknowledged, items of an answer that was not received return to the front. So a lost answer neither
loses nor duplicates an item.

Once PrimeMaster says that a process has ended, its items go back to the front. If the process failed by itself, the
items that it held pay for that instead of its role: each counts the failure, goes to another rank next, and is set
aside after `max_deliveries` of them.
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
    """The caller made the item in a future that the job has left by going back to a cut."""
    FULL = "full"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Who:
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
    """Well: its last items are acknowledged."""
    FAILED = "failed"
    """By a failure of its own, which counts as a failed delivery of the items that it held."""
    LOST = "lost"
    """For another reason: its node was lost, its role shrank, or others took it along."""


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
"""Items set aside in a row, with none acknowledged between, after which failures are the role's fault again."""
DEAD = 1000
"""Most items that are kept after they were set aside, the newest ones."""
KEYS = 65_536
"""Keys of items that a queue remembers, the newest ones."""


@dataclass(slots=True)
class Backlog:
    """The items by number, in the order of their puts; the bounds count only waiting items, not those handed out."""

    max_items: int
    max_bytes: int
    max_deliveries: int = 0
    """Failed deliveries after which an item is set aside; 0: failures are not counted."""
    closed: bool = False
    next: int = 1
    bytes: int = 0
    """Bytes of the waiting items."""
    sizes: dict[int, int] = field(default_factory=dict[int, int])
    """Item -> bytes, of waiting items and of those handed out."""
    waiting: list[int] = field(default_factory=list[int])
    """Heap of item numbers: a returned item comes before items that were put after it."""
    incarnations: dict[str, int] = field(default_factory=dict[str, int])
    sessions: dict[str, ThreadSession] = field(default_factory=dict[str, ThreadSession])
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
    counts: list[int] = field(default_factory=list[int], compare=False)
    """Number of items that each waiting get wants. Not persisted: callers repeat their gets to a restarted queue."""

    # -- who asks

    def register(self, who: Who) -> bool:
        """Register a caller; False for an older incarnation of its rank.

        The first request of a newer incarnation returns the unacknowledged items of the one before it to the queue.
        """
        known_incarnation = self.incarnations.get(who.rank, 0)
        # A process that was replaced may still send: items handed to it would be lost.
        if self.past(who):
            return False
        if who.incarnation > known_incarnation:
            self.incarnations[who.rank] = who.incarnation
            # Sessions belong to threads, and those of the older process are gone: none will acknowledge their items.
            items = self._end_sessions(who.rank)
            self._requeue(items)
            if items and self.max_deliveries:
                self.returned[who.rank] = (known_incarnation, items)
        self.sessions.setdefault(who.session, ThreadSession(who.rank))
        return True

    def past(self, who: Who) -> bool:
        """Return whether a newer incarnation of the caller's rank has sent a request."""
        return self.incarnations.get(who.rank, 0) > who.incarnation

    def end_incarnation(
        self, rank: str, incarnation: int, end: HolderEnd, error: str = ""
    ) -> tuple[FailedItem, ...] | None:
        """Take back the items of a process that has ended, and refuse its late requests.

        Returns the items that pay for its failure, each with the number of its failed deliveries; those with
        `max_deliveries` of them are set aside. None: it held items, but its role pays, since a row of items was set
        aside and none was finished.
        """
        holder, numbers = self.returned.pop(rank, (0, ()))
        # What its next process has acknowledged, or was set aside meanwhile, is no longer here.
        items = tuple(number for number in numbers if number in self.sizes) if holder == incarnation else ()
        if self.incarnations.get(rank, incarnation + 1) <= incarnation:
            items = self._end_sessions(rank)
            if end is HolderEnd.DONE:
                self.forget(items)
                return ()
            # Its requests that are still on their way would take items for nobody.
            self.incarnations[rank] = incarnation + 1
            self._requeue(items)
        if end is not HolderEnd.FAILED or not self.max_deliveries or not items:
            return ()
        if self.dead_streak >= DEAD_STREAK_LIMIT:
            return None
        return tuple(self._count_failure(number, rank, error) for number in items)

    def _count_failure(self, number: int, rank: str, error: str) -> FailedItem:
        last_failure = self.failed.pop(number, None)
        deliveries = 1 if last_failure is None else last_failure.deliveries + 1
        item = FailedItem(number, self.item_keys.get(number, ""), rank, error, deliveries)
        # One that its next holder has got already stays with it.
        if deliveries < self.max_deliveries or number not in self.waiting:
            self.failed[number] = item
            return item
        self.waiting.remove(number)
        heapq.heapify(self.waiting)
        self.bytes -= self.sizes[number]
        self.forget((number,))
        self.dead[number] = item
        self.dead_streak += 1
        if len(self.dead) > DEAD:
            del self.dead[next(iter(self.dead))]
        return item

    def _end_sessions(self, rank: str) -> tuple[int, ...]:
        """Forget a rank's sessions, and return the items that they held."""
        session_names = [name for name, session in self.sessions.items() if session.rank == rank]
        return tuple(number for name in session_names for number in self.sessions.pop(name).ids)

    def forget(self, numbers: Iterable[int]) -> None:
        """Forget items that are acknowledged or set aside; they wait no longer."""
        for number in numbers:
            del self.sizes[number]
            self.item_keys.pop(number, None)
            self.failed.pop(number, None)

    @property
    def awaited(self) -> list[FailedItem]:
        """The failed items that are no longer here since the job went back to before their put: they are put again."""
        return [item for number, item in self.failed.items() if number not in self.sizes]

    def note_content(self, number: int, content: str) -> None:
        """Note the digest of the bytes of an item without a key that has failed, or was set aside."""
        for items in (self.failed, self.dead):
            if number in items:
                items[number] = replace(items[number], content=content)

    @property
    def stored(self) -> frozenset[int]:
        """The items whose bytes are needed: those that wait, are handed out, or were set aside."""
        return frozenset((*self.sizes, *self.dead))

    # -- putting

    def refused(self, who: Who, put_number: int, size: int, key: str = "") -> PutRefusal | None:
        """Return why an item of `size` bytes is refused now, or None. An empty queue accepts one item of any size.

        The bound of bytes does not refuse an item that a get waits for: the get would wait for this put, and the put
        for the get (a deadlock).
        """
        # Before the other checks: a repeat of an accepted put succeeds even if the queue is full or closed by now.
        if put_number <= self.sessions[who.session].last_put:
            return PutRefusal.AGAIN
        if key and key in self.keys:
            return PutRefusal.KNOWN
        if self.closed:
            return PutRefusal.CLOSED
        waiting_count = len(self.waiting)
        # While fewer items wait than the smallest waiting get wants, no get can be answered without this put.
        exceeds_bytes = self.bytes + size > self.max_bytes and waiting_count >= min(self.counts, default=0)
        # `waiting_count`: without the exception for an empty queue, an item above `max_bytes` could never be put.
        return PutRefusal.FULL if waiting_count and (waiting_count >= self.max_items or exceeds_bytes) else None

    def put(self, who: Who, put_number: int, size: int, key: str = "", content: str = "") -> int:
        """Add an item, and return its number. One of `awaited`, by key or `content`, keeps its failed deliveries."""
        number, self.next = self.next, self.next + 1
        # By this number `refused` recognizes a repeat of the put.
        self.sessions[who.session].last_put = put_number
        same = [item for item in self.awaited if (item.key, item.content) == (key, content) and (key or content)]
        if same:
            self.failed[number] = replace(self.failed.pop(same[0].number), number=number)
        self.sizes[number] = size
        self._requeue((number,))
        if key:
            self.keys[key] = None
            self.item_keys[number] = key
            if len(self.keys) > KEYS:
                del self.keys[next(iter(self.keys))]
        return number

    def close(self) -> None:
        """Refuse further puts; gets still receive the items that remain."""
        self.closed = True

    # -- getting

    def begin_get(
        self, who: Who, number: int, received: int, unreadable: Collection[int] = ()
    ) -> tuple[int, ...] | None:
        """Begin a get, and return the items that it acknowledges; None for a get that a later one has overtaken.

        `number` counts the gets of a session; `received` is the last one whose answer the caller got. If items of that
        answer could not be read (`unreadable`: their indices), these alone are dropped, and the others return.
        """
        session = self.sessions[who.session]
        # An equal number is the same get again: its items stay in the session, and `answer` repeats them.
        # A lower one is a late copy, whose caller has sent another get since.
        if number <= session.last_get:
            return () if number == session.last_get else None
        # An older `received` means that the last answer was lost on its way: nothing of it is acknowledged.
        delivered = session.ids if received == session.last_get else ()
        # The indices come from the caller, so one may be out of range.
        acknowledged = tuple(delivered[n] for n in unreadable if n < len(delivered)) if unreadable else delivered
        self._requeue(set(session.ids).difference(acknowledged))
        # Only acknowledged items lose their size: `_requeue` needs it for the others.
        self.forget(acknowledged)
        if acknowledged and not unreadable:
            self.dead_streak = 0
        session.last_get, session.ids, session.answered = number, (), False
        return acknowledged

    def current(self, who: Who, number: int) -> bool:
        """Return whether a waiting get is still the last one of its session."""
        # The session itself is gone once a newer incarnation of the rank has asked (`register`).
        session = self.sessions.get(who.session)
        return session is not None and session.last_get == number and not self.past(who)

    def answer(self, who: Who) -> tuple[int, ...] | None:
        """Return the items of a session's last get, or None while it has no answer."""
        session = self.sessions[who.session]
        # An empty tuple is an answer too: that of a queue which is closed and empty.
        return session.ids if session.answered else None

    @contextmanager
    def counted_as_waiting(self, count: int) -> Generator[None]:
        """Count a waiting get of `count` items for the duration of the context, for `refused`."""
        self.counts.append(count)
        try:
            yield
        # Also when the get times out: a count that stayed behind would let puts exceed the bound of bytes.
        finally:
            self.counts.remove(count)

    def choose(
        self, caller: Who, count: int, only: Collection[int] | None = None, anybody: Collection[int] = ()
    ) -> Collection[int] | None:
        """Return the items that a get may take so that a bad one is found: `only` itself unless deliveries have failed.

        A failed item goes to another rank than the last one, where another asks the queue, unless it is one for
        `anybody`; and a batch has one of them at most, if it can be filled with others.
        """
        if self.failed.keys().isdisjoint(self.sizes):
            return only
        others = any(session.last_get and session.rank != caller.rank for session in self.sessions.values())
        avoided = [number for number, item in self.failed.items() if item.rank == caller.rank] if others else []
        barred = frozenset(avoided).difference(anybody)
        waiting = sorted(number for number in self.waiting if only is None or number in only)
        allowed = [number for number in waiting if number not in barred]
        suspects = [number for number in allowed if number in self.failed]
        fresh = [number for number in allowed if number not in self.failed]
        batch = (*suspects[:1], *fresh)
        return frozenset(batch if len(batch) >= count else allowed)

    def ready(self, count: int, only: Collection[int] | None = None) -> bool:
        """Return whether a get of `count` items can be answered: enough items wait, or the queue is closed.

        `only`: the items that the caller may get; None: all.
        """
        if only is not None:
            available = sum(number in only for number in self.waiting)
            return available >= count or (self.closed and available == len(self.waiting))
        # Nothing is put into a closed queue, so `count` items might never come together.
        return self.closed or len(self.waiting) >= count

    def take(self, who: Who, count: int, only: Collection[int] | None = None) -> tuple[int, ...]:
        """Hand a session the first waiting items; fewer than `count` from a closed queue, none once it is empty."""
        session = self.sessions[who.session]
        if only is None:
            session.ids = tuple(heapq.heappop(self.waiting) for _ in range(min(count, len(self.waiting))))
        else:
            session.ids = tuple(sorted(number for number in self.waiting if number in only)[:count])
            handed_out = frozenset(session.ids)
            self.waiting = [number for number in self.waiting if number not in handed_out]
            heapq.heapify(self.waiting)
        session.answered = True
        # The sizes stay until the items are acknowledged: a returned item adds its bytes again.
        self.bytes -= sum(self.sizes[number] for number in session.ids)
        return session.ids

    # -- going back

    def restore(self, sizes: Mapping[int, int], keys: Mapping[str, int], *, closed: bool) -> None:
        """Go back to the items of a cut. Numbers of items and puts go on, so that no late request is taken for another.

        Nothing is handed out any more: what a session got before is of the past.
        """
        # What was set aside stays so, also where its item is put again.
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

    def _requeue(self, ids: Iterable[int]) -> None:
        for number in ids:
            heapq.heappush(self.waiting, number)
            self.bytes += self.sizes[number]

    # -- as data

    def dumped(self) -> dict[str, Any]:
        """Return the state as JSON's own types, for `loaded`."""
        # As pairs: keys of a JSON object are texts, and the item numbers would come back as such.
        tables = {name: list(getattr(self, name).items()) for name in ("sizes", "item_keys")}
        items = {name: [asdict(item) for item in getattr(self, name).values()] for name in ("failed", "dead")}
        data = asdict(self) | tables | items | {"keys": list(self.keys)}
        # The waiting gets are not part of the state: their callers repeat them to a restarted queue.
        del data["counts"]
        return data

    @classmethod
    def loaded(cls, data: Mapping[str, Any]) -> Backlog:
        """Rebuild the state from the data of `dumped`."""
        sessions = {name: ThreadSession(**session) for name, session in data["sessions"].items()}
        for session in sessions.values():
            # JSON knows no tuples, which the items of a get are.
            session.ids = tuple(session.ids)
        tables = {name: dict(data[name]) for name in ("sizes", "item_keys")}
        items = {name: {item["number"]: FailedItem(**item) for item in data[name]} for name in ("failed", "dead")}
        returned = {rank: (incarnation, tuple(numbers)) for rank, (incarnation, numbers) in data["returned"].items()}
        keys = dict.fromkeys(data["keys"])
        rebuilt: dict[str, Any] = {**data, **tables, **items, "returned": returned, "sessions": sessions, "keys": keys}
        return cls(**rebuilt)
