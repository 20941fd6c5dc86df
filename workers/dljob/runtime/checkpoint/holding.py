"""What a saver holds of one rank's process: its copies in memory, what of them is on disk, what failed."""

from __future__ import annotations

import os
import select
import threading
from dataclasses import dataclass, field
from typing import Any

from dljob.master.marks import Mark
from dljob.runtime.checkpoint.model import Place
from dljob.runtime.checkpoint.slot import WHOLE, WRITING, Head, Slot


@dataclass(eq=False, slots=True)
class Holding:
    """One process of a rank. `busy`: numbers of the slots that are being saved."""

    place: Place
    slots: list[Slot] = field(default_factory=list[Slot])
    alive: bool = True
    process: int = -1
    """Its pidfd, while it is served: its death may be heard later than whoever asks for what dead ranks left."""
    busy: set[int] = field(default_factory=set[int])
    failed: str = ""
    """Why the last save did not reach the disk."""
    fenced: str = ""
    """Why nothing that this process saves counts any more."""
    ended_at: float = 0.0
    told: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """What the process did of data sets before its saves, and PrimeMaster has yet to hear."""
    kept: bool = False
    """Whether it is a copy of another node's, which it has itself as long as it is there."""
    there: dict[int, int] = field(default_factory=dict[int, int])
    """The steps of which a peer node has a copy, by the order of their saves."""
    offered: int = 0
    """The order of the last save that was offered to a peer node."""
    turn: int = 0
    """When that was, among all that this saver has offered."""
    telling: threading.Lock = field(default_factory=threading.Lock)

    def ended(self) -> bool:
        """Whether its process has left, or is dead and nobody has heard of it yet."""
        if not self.alive or self.process < 0:
            return not self.alive
        poll = select.poll()
        poll.register(self.process, select.POLLIN)
        return bool(poll.poll(0))

    def whole(self) -> list[tuple[int, Head]]:
        """The slots that hold a whole copy, newest first."""
        heads = ((number, slot.head) for number, slot in enumerate(self.slots))
        return sorted(((n, h) for n, h in heads if h and h.state == WHOLE), key=lambda nh: -nh[1].order)

    def unsaved(self, *, all_of_it: bool) -> list[tuple[int, Head]]:
        """Whole copies that are to go to disk and are not there, oldest first."""
        left = [(n, h) for n, h in self.whole() if h.order != self.slots[n].saved and (h.persist or all_of_it)]
        return [] if self.fenced else left[::-1]

    def writing(self) -> bool:
        """Whether its process copies just now."""
        return not self.ended() and any(head.state == WRITING for slot in self.slots if (head := slot.head))

    def holds(self, mark: Mark) -> int | None:
        """The slot with that step, if this life holds it."""
        if self.place.life != mark.life:
            return None
        return next((n for n, h in self.whole() if h.step == mark.step), None)

    def replace(self, fds: list[int]) -> None:
        """Take other memory."""
        self.drop()
        self.slots = [Slot(fd) for fd in fds]

    def drop(self) -> None:
        """Give the memory back."""
        for slot in self.slots:
            slot.close()
        self.slots = []


def dup(slot: Slot) -> int:
    """A descriptor of the memory for somebody else."""
    return os.dup(slot.fd)
