"""The copies that a saver holds of one process of a rank: which are on disk, which failed, which a peer has."""

from __future__ import annotations

import os
import select
import threading
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dljob.master.state.checkpoint_ids import CheckpointId
from dljob.runtime.checkpoint.model import CheckpointLocation
from dljob.runtime.checkpoint.slot import WHOLE, WRITING, CopyHeader, Slot


@dataclass(eq=False, slots=True)
class Holding:
    """One process of a rank. `busy`: numbers of the slots that are being written to disk."""

    place: CheckpointLocation
    slots: list[Slot] = field(default_factory=list[Slot])
    alive: bool = True
    process: int = -1
    """Its pidfd while it is served; -1 otherwise.

    A request to flush dead ranks may come before the socket tells the death.
    """
    busy: set[int] = field(default_factory=set[int])
    failed: str = ""
    """Why the last save did not reach the disk."""
    fenced: str = ""
    """Why no save of this process counts any more."""
    ended_at: float = 0.0
    unreported_positions: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The data positions done before its saves that PrimeMaster does not know of yet."""
    is_peer_copy: bool = False
    """Whether it is kept for another node, which has the same copy while it lives."""
    peer_marks: dict[int, CheckpointId] = field(default_factory=dict[int, CheckpointId])
    """The checkpoints of which a peer node has a copy, by the order of their saves."""
    offered: int = 0
    """The order of the last save that was offered to a peer node."""
    turn: int = 0
    """The number of that offer, among all of this saver."""
    restored: CheckpointId | None = None
    """The checkpoint that its process was told to restore; None: it has not loaded, or found none."""
    report_lock: threading.Lock = field(default_factory=threading.Lock)

    def ended(self) -> bool:
        """Return whether its process has left, or is dead although the socket has not told so yet."""
        if not self.alive or self.process < 0:
            return not self.alive
        poll = select.poll()
        poll.register(self.process, select.POLLIN)
        return bool(poll.poll(0))

    def whole_copies(self) -> list[tuple[int, CopyHeader]]:
        """List the slots that hold a whole copy, newest first."""
        heads = ((number, slot.head) for number, slot in enumerate(self.slots))
        return sorted(((n, h) for n, h in heads if h and h.state == WHOLE), key=lambda nh: -nh[1].order)

    def unsaved_copies(self, *, all_of_it: bool) -> list[tuple[int, CopyHeader]]:
        """List the whole copies that belong on disk and are not there, oldest first."""
        copies = [(n, h) for n, h in self.whole_copies() if h.order != self.slots[n].saved and (h.persist or all_of_it)]
        return [] if self.fenced else copies[::-1]

    def writing(self) -> bool:
        """Return whether its process is copying just now."""
        return not self.ended() and any(head.state == WRITING for slot in self.slots if (head := slot.head))

    def holds(self, mark: CheckpointId) -> int | None:
        """Return the slot with that checkpoint; None if this process does not hold it."""
        return next((n for n, h in self.whole_copies() if h.mark == mark), None)

    def replace(self, fds: list[int]) -> None:
        """Map other memory instead of the present one."""
        self.drop()
        self.slots = [Slot(fd) for fd in fds]

    def set_aside(self, now: float) -> Holding:
        """Return the memory as a holding of its own, like that of a dead process: the process goes on in other memory.

        Copies in it that are not on disk are not lost with it.
        """
        aside = Holding(self.place, self.slots, alive=False, ended_at=now, peer_marks=self.peer_marks)
        aside.offered, aside.turn = self.offered, self.turn
        # Shared: the data positions of its saves must be known before a copy that was set aside counts, too (ADR 28).
        aside.unreported_positions, aside.report_lock = self.unreported_positions, self.report_lock
        self.slots, self.peer_marks = [], {}
        return aside

    def drop(self) -> None:
        """Release the memory."""
        for slot in self.slots:
            slot.close()
        self.slots = []


def newest_whole_mark(holdings: Iterable[Holding]) -> CheckpointId | None:
    """Return the newest checkpoint of which living processes hold the parts of all ranks; None without one."""
    saved_ranks = defaultdict[tuple[CheckpointId, int], set[int]](set)
    for holding in holdings:
        for _, head in holding.whole_copies() if holding.alive and not holding.fenced else ():
            saved_ranks[head.mark, head.world].add(head.rank)
    return max((mark for (mark, world), ranks in saved_ranks.items() if len(ranks) == world), default=None)


def dup(slot: Slot) -> int:
    """Return a new descriptor of the memory, for another owner."""
    return os.dup(slot.fd)
