"""Copies on a peer node: what is in the memory of one node alone is soon in that of a second one, too (ADR 31).

`Sender` is the owner's side, `Keeper` the peer's. A copy that is kept for another node is a holding like those of this
node's ranks, but it goes to disk only when its world is to decide what it restores, and only if it is not there.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from dljob.errors import UsageError
from dljob.master.marks import Life, Mark
from dljob.runtime.checkpoint.carrying import AWAY, CHANGED
from dljob.runtime.checkpoint.holding import Holding, dup
from dljob.runtime.checkpoint.model import Place
from dljob.runtime.checkpoint.slot import PAGE, Head, Slot, room

AGAIN_S = 5.0
"""How often it is looked whether there is a peer by now."""
COPIES = 2
"""So many are kept of a rank, as its own node does: other ranks may be a step behind."""
SHARE = 2
"""One part in so many of the memory that is left is taken for others at most; the rest is for this node's ranks."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A copy, as a peer is told of it."""

    place: Place
    head: Head

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Offer:
        """From what came over a line."""
        return cls(Place(**said["place"]), Head(**said["head"]))

    @property
    def key(self) -> tuple[str, int]:
        """Whose it is."""
        return self.place.folder, self.place.rank

    @property
    def mark(self) -> Mark:
        """What it is."""
        return self.place.mark(self.head.step)


class Post(Protocol):
    """The way to the peer."""

    def carry(self, offer: Mapping[str, Any], fd: int) -> str:
        """Have a copy brought there; empty when it is, else why not (`carrying.AWAY`, `CHANGED`, the peer's word)."""
        ...

    def forget(self, rows: list[dict[str, Any]]) -> None:
        """Tell it what it need not keep any more."""
        ...


class Sender:
    """Sends one copy at a time, of each rank the newest one that is not on disk; others that wait are dropped."""

    def __init__(
        self,
        changed: threading.Condition,
        held: Callable[[], list[Holding]],
        tell: Callable[[Holding], None],
        told: Callable[[str, str], None],
        post: Post,
    ) -> None:
        self._changed = changed
        self._held = held
        self._tell = tell
        self._told = told
        self._post = post
        self._turns = itertools.count(1)
        self._rows: list[dict[str, Any]] = []
        self._closed = False
        self._refused = ""
        threading.Thread(target=self._serve, name="dljob-peer", daemon=True).start()

    def close(self) -> None:
        """Send nothing any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def gone(self, holding: Holding, order: int | None = None) -> None:
        """Under the lock: the disk has that save of a process, or (None) nothing of it is needed any more."""
        for number in [n for n in holding.there if order in (None, n)]:
            self._rows.append(_row(holding, holding.there.pop(number)))

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._rows or self._next())
                if self._closed:
                    return
                rows, self._rows = self._rows, []
                work = self._next()
                fd = dup(work[0].slots[work[1]]) if work else -1
            if rows:
                self._post.forget(rows)
            if work:
                self._send(work[0], work[2], fd)

    def _next(self) -> tuple[Holding, int, Head] | None:
        """Under the lock: the copy whose turn it is."""
        sends = [held for held in self._held() if held.place.peer_copy]
        left = [(held, *held.unsaved(all_of_it=held.place.save_on_exit)[-1:]) for held in sends]
        waiting = [(one[0], *one[1]) for one in left if len(one) > 1 and one[1][1].order > one[0].offered]
        return min(waiting, key=lambda one: one[0].turn, default=None)

    def _send(self, holding: Holding, head: Head, fd: int) -> None:
        try:
            self._tell(holding)  # what data was done before a save is known before a copy of it can count
            said = self._post.carry({"place": asdict(holding.place), "head": asdict(head)}, fd)
        finally:
            os.close(fd)
        with self._changed:
            if said == AWAY:
                self._changed.wait_for(lambda: self._closed, AGAIN_S)
                return
            holding.turn, holding.offered = next(self._turns), head.order
            if not said:
                self._arrived(holding, head)
        if said not in ("", CHANGED, self._refused):
            self._refused = said
            self._told("NoPeer", f"{holding.place.name}: no copy of step {head.step} on a peer node: {said}")

    def _arrived(self, holding: Holding, head: Head) -> None:
        """Under the lock."""
        saved = any(slot.head == head and slot.saved == head.order for slot in holding.slots)
        if saved or not holding.slots:  # meanwhile
            self._rows.append(_row(holding, head.step))
            return
        holding.there[head.order] = head.step
        for old in sorted(holding.there)[:-COPIES]:  # as the peer does
            del holding.there[old]


def _row(holding: Holding, step: int) -> dict[str, Any]:
    life = holding.place.life
    return {
        "folder": holding.place.folder,
        "rank": holding.place.rank,
        "attempt": life.attempt,
        "number": life.number,
        "step": step,
    }


class Keeper:
    """What is kept for other nodes. `newest`: the newest life of a world that has begun on this node."""

    def __init__(self, changed: threading.Condition, newest: Callable[[str], Life | None]) -> None:
        self._changed = changed
        self._newest = newest
        self._kept: dict[tuple[str, int], list[Holding]] = {}
        self._coming: dict[tuple[str, int], tuple[Offer, Slot]] = {}
        self._needed = False

    def coming(self, offer: Offer) -> tuple[str, int]:
        """A descriptor of new memory for a copy; or why it is not taken."""
        with self._changed:
            newest = self._newest(offer.place.folder)
            if newest is not None and offer.place.life < newest:
                return f"life {newest} has begun here", -1
            self._give_up(offer.key)
            kept = self._kept.get(offer.key, [])
            for old in kept[: 1 - COPIES]:
                self._drop(old)
            if self._needed:
                return "the ranks of that node need its memory", -1
        left, where = room()
        if SHARE * offer.head.total > left:
            return f"{offer.head.total >> 20} MiB are needed, {left >> 20} MiB are left {where} of the peer", -1
        try:
            slot = Slot.make(offer.head.size, offer.place.name)
        except UsageError as error:
            return str(error), -1
        with self._changed:
            self._give_up(offer.key)
            self._coming[offer.key] = (offer, slot)
            return "", os.dup(slot.fd)

    def came(self, offer: Offer, crc: int | None) -> str:
        """All of it is there, with that CRC-32 (None: it will never be); why it is not kept, else empty."""
        with self._changed:
            found = self._coming.pop(offer.key, None)
        if found is None:
            return "its memory was given up on the way"
        slot = found[1]
        if found[0] != offer or crc is None or _crc(slot, offer.head.total) != crc:
            slot.close()
            return "" if crc is None else "it arrived corrupt"
        slot.finish(offer.head)
        with self._changed:
            many = self._kept.setdefault(offer.key, [])
            many.append(Holding(offer.place, [slot], alive=False, kept=True, ended_at=math.inf))
            many.sort(key=lambda held: held.place.mark(_step(held)))
        return ""

    def forget(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """The disk has these, or nobody needs them any more."""
        with self._changed:
            for row in rows:
                mark = Mark(Life(row["attempt"], row["number"]), row["step"])
                for held in list(self._kept.get((row["folder"], row["rank"]), ())):
                    if held.holds(mark) is not None:
                        self._drop(held)

    def of(self, folder: str = "") -> list[Holding]:
        """Under the lock: what is kept of a world, or of all."""
        return [held for (path, _), many in self._kept.items() if folder in ("", path) for held in many]

    def begins(self, folder: str) -> None:
        """Under the lock: a new life of a world decides; what was on its way comes too late."""
        for key in [key for key in self._coming if folder in ("", key[0])]:
            self._give_up(key)

    def tidy(self, older_than: float, heir: Place | None = None) -> None:
        """Under the lock: give back what is on disk since then, what does not count, and what a successor replaced."""
        for held in self.of():
            saved = held.slots[0].saved and held.ended_at < older_than
            mine = heir is not None and (heir.folder, heir.rank) == (held.place.folder, held.place.rank)
            if saved or held.fenced or (mine and heir is not None and held.place.life < heir.life):
                self._drop(held)

    def give_up(self) -> None:
        """The ranks of this node need the memory: keep nothing for others from now on."""
        with self._changed:
            self._needed = True
            self.begins("")
            for held in self.of():
                self._drop(held)

    def _drop(self, held: Holding) -> None:
        if held.busy:  # it is on its way to the disk
            return
        key = held.place.folder, held.place.rank
        self._kept[key].remove(held)
        if not self._kept[key]:
            del self._kept[key]
        held.drop()

    def _give_up(self, key: tuple[str, int]) -> None:
        if found := self._coming.pop(key, None):
            found[1].close()


def _crc(slot: Slot, total: int) -> int:
    with memoryview(slot.map) as view, view[PAGE:total] as part:
        return zlib.crc32(part)


def _step(held: Holding) -> int:
    head = held.slots[0].head
    return head.step if head else -1
