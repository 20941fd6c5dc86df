"""What a queue holds, and whom it gave what: the whole of `DataQueue` but for the bytes of the items and the waiting.

Each thread that puts or gets is a line of a rank. A get says which answer its line has seen: what was seen is done
with, and what was not goes back to the front. So an answer that is lost on its way loses no item, and doubles none.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """Why an item is not taken in."""

    AGAIN = "again"
    """It is in already: the same put was sent twice."""
    FULL = "full"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Who:
    """Who asks: a line of a rank, as in `rollout/1`, in one of its incarnations."""

    rank: str
    life: int
    line: str


@dataclass(slots=True)
class Line:
    """What the queue knows of one thread that puts or gets."""

    rank: str
    put: int = 0
    """The last put that was taken in."""
    turn: int = 0
    """The last get that was heard."""
    answered: bool = False
    ids: tuple[int, ...] = ()
    """What it was given for that get."""


@dataclass(slots=True)
class Backlog:
    """The items by number, in the order in which they came; bounds count those that nobody has been given yet."""

    max_items: int
    max_bytes: int
    closed: bool = False
    next: int = 1
    bytes: int = 0
    """Of the items that wait."""
    sizes: dict[int, int] = field(default_factory=dict[int, int])
    """Of all items, those that a line holds too."""
    waiting: list[int] = field(default_factory=list[int])
    """A heap: what goes back is in front of what came after it."""
    lives: dict[str, int] = field(default_factory=dict[str, int])
    lines: dict[str, Line] = field(default_factory=dict[str, Line])
    counts: list[int] = field(default_factory=list[int], compare=False)
    """How many items the gets that wait now want, each; they ask a successor again."""

    # -- who asks

    def meet(self, who: Who) -> bool:
        """Whether a rank may ask; the first word of its later process gives back what the one before had not done."""
        known = self.lives.get(who.rank, 0)
        if self.past(who):
            return False
        if who.life > known:
            self.lives[who.rank] = who.life
            for line in [name for name, one in self.lines.items() if one.rank == who.rank]:
                self._give_back(self.lines.pop(line).ids)
        self.lines.setdefault(who.line, Line(who.rank))
        return True

    def past(self, who: Who) -> bool:
        """Whether a later process of its rank has asked meanwhile."""
        return self.lives.get(who.rank, 0) > who.life

    # -- putting

    def refused(self, who: Who, put: int, size: int) -> Verdict | None:
        """Why an item of `size` bytes is not taken in now; None: it is. An empty queue takes any one item.

        Bytes keep none out that a get waits for: it would wait for this put, and this put for it.
        """
        if put <= self.lines[who.line].put:
            return Verdict.AGAIN
        if self.closed:
            return Verdict.CLOSED
        there = len(self.waiting)
        heavy = self.bytes + size > self.max_bytes and there >= min(self.counts, default=0)
        return Verdict.FULL if there and (there >= self.max_items or heavy) else None

    def put(self, who: Who, put: int, size: int) -> int:
        """Take an item in; its number."""
        number, self.next = self.next, self.next + 1
        self.lines[who.line].put = put
        self.sizes[number] = size
        self._give_back((number,))
        return number

    def close(self) -> None:
        """Take no more in; what is there may be got."""
        self.closed = True

    # -- getting

    def heard(self, who: Who, turn: int, seen: int, bad: Collection[int] = ()) -> tuple[int, ...] | None:
        """Begin a get: the items that are done with now; None for a get that a later one has overtaken.

        `seen` is the last get whose answer has arrived; `bad`: which of its items could not be read, counted from 0.
        Where there are such, they alone are done with, and the others go back.
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
        """Whether a get that waits is still the last of its line."""
        line = self.lines.get(who.line)
        return line is not None and line.turn == turn and not self.past(who)

    def answer(self, who: Who) -> tuple[int, ...] | None:
        """What the last get of a line was given; None: nothing yet."""
        line = self.lines[who.line]
        return line.ids if line.answered else None

    @contextmanager
    def wanted(self, count: int) -> Generator[None]:
        """While a get of so many items waits."""
        self.counts.append(count)
        try:
            yield
        finally:
            self.counts.remove(count)

    def ready(self, count: int) -> bool:
        """Whether a get of so many items need not wait: they are there, or no more will come."""
        return self.closed or len(self.waiting) >= count

    def take(self, who: Who, count: int) -> tuple[int, ...]:
        """Give a line the first items that wait; fewer than `count` when it is closed, none at its end."""
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
        """All of it as JSON's own types."""
        data = asdict(self) | {"sizes": list(self.sizes.items())}
        del data["counts"]
        return data

    @classmethod
    def loaded(cls, data: Mapping[str, Any]) -> Backlog:
        """What `dumped` made."""
        lines = {name: Line(**line) for name, line in data["lines"].items()}
        for line in lines.values():
            line.ids = tuple(line.ids)
        rebuilt: dict[str, Any] = {**data, "sizes": dict(data["sizes"]), "lines": lines}
        return cls(**rebuilt)
