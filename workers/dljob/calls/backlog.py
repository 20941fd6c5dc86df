"""State of a `DataQueue`: item numbers, sizes and the items each consumer holds, without the items' bytes or waiting.

Each thread that puts or gets has a session (`line`). A get names the last answer that its session received: items of
that answer are acknowledged, items of an answer that was not received return to the front. So a lost answer neither
loses nor duplicates an item.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
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
    """The caller of a queue: a rank such as `rollout/1`, its incarnation (`life`), and the session of its thread."""

    rank: str
    life: int
    line: str


@dataclass(slots=True)
class ThreadSession:
    """The queue's record of one thread that puts or gets."""

    rank: str
    put: int = 0
    """Number of the last accepted put."""
    turn: int = 0
    """Number of the last get that arrived."""
    answered: bool = False
    ids: tuple[int, ...] = ()
    """Items handed out for that get and not yet acknowledged."""


KEYS = 65_536
"""Keys of items that a queue remembers, the newest ones."""


@dataclass(slots=True)
class Backlog:
    """The items by number, in the order of their puts; the bounds count only waiting items, not those handed out."""

    max_items: int
    max_bytes: int
    closed: bool = False
    next: int = 1
    bytes: int = 0
    """Bytes of the waiting items."""
    sizes: dict[int, int] = field(default_factory=dict[int, int])
    """Item -> bytes, of waiting items and of those handed out."""
    waiting: list[int] = field(default_factory=list[int])
    """Heap of item numbers: a returned item comes before items that were put after it."""
    lives: dict[str, int] = field(default_factory=dict[str, int])
    lines: dict[str, ThreadSession] = field(default_factory=dict[str, ThreadSession])
    keys: dict[str, None] = field(default_factory=dict[str, None])
    """Keys of the last items, the oldest first: another item with one of them is not accepted."""
    counts: list[int] = field(default_factory=list[int], compare=False)
    """Number of items that each waiting get wants. Not persisted: callers repeat their gets to a restarted queue."""

    # -- who asks

    def meet(self, who: Who) -> bool:
        """Register a caller; False for an older incarnation of its rank.

        The first request of a newer incarnation returns the unacknowledged items of the one before it to the queue.
        """
        known = self.lives.get(who.rank, 0)
        # A process that was replaced may still send: items handed to it would be lost.
        if self.past(who):
            return False
        if who.life > known:
            self.lives[who.rank] = who.life
            # Sessions belong to threads, and those of the older process are gone: none will acknowledge their items.
            for line in [name for name, one in self.lines.items() if one.rank == who.rank]:
                self._requeue(self.lines.pop(line).ids)
        self.lines.setdefault(who.line, ThreadSession(who.rank))
        return True

    def past(self, who: Who) -> bool:
        """Return whether a newer incarnation of the caller's rank has sent a request."""
        return self.lives.get(who.rank, 0) > who.life

    # -- putting

    def refused(self, who: Who, put: int, size: int, key: str = "") -> PutRefusal | None:
        """Return why an item of `size` bytes is refused now, or None. An empty queue accepts one item of any size.

        The bound of bytes does not refuse an item that a get waits for: the get would wait for this put, and the put
        for the get (a deadlock).
        """
        # Before the other checks: a repeat of an accepted put succeeds even if the queue is full or closed by now.
        if put <= self.lines[who.line].put:
            return PutRefusal.AGAIN
        if key and key in self.keys:
            return PutRefusal.KNOWN
        if self.closed:
            return PutRefusal.CLOSED
        there = len(self.waiting)
        # While fewer items wait than the smallest waiting get wants, no get can be answered without this put.
        heavy = self.bytes + size > self.max_bytes and there >= min(self.counts, default=0)
        # `there`: without the exception for an empty queue, an item above `max_bytes` could never be put.
        return PutRefusal.FULL if there and (there >= self.max_items or heavy) else None

    def put(self, who: Who, put: int, size: int, key: str = "") -> int:
        """Add an item, and return its number."""
        number, self.next = self.next, self.next + 1
        # By this number `refused` recognizes a repeat of the put.
        self.lines[who.line].put = put
        self.sizes[number] = size
        self._requeue((number,))
        if key:
            self.keys[key] = None
            if len(self.keys) > KEYS:
                del self.keys[next(iter(self.keys))]
        return number

    def close(self) -> None:
        """Refuse further puts; gets still receive the items that remain."""
        self.closed = True

    # -- getting

    def begin_get(self, who: Who, turn: int, seen: int, bad: Collection[int] = ()) -> tuple[int, ...] | None:
        """Begin a get, and return the items that it acknowledges; None for a get that a later one has overtaken.

        `seen` is the last get whose answer the caller received; `bad` are the indices of its items that could not be
        read. If there are any, these alone are dropped, and the other items return to the queue.
        """
        line = self.lines[who.line]
        # An equal turn is the same get again: its items stay in the session, and `answer` repeats them.
        # A lower one is a late copy, whose caller has sent another get since.
        if turn <= line.turn:
            return () if turn == line.turn else None
        # An older `seen` means that the last answer was lost on its way: nothing of it is acknowledged.
        held = line.ids if seen == line.turn else ()
        # The indices come from the caller, so one may be out of range.
        done = tuple(held[at] for at in bad if at < len(held)) if bad else held
        self._requeue(set(line.ids).difference(done))
        # Only acknowledged items lose their size: `_requeue` needs it for the others.
        for number in done:
            del self.sizes[number]
        line.turn, line.ids, line.answered = turn, (), False
        return done

    def current(self, who: Who, turn: int) -> bool:
        """Return whether a waiting get is still the last one of its session."""
        # The session itself is gone once a newer incarnation of the rank has asked (`meet`).
        line = self.lines.get(who.line)
        return line is not None and line.turn == turn and not self.past(who)

    def answer(self, who: Who) -> tuple[int, ...] | None:
        """Return the items of a session's last get, or None while it has no answer."""
        line = self.lines[who.line]
        # An empty tuple is an answer too: that of a queue which is closed and empty.
        return line.ids if line.answered else None

    @contextmanager
    def counted_as_waiting(self, count: int) -> Generator[None]:
        """Count a waiting get of `count` items for the duration of the context, for `refused`."""
        self.counts.append(count)
        try:
            yield
        # Also when the get times out: a count that stayed behind would let puts exceed the bound of bytes.
        finally:
            self.counts.remove(count)

    def ready(self, count: int, only: Collection[int] | None = None) -> bool:
        """Return whether a get of `count` items can be answered: enough items wait, or the queue is closed.

        `only`: the items that the caller may get; None: all.
        """
        if only is not None:
            there = sum(number in only for number in self.waiting)
            return there >= count or (self.closed and there == len(self.waiting))
        # Nothing is put into a closed queue, so `count` items might never come together.
        return self.closed or len(self.waiting) >= count

    def take(self, who: Who, count: int, only: Collection[int] | None = None) -> tuple[int, ...]:
        """Hand a session the first waiting items; fewer than `count` from a closed queue, none once it is empty."""
        line = self.lines[who.line]
        if only is None:
            line.ids = tuple(heapq.heappop(self.waiting) for _ in range(min(count, len(self.waiting))))
        else:
            line.ids = tuple(sorted(number for number in self.waiting if number in only)[:count])
            gone = frozenset(line.ids)
            self.waiting = [number for number in self.waiting if number not in gone]
            heapq.heapify(self.waiting)
        line.answered = True
        # The sizes stay until the items are acknowledged: a returned item adds its bytes again.
        self.bytes -= sum(self.sizes[number] for number in line.ids)
        return line.ids

    # -- going back

    def restore(self, sizes: Mapping[int, int], keys: Iterable[str], *, closed: bool) -> None:
        """Go back to the items of a cut. Numbers of items and puts go on, so that no late request is taken for another.

        Nothing is handed out any more: what a session got before is of the past.
        """
        self.sizes, self.waiting, self.bytes = dict(sizes), [], 0
        self._requeue(sizes)
        self.keys, self.closed = dict.fromkeys(keys), closed
        for line in self.lines.values():
            line.ids, line.answered = (), False

    def _requeue(self, ids: Iterable[int]) -> None:
        for number in ids:
            heapq.heappush(self.waiting, number)
            self.bytes += self.sizes[number]

    # -- as data

    def dumped(self) -> dict[str, Any]:
        """Return the state as JSON's own types, for `loaded`."""
        # As pairs: keys of a JSON object are texts, and the item numbers would come back as such.
        data = asdict(self) | {"sizes": list(self.sizes.items()), "keys": list(self.keys)}
        # The waiting gets are not part of the state: their callers repeat them to a restarted queue.
        del data["counts"]
        return data

    @classmethod
    def loaded(cls, data: Mapping[str, Any]) -> Backlog:
        """Rebuild the state from the data of `dumped`."""
        lines = {name: ThreadSession(**line) for name, line in data["lines"].items()}
        for line in lines.values():
            # JSON knows no tuples, which the items of a get are.
            line.ids = tuple(line.ids)
        keys = dict.fromkeys(data.get("keys", ()))
        rebuilt: dict[str, Any] = {**data, "sizes": dict(data["sizes"]), "lines": lines, "keys": keys}
        return cls(**rebuilt)
