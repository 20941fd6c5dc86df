"""Decisions of a stream that resumes: which items are new, where it resumes after a loss, and when it is given up."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple

from typing_extensions import TypeVar

VERSION_ARG = ":wanted"
"""Name of the argument by which a callee is asked for a version and a code; it never reaches the method."""
HANDED_OVER_ARG = ":handed over"
"""Name of the argument with the state that the previous callee handed over; it never reaches the method."""
STATE_ARG = "state"
"""Name of the keyword parameter by which a method of `@rpc(hand_over=...)` gets that state, or None."""
RECEIVED_ARG = "received"
"""Name of the keyword parameter by which a method of `@rpc(resume="prefix")` gets the items that came before."""
POISON_DEATHS = 3
"""Number of callees that die in a row, with the stream no further, from which its request counts as their cause."""
ANY_RANK_DISPATCHES = ("round_robin", "least_loaded")
"""Dispatches that mean no particular rank: a lost stream resumes at another. All others name the rank that serves."""


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
    """The end of a stream at one callee before the stream was complete."""

    rank: int
    incarnation: int
    """0 where it is not known."""
    position: int
    """Number of items that had come by then."""
    died: bool
    """Whether the callee's process died; false where it ended by order."""
    opened: bool
    """Whether the callee had opened the stream; otherwise it may have been dead before it was asked."""
    reason: str


class CalleeRank(NamedTuple):
    """A rank of the callee's role, as PrimeMaster sees it."""

    rank: int
    incarnation: int
    ready: bool
    is_gone: bool
    """Whether it left its role for good."""


class ResumePlace(NamedTuple):
    """Where a stream resumes: at a rank, in an incarnation above `after_incarnation`."""

    rank: int
    after_incarnation: int


class GapError(Exception):
    """Items are missing between those that came and those that arrive now."""


@dataclass(slots=True)
class StreamProgress(Generic[Item]):
    """The items of a stream that have come, the callees that made them, and the losses so far."""

    received: list[Item] = field(default_factory=list[Item])
    segments: list[StreamSegment] = field(default_factory=list[StreamSegment])
    losses: list[CalleeLoss] = field(default_factory=list[CalleeLoss])

    @property
    def last_filled_segment(self) -> StreamSegment | None:
        """The segment of the last item; None before the first."""
        return next((segment for segment in reversed(self.segments) if segment.count), None)

    def begin_segment(self, callee: str, incarnation: int, code: str = "") -> None:
        """Note that a process has opened the stream."""
        self.segments.append(StreamSegment(callee, incarnation, {}, len(self.received), code=code))

    def items_of_one_version(self, items: Sequence[WireItem]) -> Sequence[WireItem]:
        """Return the items up to the first that has another version than the item before it."""
        if not items:
            return []
        version = items[0].version if self.last_filled_segment is None else self.last_filled_segment.version
        return list(itertools.takewhile(lambda item: item.version == version, items))

    def add_items(self: StreamProgress[bytes], items: Sequence[WireItem]) -> list[WireItem]:
        """Add items; returns those that are new.

        Raises:
            GapError: items before these are missing; none of these items is added.
        """
        new_items = [item for item in items if item.position >= len(self.received)]
        for position, item in enumerate(new_items, len(self.received)):
            if item.position != position:
                raise GapError(f"item {item.position} came where item {position} was due")
        for item in new_items:
            self.received.append(item.packed)
            self._add_to_segment(item.version, item.position, 1)
        return new_items

    def add_unnumbered_items(self, items: Sequence[Item], version: Any) -> None:
        """Add items of a callee that sends no positions: it was given the items before them as its prefix."""
        position = len(self.received)
        self.received += items
        self._add_to_segment(version, position, len(items))

    def _add_to_segment(self, version: Any, position: int, count: int) -> None:
        segment = self.segments[-1]
        if not segment.count:
            segment = replace(segment, version=version)
        elif segment.version != version:
            segment = replace(segment, version=version, first=position, count=0)
            self.segments.append(segment)
        self.segments[-1] = replace(segment, count=segment.count + count)

    def poison_deaths(self, window: int) -> tuple[CalleeLoss, ...]:
        """Return the deaths that the request itself seems to cause; empty where there are too few.

        `window` is the number of items that may be under way. Deaths count in a row at which the stream came no further
        than that: a callee that got further was not killed by the same item. Callees that had not opened the stream
        count half: those of a machine that died are found dead one after the other, and a request that kills at once
        leaves no time for an answer.
        """
        deaths: dict[tuple[int, int], CalleeLoss] = {}
        for loss in reversed(self.losses):
            if not loss.died or self.losses[-1].position - loss.position > max(1, window):
                break
            deaths[loss.rank, loss.incarnation] = loss
        weight = sum(1 if loss.opened else 0.5 for loss in deaths.values())
        return tuple(reversed(deaths.values())) if weight >= POISON_DEATHS else ()


def choose_callee(
    callees: Sequence[CalleeRank],
    losses: Sequence[CalleeLoss],
    in_flight: Mapping[int, int],
    turn: int,
    refused_ranks: Collection[int] = (),
) -> ResumePlace | None:
    """Return where a stream resumes that any rank may serve; None when there is no such rank.

    A ready rank that has not lost it yet, the one with the fewest calls `in_flight`, of several the next one in `turn`;
    else, unless some refused it, the next incarnation of the rank that lost it last.
    """
    lost_incarnations: dict[int, int] = {}
    for loss in losses:
        lost_incarnations[loss.rank] = max(loss.incarnation, lost_incarnations.get(loss.rank, 0))
    remaining_callees = {callee.rank: callee for callee in callees if not callee.is_gone}
    # A rank that lost it in an unknown incarnation (0) may still look ready: it is asked only when there is no other.
    ready_ranks = [
        rank
        for rank, callee in remaining_callees.items()
        if callee.ready
        and rank not in refused_ranks
        and (rank not in lost_incarnations or 0 < lost_incarnations[rank] < callee.incarnation)
    ]
    if ready_ranks:
        first = turn % len(ready_ranks)
        rank = min(ready_ranks[first:] + ready_ranks[:first], key=lambda rank: in_flight.get(rank, 0))
        return ResumePlace(rank, lost_incarnations.get(rank, 0))
    # Not to wait for one rank: those that refused it, or another one, may have the version earlier.
    if refused_ranks or not remaining_callees:
        return None
    last_ranks = (loss.rank for loss in reversed(losses) if loss.rank in remaining_callees)
    rank = next(last_ranks, next(iter(remaining_callees)))
    return ResumePlace(rank, lost_incarnations.get(rank, 0))
