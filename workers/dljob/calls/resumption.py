"""Decisions of a stream that resumes: which items are new, where a lost one goes on, and when it is given up."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple

from typing_extensions import TypeVar

WANTED = ":wanted"
"""Name of the argument by which a callee is asked for a version and a code; it never reaches the method."""
HANDED_OVER = ":handed over"
"""Name of the argument with the state that the callee before handed over; it never reaches the method."""
STATE = "state"
"""Name of the keyword parameter by which a method of `@rpc(hand_over=...)` gets that state, or None."""
RECEIVED = "received"
"""Name of the keyword parameter by which a method of `@rpc(resume="prefix")` gets the items that came before."""
POISONED = 3
"""Number of callees that die in a row, with the stream no further, from which its request counts as their cause."""
FREE = ("round_robin", "least_loaded")
"""Dispatches that mean no particular rank: a lost stream goes on at another. All others name the rank that serves."""


Item = TypeVar("Item", default=bytes)
"""What a stream's items are to its caller: pickled values of a method, or the token ids of an HTTP server."""


class WireItem(NamedTuple):
    """An item on its way: its position in the whole stream, the version that made it, the pickled value."""

    position: int
    version: Any
    packed: bytes


@dataclass(frozen=True, slots=True)
class StreamSegment:
    """A part of a stream that one process made with one version."""

    callee: str
    """The rank, as in "rollout/1"."""
    incarnation: int
    version: Any
    """Version of each weight channel that the callee held, empty where it holds none; or its own `weights_version`."""
    first: int
    """Position of its first item."""
    count: int = 0
    code: str = ""
    """Digest of the code of the callee's class."""


@dataclass(frozen=True, slots=True)
class CalleeLoss:
    """The end of a stream at one callee, before the stream was over."""

    rank: int
    incarnation: int
    """0 where it is not known."""
    position: int
    """Number of items that had come by then."""
    died: bool
    """Whether the callee's process died; false where it ended by order."""
    opened: bool
    """Whether the callee had taken the stream up; otherwise it may have been dead before the stream came."""
    why: str


class CalleeRank(NamedTuple):
    """A rank of the callee's role, as PrimeMaster sees it."""

    rank: int
    incarnation: int
    ready: bool
    gone: bool


class ResumePlace(NamedTuple):
    """Where a stream goes on: a rank, in an incarnation above `after`."""

    rank: int
    after: int


class GapError(Exception):
    """Items are missing between those that came and those that arrive now."""


@dataclass(slots=True)
class StreamProgress(Generic[Item]):
    """What came of one request of a stream, and from whom."""

    received: list[Item] = field(default_factory=list[Item])
    segments: list[StreamSegment] = field(default_factory=list[StreamSegment])
    losses: list[CalleeLoss] = field(default_factory=list[CalleeLoss])

    @property
    def made_by(self) -> StreamSegment | None:
        """The segment of the last item; None before the first."""
        return next((segment for segment in reversed(self.segments) if segment.count), None)

    def begin(self, callee: str, incarnation: int, code: str = "") -> None:
        """Note that a process has taken the stream up."""
        self.segments.append(StreamSegment(callee, incarnation, {}, len(self.received), code=code))

    def of_one_version(self, items: Sequence[WireItem]) -> Sequence[WireItem]:
        """Return the items before the first of another version than the last one that came."""
        wanted = items[0].version if self.made_by is None and items else self.made_by and self.made_by.version
        return list(itertools.takewhile(lambda item: item.version == wanted, items))

    def take(self: StreamProgress[bytes], items: Sequence[WireItem]) -> list[WireItem]:
        """Add items; returns those that are new.

        Raises:
            GapError: the callee began behind the items that came; none of these items is taken.
        """
        new = [item for item in items if item.position >= len(self.received)]
        for number, item in enumerate(new, len(self.received)):
            if item.position != number:
                raise GapError(f"item {item.position} came where item {number} was due")
        for item in new:
            self.received.append(item.packed)
            self._add_to_segment(item.version, item.position, 1)
        return new

    def extend(self, items: Sequence[Item], version: Any) -> None:
        """Add items of a callee that sends no positions: it began behind the prefix that it was given."""
        position = len(self.received)
        self.received += items
        self._add_to_segment(version, position, len(items))

    def _add_to_segment(self, version: Any, position: int, count: int) -> None:
        last = self.segments[-1]
        if not last.count:
            last = replace(last, version=version)
        elif last.version != version:
            self.segments.append(last := replace(last, version=version, first=position, count=0))
        self.segments[-1] = replace(last, count=last.count + count)

    def poisoned(self, window: int) -> tuple[CalleeLoss, ...]:
        """Return the deaths that the request itself seems to cause; empty where there are too few.

        Deaths in a row at which the stream came no further than the items under way: a callee that got further was
        not killed by the same item. Callees that did not take the stream up count half: those of a machine that died
        are found dead one after the other, and a request that kills at once leaves no time for an answer.
        """
        deaths: dict[tuple[int, int], CalleeLoss] = {}
        for loss in reversed(self.losses):
            if not loss.died or self.losses[-1].position - loss.position > max(1, window):
                break
            deaths[loss.rank, loss.incarnation] = loss
        weight = sum(1 if loss.opened else 0.5 for loss in deaths.values())
        return tuple(reversed(deaths.values())) if weight >= POISONED else ()


def choose(
    callees: Sequence[CalleeRank],
    lost: Sequence[CalleeLoss],
    busy: Mapping[int, int],
    turn: int,
    refused: Collection[int] = (),
) -> ResumePlace | None:
    """Return where a stream goes on that any rank may serve; None when there is no such rank.

    A ready rank that has not lost it yet, the least loaded; else, unless some refused it, the next incarnation of the
    rank that lost it last.
    """
    highest: dict[int, int] = {}
    for loss in lost:
        highest[loss.rank] = max(loss.incarnation, highest.get(loss.rank, 0))
    there = [callee for callee in callees if not callee.gone]
    # A rank that lost it in an unknown incarnation may still look ready: it is asked only when there is no other.
    ready = [
        c
        for c in there
        if c.ready and c.rank not in refused and (c.rank not in highest or 0 < highest[c.rank] < c.incarnation)
    ]
    if ready:
        order = ready[turn % len(ready) :] + ready[: turn % len(ready)]
        best = min(order, key=lambda callee: busy.get(callee.rank, 0))
        return ResumePlace(best.rank, highest.get(best.rank, 0))
    # Not parked at one of them: whoever refused it, or another, may have what it asks for earlier.
    if refused:
        return None
    waits = next((loss.rank for loss in reversed(lost) if any(c.rank == loss.rank for c in there)), None)
    if waits is None:
        waits = there[0].rank if there else None
    return None if waits is None else ResumePlace(waits, highest.get(waits, 0))
