"""The choice of the checkpoint that a run restores: decided once for all its ranks, then read from memory or disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from dljob.errors import CheckpointError
from dljob.master.state.checkpoint_ids import CheckpointId, RestoreDecision, RunId, fence
from dljob.runtime.checkpoint.book import Book
from dljob.runtime.checkpoint.choice import Found, choose
from dljob.runtime.checkpoint.files import NEWER_HINT, Folder
from dljob.runtime.checkpoint.holding import Holding, dup
from dljob.runtime.checkpoint.model import CheckpointLocation
from dljob.runtime.checkpoint.sealed import DamagedError

LOOK_S = 0.05
"""Seconds between looks for the manifest of the decided checkpoint."""
ASK_S = 5.0
"""Seconds between requests to all nodes to write a decided checkpoint that is missing."""
WORDS, WORD = 16, 400
"""Messages about skipped checkpoints that a rank receives, at most, and the characters of each."""
FIRST = RunId(1, 1)
"""The first run of a job. Nobody saved before it, so its ranks may all load at once without asking any other node."""


class Restorer:
    """A saver's side of `load`.

    Args of the constructor:
        changed: The saver's condition; its lock guards the holdings.
        held: Returns the holdings of a folder on this node.
        tell: Reports a process's data positions to PrimeMaster.
        flushed: Makes every node write the copies of dead ranks, and the copies kept for nodes that are gone.
        book: Where decisions are recorded.
        told: Called with the kind `Damaged` and a sentence.
    """

    def __init__(
        self,
        changed: threading.Condition,
        held: Callable[[str], list[Holding]],
        tell: Callable[[Holding], None],
        flushed: Callable[[str, float], None],
        book: Book,
        *,
        told: Callable[[str, str], None],
    ) -> None:
        self._changed = changed
        self._held = held
        self._tell = tell
        self._flushed = flushed
        self._book = book
        self._told = told
        self._deciding = threading.Lock()

    def choose(self, place: CheckpointLocation, *, memory: bool) -> tuple[dict[str, Any], list[int]]:
        """Return the checkpoint that a rank's run restores, and a descriptor of it if it is in memory here.

        Raises:
            CheckpointError: It is damaged, or PrimeMaster cannot be asked.
        """
        folder = Folder.of(place)
        skipped: tuple[str, ...] = ()
        # One at a time on this node: the second rank of a run finds the first one's decision instead of reading every
        # part too.
        with self._deciding:
            made = self._book.turn(place, folder)
            if made is None:
                made, skipped = self._decided(place, folder)
            else:  # a load that goes back undoes work, which PrimeMaster must know first
                self._tell_all(place)
        self._await_last(place, folder)
        newest, words = _newest(place, folder, made.chosen)
        for text in words:
            self._told("Damaged", f"{place.of}: {text}")
        words = _few((*skipped, *words))
        if newest is None:
            return {"source": "", "skipped": words}, []
        said = {"mark": newest.json(), "skipped": words}
        handed = self._from_memory(place, newest) if memory else []
        return ({**said, "source": "memory"}, handed) if handed else (said | self._from_disk(place, newest), [])

    def _await_last(self, place: CheckpointLocation, folder: Folder) -> None:
        """Wait until the newest step that a process holds is whole on disk.

        A load that went back to before it would leave a newer checkpoint for the next run, with work that this load
        has handed out again.

        Raises:
            CheckpointError: The parts of other ranks have not come.
        """
        with self._changed:
            mine = [h for h in self._held(place.folder) if (h.place.rank, h.place.run_id) == (place.rank, place.run_id)]
            last = max((head.mark for holding in mine for _, head in holding.whole()), default=None)
        end = time.monotonic() + place.grace_s
        while last and folder.torn(last):
            if time.monotonic() > end:
                raise CheckpointError(f"{place.name} cannot go back to {last}, its newest one: {folder.check(last)}")
            time.sleep(LOOK_S)

    def _decided(self, place: CheckpointLocation, folder: Folder) -> tuple[RestoreDecision, tuple[str, ...]]:
        """Decide for all ranks of a run, then delete files of its predecessors that no run can restore."""
        # PrimeMaster must know what data the saves contain before the decision: what is not in it is done again
        # (ADR 28).
        self._tell_all(place)
        best, skipped, damaged = self._best(place, folder)
        for text in damaged:
            self._told("Damaged", f"{place.of}: {text}")
        made = self._book.decide(place, folder, best and best.mark, damaged)
        # Only after the decision is on disk: it is what voids the torn checkpoints.
        folder.collect()
        folder.forget()
        return made, (*skipped, *folder.records().damaged)

    def _tell_all(self, place: CheckpointLocation) -> None:
        for holding in self._held(place.folder):
            self._tell(holding)

    def _best(self, place: CheckpointLocation, folder: Folder) -> tuple[Found | None, tuple[str, ...], list[str]]:
        """Return the checkpoint to restore, a message per newer one that was skipped, and those about damaged ones."""
        records = folder.records()
        if records.newer:
            raise CheckpointError(f"{place.name} cannot load: {records.newer[0]} ({place.folder})", hint=NEWER_HINT)
        damaged = list(records.damaged)
        found = self._in_memory(place)
        # Only what the run right before this one has left here is surely the newest there is: all its ranks lived on
        # this node. Of an older run it says nothing, since runs on other nodes may have come after that.
        before = RunId(place.attempt, place.number - 1)
        if place.run_id > FIRST and not any(one.mark.run_id == before for one in found):
            self._flushed(place.folder, place.grace_s)
        refused = self._finish(place, folder)

        def fault(one: Found) -> str:
            # To go on from an older one would fence this one off, also for the dljob that can read it.
            if not one.memory and (newer := folder.newer(one.mark)):
                where = folder.at(one.mark)
                raise CheckpointError(f"{place.name} cannot load {one.mark}: {newer} ({where})", hint=NEWER_HINT)
            why = "" if one.memory else refused.get(one.mark) or folder.check(one.mark)
            if why and (one.mark in refused or not folder.torn(one.mark)):
                damaged.append(f"{one.mark} is passed over: {why}")
            return why

        found += [Found(mark, 0) for mark in folder.marks()]
        # A world of a cut goes back to that cut alone: the queues and the other worlds do.
        if (among := self._book.choices(place)) is not None:
            found = [one for one in found if one.mark in among]
        best, skipped = choose(found, records.made, place.run_id, fault)
        # To begin anew would delete these parts, which are whole: the next run may find a disk that takes a manifest.
        if best is None and (whole := [one.mark for one in found if one.mark in refused]):
            raise CheckpointError(
                f"{place.name} cannot load {max(whole)}: {refused[max(whole)]} ({place.folder})",
                hint="its parts are whole: make room there, or make it writable",
            )
        return best, skipped, damaged

    def _finish(self, place: CheckpointLocation, folder: Folder) -> dict[CheckpointId, str]:
        """Write the manifests that are missing, and return those that the disk refuses, with its reason.

        A writer died between the last part and its manifest, or could not write it: the parts count if the journal
        takes them.
        """
        refused = dict[CheckpointId, str]()
        for mark, world in folder.unsaid():
            try:
                folder.commit(
                    mark,
                    world,
                    lambda mark=mark: self._book.commit(place, mark),
                    lambda: self._book.needed(place),
                )
            except OSError as error:  # an older checkpoint may be whole
                refused[mark] = f"its manifest cannot be written: {error.strerror}"
        return refused

    def _in_memory(self, place: CheckpointLocation) -> list[Found]:
        """List the checkpoints of earlier runs that every rank of a world of this size left on this node.

        Copies that are kept for another node do not count: that node may hold a newer one, and is asked for it.
        """
        with self._changed:
            # Ranks beyond the present world do not count: the role may have shrunk since.
            held = [h for h in self._held(place.folder) if h.place.rank < place.world and not h.kept]
            marks = {head.mark: h.place.world for h in held for _, head in h.whole() if h.place.run_id < place.run_id}
            return [
                Found(mark, world, memory=True)
                for mark, world in marks.items()
                if world == place.world and len({h.place.rank for h in held if h.holds(mark) is not None}) == world
            ]

    def _from_memory(self, place: CheckpointLocation, mark: CheckpointId) -> list[int]:
        """Return a descriptor of the rank's own copy, if a process of it left one here."""
        with self._changed:
            for holding in self._held(place.folder):
                number = holding.holds(mark) if holding.place.rank == place.rank else None
                if number is not None and holding.place.world == place.world:
                    return [dup(holding.slots[number])]
        return []

    def _from_disk(self, place: CheckpointLocation, mark: CheckpointId) -> dict[str, Any]:
        """Return where the checkpoint's parts are, once all are there.

        The decider has already asked all nodes to write them.

        Raises:
            CheckpointError: The manifest is damaged.
        """
        folder = Folder.of(place)
        ask = time.monotonic()
        end = ask + place.grace_s
        try:
            while (manifest := folder.manifest(mark)) is None and (now := time.monotonic()) < end:
                if now >= ask:
                    self._flushed(place.folder, place.grace_s)
                    # Again and again: a node that was frozen, or a saver that was busy, may bring its part late.
                    ask = time.monotonic() + ASK_S
                time.sleep(LOOK_S)
        except DamagedError as error:
            raise CheckpointError(f"{place.name} cannot restore {mark}: {error}") from error
        if manifest is None:
            return {"source": "lost"}
        return {"source": "disk", "world": manifest.world}


def _newest(
    place: CheckpointLocation, folder: Folder, chosen: CheckpointId | None
) -> tuple[CheckpointId | None, list[str]]:
    """Return the checkpoint that a process restores, and a message per skipped one.

    A process that loads again restores the newest checkpoint of its own run, else the decided one. Only a world of
    one rank may skip a checkpoint that fails its checksum: ranks of a larger world would restore different steps.
    """
    passed = list[str]()
    for one in folder.found():
        # Newest first: from here on all checkpoints are of earlier runs, of which the decision has chosen one.
        if one.mark.run_id < place.run_id:
            break
        if one.mark.run_id > place.run_id or folder.torn(one.mark):
            continue
        why = one.bad or (folder.check(one.mark) if place.world == 1 else "")
        if not why:
            return one.mark, passed
        passed.append(f"{one.mark} is passed over: {why}")
    if passed and chosen is None:  # to begin anew would be silent loss
        raise CheckpointError(f"{place.name} cannot load what it has saved: {'; '.join(passed)}")
    return chosen, passed


def _few(words: Sequence[str]) -> list[str]:
    """Limit the messages to a rank's log: crashing runs may have left thousands."""
    more = [f"{len(words) - WORDS} more were passed over: see dljob checkpoint ls"] if len(words) > WORDS else []
    return [*(word[:WORD] for word in words[:WORDS]), *more]


def newest_on_disk(folder: Folder) -> CheckpointId | None:
    """Return the newest whole checkpoint that counts; None without one."""
    decisions = folder.decisions()
    return next((f.mark for f in folder.found() if not f.bad and not fence(f.mark, decisions)), None)
