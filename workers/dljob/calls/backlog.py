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
    counts: list[int] = field(default_factory=list[int], compare=False)
    """Number of items that each waiting get wants. Not persisted: callers repeat their gets to a restarted queue."""

    # -- who asks

    def meet(self, who: Who) -> bool:
        """Register a caller; False for an older incarnation of its rank.

        The first request of a newer incarnation returns the unacknowledged items of the one before it to the queue.
        """
        known = self.lives.get(who.rank, 0)
        if self.past(who):
            return False
        if who.life > known:
            self.lives[who.rank] = who.life
            for line in [name for name, one in self.lines.items() if one.rank == who.rank]:
                self._give_back(self.lines.pop(line).ids)
        self.lines.setdefault(who.line, ThreadSession(who.rank))
        return True

    def past(self, who: Who) -> bool:
        """Return whether a newer incarnation of the caller's rank has sent a request."""
        return self.lives.get(who.rank, 0) > who.life

    # -- putting

    def refused(self, who: Who, put: int, size: int) -> PutRefusal | None:
        """Return why an item of `size` bytes is refused now, or None. An empty queue accepts one item of any size.

        The bound of bytes does not refuse an item that a get waits for: the get would wait for this put, and the put
        for the get (a deadlock).
        """
        if put <= self.lines[who.line].put:
            return PutRefusal.AGAIN
        if self.closed:
            return PutRefusal.CLOSED
        there = len(self.waiting)
        heavy = self.bytes + size > self.max_bytes and there >= min(self.counts, default=0)
        return PutRefusal.FULL if there and (there >= self.max_items or heavy) else None

    def put(self, who: Who, put: int, size: int) -> int:
        """Add an item, and return its number."""
        number, self.next = self.next, self.next + 1
        self.lines[who.line].put = put
        self.sizes[number] = size
        self._give_back((number,))
        return number

    def close(self) -> None:
        """Refuse further puts; gets still receive the items that remain."""
        self.closed = True

    # -- getting

    def heard(self, who: Who, turn: int, seen: int, bad: Collection[int] = ()) -> tuple[int, ...] | None:
        """Begin a get, and return the items that it acknowledges; None for a get that a later one has overtaken.

        `seen` is the last get whose answer the caller received; `bad` are the indices of its items that could not be
        read. If there are any, these alone are dropped, and the other items return to the queue.
        """
        line = self.lines[who.line]
        if turn <= line.turn:
            return () if turn == line.turn else None
        held = line.ids if seen == line.turn else ()
        done = tuple(held[at] for at in bad if at < len(held)) if bad else held
        self._give_back(set(line.ids).difference(done))
        for number in done:
            del self.sizes[number]
        line.turn, line.ids, line.answered = turn, (), False
        return done

    def current(self, who: Who, turn: int) -> bool:
        """Return whether a waiting get is still the last one of its session."""
        line = self.lines.get(who.line)
        return line is not None and line.turn == turn and not self.past(who)

    def answer(self, who: Who) -> tuple[int, ...] | None:
        """Return the items of a session's last get, or None while it has no answer."""
        line = self.lines[who.line]
        return line.ids if line.answered else None

    @contextmanager
    def wanted(self, count: int) -> Generator[None]:
        """Count a waiting get of `count` items for the duration of the context, for `refused`."""
        self.counts.append(count)
        try:
            yield
        finally:
            self.counts.remove(count)

    def ready(self, count: int) -> bool:
        """Return whether a get of `count` items can be answered: enough items wait, or the queue is closed."""
        return self.closed or len(self.waiting) >= count

    def take(self, who: Who, count: int) -> tuple[int, ...]:
        """Hand a session the first waiting items; fewer than `count` from a closed queue, none once it is empty."""
        line = self.lines[who.line]
        line.ids = tuple(heapq.heappop(self.waiting) for _ in range(min(count, len(self.waiting))))
        line.answered = True
        self.bytes -= sum(self.sizes[number] for number in line.ids)
        return line.ids

    def _give_back(self, ids: Iterable[int]) -> None:
        for number in ids:
            heapq.heappush(self.waiting, number)
            self.bytes += self.sizes[number]

    # -- as data

    def dumped(self) -> dict[str, Any]:
        """Return the state as JSON's own types, for `loaded`."""
        data = asdict(self) | {"sizes": list(self.sizes.items())}
        del data["counts"]
        return data

    @classmethod
    def loaded(cls, data: Mapping[str, Any]) -> Backlog:
        """Rebuild the state from the data of `dumped`."""
        lines = {name: ThreadSession(**line) for name, line in data["lines"].items()}
        for line in lines.values():
            line.ids = tuple(line.ids)
        rebuilt: dict[str, Any] = {**data, "sizes": dict(data["sizes"]), "lines": lines}
        return cls(**rebuilt)
