"""The choice of the checkpoint that a run restores: decided once for all its ranks, then read from memory or disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from dljob.errors import CheckpointError
from dljob.master.state.checkpoint_ids import CheckpointId, RestoreDecision, RunId, fence
from dljob.runtime.checkpoint.book import Book
from dljob.runtime.checkpoint.choice import Candidate, choose
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
        holdings_of: Returns the holdings of a folder on this node.
        report_positions: Reports a process's data positions to PrimeMaster.
        flush_all_nodes: Makes every node write the copies of dead ranks, and the copies kept for nodes that are gone.
        book: Where decisions are recorded.
        report: Called with the kind `Damaged` and a sentence.
    """

    def __init__(
        self,
        changed: threading.Condition,
        holdings_of: Callable[[str], list[Holding]],
        report_positions: Callable[[Holding], None],
        flush_all_nodes: Callable[[str, float], None],
        book: Book,
        *,
        report: Callable[[str, str], None],
    ) -> None:
        self._changed = changed
        self._holdings_of = holdings_of
        self._report_positions = report_positions
        self._flush_all_nodes = flush_all_nodes
        self._book = book
        self._report = report
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
            decision = self._book.turn(place, folder)
            if decision is None:
                decision, skipped = self._decide(place, folder)
            else:  # a load that goes back undoes work, which PrimeMaster must know first
                self._report_all_positions(place)
        self._await_newest_save(place, folder)
        newest, words = _newest(place, folder, decision.chosen)
        for text in words:
            self._report("Damaged", f"{place.of}: {text}")
        words = _limit_messages((*skipped, *words))
        if newest is None:
            return {"source": "", "skipped": words}, []
        reply = {"mark": newest.json(), "skipped": words}
        fds = self._from_memory(place, newest) if memory else []
        return ({**reply, "source": "memory"}, fds) if fds else (reply | self._from_disk(place, newest), [])

    def _await_newest_save(self, place: CheckpointLocation, folder: Folder) -> None:
        """Wait until the newest step that a process holds is whole on disk.

        A load that went back to before it would leave a newer checkpoint for the next run, with work that this load
        has handed out again.

        Raises:
            CheckpointError: The parts of other ranks have not come.
        """
        with self._changed:
            holdings = [
                h
                for h in self._holdings_of(place.folder)
                if (h.place.rank, h.place.run_id) == (place.rank, place.run_id)
            ]
            last = max((head.mark for holding in holdings for _, head in holding.whole_copies()), default=None)
        end = time.monotonic() + place.grace_s
        while last and folder.torn(last):
            if time.monotonic() > end:
                raise CheckpointError(f"{place.name} cannot go back to {last}, its newest one: {folder.check(last)}")
            time.sleep(LOOK_S)

    def _decide(self, place: CheckpointLocation, folder: Folder) -> tuple[RestoreDecision, tuple[str, ...]]:
        """Decide for all ranks of a run, then delete files of its predecessors that no run can restore."""
        # PrimeMaster must know what data the saves contain before the decision: what is not in it is done again
        # (ADR 28).
        self._report_all_positions(place)
        best, skipped, damaged = self._best(place, folder)
        for text in damaged:
            self._report("Damaged", f"{place.of}: {text}")
        decision = self._book.decide(place, folder, best and best.mark, damaged)
        # Only after the decision is on disk: it is what voids the torn checkpoints.
        folder.collect()
        folder.forget()
        return decision, (*skipped, *folder.records().damaged)

    def _report_all_positions(self, place: CheckpointLocation) -> None:
        for holding in self._holdings_of(place.folder):
            self._report_positions(holding)

    def _best(self, place: CheckpointLocation, folder: Folder) -> tuple[Candidate | None, tuple[str, ...], list[str]]:
        """Return the checkpoint to restore, a message per newer one that was skipped, and those about damaged ones."""
        records = folder.records()
        if records.newer:
            raise CheckpointError(f"{place.name} cannot load: {records.newer[0]} ({place.folder})", hint=NEWER_HINT)
        damaged = list(records.damaged)
        candidates = self._memory_candidates(place)
        # Only what the run right before this one has left here is surely the newest there is: all its ranks lived on
        # this node. Of an older run it says nothing, since runs on other nodes may have come after that.
        before = RunId(place.attempt, place.number - 1)
        if place.run_id > FIRST and not any(candidate.mark.run_id == before for candidate in candidates):
            self._flush_all_nodes(place.folder, place.grace_s)
        refused = self._finish(place, folder)

        def find_fault(candidate: Candidate) -> str:
            # To go on from an older one would fence this one off, also for the dljob that can read it.
            if not candidate.memory and (newer := folder.newer(candidate.mark)):
                path = folder.at(candidate.mark)
                raise CheckpointError(f"{place.name} cannot load {candidate.mark}: {newer} ({path})", hint=NEWER_HINT)
            reason = "" if candidate.memory else refused.get(candidate.mark) or folder.check(candidate.mark)
            if reason and (candidate.mark in refused or not folder.torn(candidate.mark)):
                damaged.append(f"{candidate.mark} is passed over: {reason}")
            return reason

        candidates += [Candidate(mark, 0) for mark in folder.marks()]
        # A world of a cut goes back to that cut alone: the queues and the other worlds do.
        if (among := self._book.choices(place)) is not None:
            candidates = [candidate for candidate in candidates if candidate.mark in among]
        best, skipped = choose(candidates, records.decisions, place.run_id, find_fault)
        # To begin anew would delete these parts, which are whole: the next run may find a disk that takes a manifest.
        if best is None and (whole_marks := [candidate.mark for candidate in candidates if candidate.mark in refused]):
            raise CheckpointError(
                f"{place.name} cannot load {max(whole_marks)}: {refused[max(whole_marks)]} ({place.folder})",
                hint="its parts are whole: make room there, or make it writable",
            )
        return best, skipped, damaged

    def _finish(self, place: CheckpointLocation, folder: Folder) -> dict[CheckpointId, str]:
        """Write the manifests that are missing, and return those that the disk refuses, with its reason.

        A writer died between the last part and its manifest, or could not write it: the parts count if the journal
        takes them.
        """
        refused = dict[CheckpointId, str]()
        for mark, world in folder.uncommitted():
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

    def _memory_candidates(self, place: CheckpointLocation) -> list[Candidate]:
        """List the checkpoints of earlier runs that every rank of a world of this size left on this node.

        Copies that are kept for another node do not count: that node may hold a newer one, and is asked for it.
        """
        with self._changed:
            # Ranks beyond the present world do not count: the role may have shrunk since.
            holdings = [h for h in self._holdings_of(place.folder) if h.place.rank < place.world and not h.is_peer_copy]
            marks = {
                head.mark: h.place.world
                for h in holdings
                for _, head in h.whole_copies()
                if h.place.run_id < place.run_id
            }
            return [
                Candidate(mark, world, memory=True)
                for mark, world in marks.items()
                if world == place.world and len({h.place.rank for h in holdings if h.holds(mark) is not None}) == world
            ]

    def _from_memory(self, place: CheckpointLocation, mark: CheckpointId) -> list[int]:
        """Return a descriptor of the rank's own copy, if a process of it left one here."""
        with self._changed:
            for holding in self._holdings_of(place.folder):
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
                    self._flush_all_nodes(place.folder, place.grace_s)
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
    skipped = list[str]()
    for candidate in folder.candidates():
        # Newest first: from here on all checkpoints are of earlier runs, of which the decision has chosen one.
        if candidate.mark.run_id < place.run_id:
            break
        if candidate.mark.run_id > place.run_id or folder.torn(candidate.mark):
            continue
        fault = candidate.bad or (folder.check(candidate.mark) if place.world == 1 else "")
        if not fault:
            return candidate.mark, skipped
        skipped.append(f"{candidate.mark} is passed over: {fault}")
    if skipped and chosen is None:  # to begin anew would be silent loss
        raise CheckpointError(f"{place.name} cannot load what it has saved: {'; '.join(skipped)}")
    return chosen, skipped


def _limit_messages(words: Sequence[str]) -> list[str]:
    """Limit the messages to a rank's log: crashing runs may have left thousands."""
    more = [f"{len(words) - WORDS} more were passed over: see dljob checkpoint ls"] if len(words) > WORDS else []
    return [*(word[:WORD] for word in words[:WORDS]), *more]


def newest_on_disk(folder: Folder) -> CheckpointId | None:
    """Return the newest whole checkpoint that counts; None without one."""
    decisions = folder.decisions()
    return next((f.mark for f in folder.candidates() if not f.bad and not fence(f.mark, decisions)), None)
