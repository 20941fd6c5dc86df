"""What a life restores, and where it is: decided once for all its ranks, then found in memory or on disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from dljob.master.marks import Life, Mark, fence
from dljob.runtime.checkpoint.book import Book
from dljob.runtime.checkpoint.choice import Found, choose
from dljob.runtime.checkpoint.files import Folder
from dljob.runtime.checkpoint.holding import Holding, dup
from dljob.runtime.checkpoint.model import Place

LOOK_S = 0.05
ASK_S = 5.0
"""How often all nodes are asked to bring to disk what was decided upon and is not there."""
FIRST = Life(1, 1)
"""The life before which nobody saved: all ranks of a job may ask at once when it starts, and no node has to answer."""


class Restorer:
    """A saver's side of `load`.

    `held` gives what is in this node's memory of a folder, `tell` has PrimeMaster hear what data a process did,
    `flushed` has every node bring to disk what dead ranks left there, and what it keeps for nodes that are gone.
    """

    def __init__(
        self,
        changed: threading.Condition,
        held: Callable[[str], list[Holding]],
        tell: Callable[[Holding], None],
        flushed: Callable[[str, float], None],
        book: Book,
    ) -> None:
        self._changed = changed
        self._held = held
        self._tell = tell
        self._flushed = flushed
        self._book = book
        self._deciding = threading.Lock()

    def choose(self, place: Place, *, memory: bool) -> tuple[dict[str, Any], list[int]]:
        """What the life of this rank restores, and a descriptor of it if it is in memory here."""
        folder = Folder.of(place)
        skipped: tuple[str, ...] = ()
        with self._deciding:
            made = self._book.turn(place, folder)
            if made is None:
                for holding in self._held(place.folder):
                    self._tell(holding)
                best, skipped = self._best(place, folder)
                made = self._book.decide(place, folder, best and best.mark)
        newest = max([m for m in [made.chosen, *_own(place, folder)] if m], default=None)
        if newest is None:
            return {"source": "", "skipped": skipped}, []
        said = {"step": newest.step, "life": asdict(newest.life), "skipped": skipped}
        handed = self._from_memory(place, newest) if memory else []
        return ({**said, "source": "memory"}, handed) if handed else (said | self._from_disk(place, newest), [])

    def _best(self, place: Place, folder: Folder) -> tuple[Found | None, tuple[str, ...]]:
        decisions = folder.decisions()
        found = self._in_memory(place)
        # Only what the life right before this one has left here is surely the newest there is: all its ranks lived on
        # this node. Of an older life it says nothing, since lives on other nodes may have come after that.
        before = Life(place.attempt, place.number - 1)
        if place.life > FIRST and not any(one.mark.life == before for one in found):
            self._flushed(place.folder, place.grace_s)
        for mark, world in folder.unsaid():
            folder.commit(mark, world, lambda mark=mark: self._book.commit(place, mark))
        found += folder.found()
        while True:
            best, skipped = choose(found, decisions, place.life)
            if best is None or best.memory or not (why := folder.check(best.mark)):
                return best, skipped
            found = [Found(f.mark, f.world, f.memory, why if f is best else f.bad) for f in found]

    def _in_memory(self, place: Place) -> list[Found]:
        """Steps of earlier lives that every rank of a world of this size left here.

        Not what is kept for another node: its own memory may have a newer one, so it is asked for it.
        """
        with self._changed:
            held = [h for h in self._held(place.folder) if h.place.rank < place.world and not h.kept]
            marks = {
                h.place.mark(head.step): h.place.world
                for h in held
                for _, head in h.whole()
                if h.place.life < place.life
            }
            return [
                Found(mark, world, memory=True)
                for mark, world in marks.items()
                if world == place.world and len({h.place.rank for h in held if h.holds(mark) is not None}) == world
            ]

    def _from_memory(self, place: Place, mark: Mark) -> list[int]:
        """A descriptor of the rank's own copy, if a process of it left one here."""
        with self._changed:
            for holding in self._held(place.folder):
                number = holding.holds(mark) if holding.place.rank == place.rank else None
                if number is not None and holding.place.world == place.world:
                    return [dup(holding.slots[number])]
        return []

    def _from_disk(self, place: Place, mark: Mark) -> dict[str, Any]:
        """Where its parts are, once they all are there: whoever decided had all nodes bring them."""
        folder = Folder.of(place)
        ask = time.monotonic()
        end = ask + place.grace_s
        while (manifest := folder.manifest(mark)) is None and (now := time.monotonic()) < end:
            if now >= ask:
                self._flushed(place.folder, place.grace_s)
                ask = time.monotonic() + ASK_S
            time.sleep(LOOK_S)
        return {"source": "disk", "world": manifest["world"]} if manifest else {"source": "lost"}


def _own(place: Place, folder: Folder) -> list[Mark]:
    """What this very life has committed since it began: a process that loads again goes on from there."""
    return [f.mark for f in folder.found() if f.mark.life == place.life and not f.bad]


def newest_on_disk(folder: Folder) -> Mark | None:
    """The newest whole checkpoint that counts."""
    decisions = folder.decisions()
    return next((f.mark for f in folder.found() if not f.bad and not fence(f.mark, decisions)), None)
