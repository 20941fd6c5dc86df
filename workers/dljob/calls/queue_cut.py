"""The part of a consistent cut that one queue holds: the items that wait again when the job goes back to the cut.

Each request carries a stamp, so a request and the marker of its sender cannot overtake each other: the queue places
every put and acknowledgement before or after the cut by its stamp, not by its arrival. A member, which is a rank with a
state, is after the cut from its save on; all other ranks are after it as soon as the first of them sends a stamp from
after the cut, or when the cut is sealed. A member that has not saved yet gets no item from after the cut: its state
would hold what the cut does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dljob.calls.backlog import Backlog, QueueCaller


class CutStamp(NamedTuple):
    """A request's place in the history of the job."""

    epoch: int = 0
    """The epoch in which the sender got its last item, from 1: a new one begins each time that the job goes back to a
    cut. 0: the sender has had no answer yet."""
    saved_cut: int = 0
    """The last cut in which the sender saved its state."""
    observed_cut: int = 0
    """The last cut from after which the sender has got an answer."""


@dataclass(slots=True)
class QueueCut:
    """One cut under way."""

    number: int
    """Number of the cut; a later one has a higher number."""
    members: Mapping[str, int]
    """Rank -> incarnation, of those that save a state in this cut."""
    item_sizes: dict[int, int]
    """Item -> bytes, of the items that wait after a restore."""
    keys: dict[str, int]
    """Key -> the item that has it; 0: the queue no longer has that item."""
    closed: bool
    saved_members: set[str] = field(default_factory=set[str])
    frozen: bool = False
    """Whether the requests of all ranks without a state belong after the cut."""

    @classmethod
    def from_backlog(cls, number: int, members: Mapping[str, int], backlog: Backlog) -> QueueCut:
        """Begin a cut of a queue: what waits in it, and what is handed out and not acknowledged."""
        keys = dict.fromkeys(backlog.keys, 0) | {key: item for item, key in backlog.item_keys.items()}
        return cls(number, dict(members), dict(backlog.sizes), keys, backlog.closed)

    def is_before(self, caller: QueueCaller, stamp: CutStamp) -> bool:
        """Return whether a request belongs before the cut; the first from after it freezes the cut."""
        if caller.rank in self.members:
            return stamp.saved_cut < self.number and caller.rank not in self.saved_members
        # A rank without a state may act on an answer from after the cut: then this request belongs after it, too.
        if max(stamp.saved_cut, stamp.observed_cut) >= self.number:
            self.frozen = True
        return not self.frozen

    def restricts_gets(self, caller: QueueCaller, stamp: CutStamp) -> bool:
        """Return whether a rank may only get items from before the cut: its state is still to be saved."""
        return caller.rank in self.members and self.is_before(caller, stamp)

    def mark_saved(self, caller: QueueCaller, cut_number: int, held_items: Iterable[int]) -> bool:
        """Note that a member has saved `held_items` in its state; False for another cut or process."""
        if cut_number != self.number or self.members.get(caller.rank) != caller.incarnation:
            return False
        if caller.rank not in self.saved_members:
            self.saved_members.add(caller.rank)
            self.drop_items(held_items)
        return True

    def put(self, item_number: int, size: int, key: str) -> None:
        """Add an item that was put before the cut."""
        self.item_sizes[item_number] = size
        if key:
            self.keys[key] = item_number

    def drop_items(self, item_numbers: Iterable[int]) -> None:
        """Drop items that were acknowledged before the cut."""
        for number in item_numbers:
            self.item_sizes.pop(number, None)

    def puts_receiver_after(self, item_numbers: Iterable[int]) -> bool:
        """Return whether a rank that receives these items is after the cut from then on."""
        return self.frozen or any(number not in self.item_sizes for number in item_numbers)

    def seal(self) -> None:
        """End the cut: no later request belongs before it. Members that sent no marker have never used this queue."""
        self.frozen = True
        self.saved_members.update(self.members)
