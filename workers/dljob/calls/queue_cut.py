"""The part of a consistent cut that one queue holds: the items that wait again when the job goes back to the cut.

Each request carries a stamp, so a request and the marker of its sender cannot overtake each other: the queue places
every put and acknowledgement before or after the cut by its stamp, not by its arrival. A rank with a state turns when
it saves; the others turn, all at once, when the first of them brings a stamp of after the cut, or when the cut is
sealed. Ranks that have not turned get no item of after the cut: their state would hold what the cut does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dljob.calls.backlog import Backlog, Who


class CutStamp(NamedTuple):
    """A request's place in the history of the job."""

    epoch: int = 0
    """The history in which the sender got its last item, from 1: the job begins another one each time that it goes back
    to a cut. 0: the sender has had no answer yet."""
    taken: int = 0
    """The last cut in which the sender saved its state."""
    seen: int = 0
    """The last cut after which an answer to the sender was given."""


@dataclass(slots=True)
class QueueCut:
    """One cut under way."""

    number: int
    members: Mapping[str, int]
    """Rank -> incarnation, of those that save a state in this cut."""
    left: dict[int, int]
    """Item -> bytes, of the items that wait after a restore."""
    keys: dict[str, int]
    """Key -> the item that has it; 0: it is not in the queue any more."""
    closed: bool
    turned: set[str] = field(default_factory=set[str])
    """The members that have saved."""
    frozen: bool = False
    """Whether the requests of all ranks without a state belong after the cut."""

    @classmethod
    def begun(cls, number: int, members: Mapping[str, int], backlog: Backlog) -> QueueCut:
        """Begin a cut of a queue: what waits in it, and what is handed out and not acknowledged."""
        keys = dict.fromkeys(backlog.keys, 0) | {key: item for item, key in backlog.item_keys.items()}
        return cls(number, dict(members), dict(backlog.sizes), keys, backlog.closed)

    def is_before(self, who: Who, stamp: CutStamp) -> bool:
        """Return whether a request belongs before the cut; one from after it may turn the ranks without a state."""
        if who.rank in self.members:
            return stamp.taken < self.number and who.rank not in self.turned
        # What a rank without a state has learned from after the cut may be the cause of this request.
        if max(stamp.taken, stamp.seen) >= self.number:
            self.frozen = True
        return not self.frozen

    def hides(self, who: Who, stamp: CutStamp) -> bool:
        """Return whether a rank may only get items of before the cut: its state is still to be saved."""
        return who.rank in self.members and self.is_before(who, stamp)

    def mark(self, who: Who, number: int, held: Iterable[int]) -> bool:
        """Turn a member; `held` are the items that it got and has in its state. False for another cut or process."""
        if number != self.number or self.members.get(who.rank) != who.incarnation:
            return False
        if who.rank not in self.turned:
            self.turned.add(who.rank)
            self.acknowledged(held)
        return True

    def put(self, number: int, size: int, key: str) -> None:
        """Add an item that was put before the cut."""
        self.left[number] = size
        if key:
            self.keys[key] = number

    def acknowledged(self, numbers: Iterable[int]) -> None:
        """Drop items that were acknowledged before the cut."""
        for number in numbers:
            self.left.pop(number, None)

    def taints(self, numbers: Iterable[int]) -> bool:
        """Return whether the receiver of these items is after the cut from now on."""
        return self.frozen or any(number not in self.left for number in numbers)

    def seal(self) -> None:
        """End the cut: nothing more belongs before it. Members that sent no marker have never used this queue."""
        self.frozen = True
        self.turned.update(self.members)
