"""Peer copies: a copy that is in one node's memory alone is also sent to the memory of a second node (ADR 31).

`Sender` is the owner's side, `Keeper` the peer's. A copy that is kept for another node is a holding like those of this
node's ranks, but it goes to disk only when its world decides what to restore, and only if the disk lacks it.
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
from dljob.linux import memory_limit
from dljob.master.state.checkpoint_ids import CheckpointId, RunId
from dljob.runtime.checkpoint.carrying import AWAY, CHANGED
from dljob.runtime.checkpoint.holding import Holding, dup
from dljob.runtime.checkpoint.model import CheckpointLocation
from dljob.runtime.checkpoint.slot import PAGE, CopyHeader, Slot

AGAIN_S = 5.0
"""Seconds until the next attempt to find a peer."""
COPIES = 2
"""Copies that a peer keeps of a rank. As many as its own node has: other ranks may be a step behind."""
SHARE = 2
"""A copy is taken if it needs at most 1/SHARE of the memory that is left; the rest is for this node's own ranks."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A copy, as it is announced to a peer."""

    place: CheckpointLocation
    head: CopyHeader

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Offer:
        """Parse an offer that came over a socket."""
        return cls(CheckpointLocation(**message["place"]), CopyHeader(**message["head"]))

    @property
    def key(self) -> tuple[str, int]:
        """The world's folder and the rank whose copy it is."""
        return self.place.folder, self.place.rank

    @property
    def mark(self) -> CheckpointId:
        """The checkpoint that it is a part of."""
        return self.head.mark


class Post(Protocol):
    """The transport to the peer."""

    def carry(self, offer: Mapping[str, Any], fd: int) -> str:
        """Send a copy to the peer.

        Return empty on success, else why not (`carrying.AWAY`, `CHANGED`, or the peer's reason).
        """
        ...

    def forget(self, rows: list[dict[str, Any]]) -> None:
        """Tell the peer which copies it may drop."""
        ...


class Sender:
    """Sends one copy at a time: of each rank the newest one that is not on disk; older ones that wait are dropped."""

    def __init__(
        self,
        changed: threading.Condition,
        holdings: Callable[[], list[Holding]],
        report_positions: Callable[[Holding], None],
        report: Callable[[str, str], None],
        post: Post,
    ) -> None:
        self._changed = changed
        self._holdings = holdings
        self._report_positions = report_positions
        self._report = report
        self._post = post
        self._turns = itertools.count(1)
        self._rows: list[dict[str, Any]] = []
        self._closed = False
        self._refused = ""
        threading.Thread(target=self._serve, name="dljob-peer", daemon=True).start()

    def close(self) -> None:
        """Stop sending."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def note_needless(self, holding: Holding, order: int | None = None) -> None:
        """Note that a save is on disk, or (None) that no save of this process is needed any more.

        The caller holds the lock.
        """
        for number in [n for n in holding.peer_marks if order in (None, n)]:
            self._rows.append(_row(holding, holding.peer_marks.pop(number)))

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._rows or self._next())
                if self._closed:
                    return
                # Before the next copy: what the peer drops makes room for it.
                rows, self._rows = self._rows, []
                work = self._next()
                # A descriptor of its own: the holding may drop its memory while the copy is on its way.
                fd = dup(work[0].slots[work[1]]) if work else -1
            if rows:
                self._post.forget(rows)
            if work:
                self._send(work[0], work[2], fd)

    def _next(self) -> tuple[Holding, int, CopyHeader] | None:
        """Return the copy to send next, else None. The caller holds the lock."""
        newest = [
            (holding, copies[-1])
            for holding in self._holdings()
            if holding.place.peer_copy and (copies := holding.unsaved_copies(all_of_it=holding.place.save_on_exit))
        ]
        waiting = [(holding, number, head) for holding, (number, head) in newest if head.order > holding.offered]
        # Round robin over the ranks: with the newest copy first, one fast rank would keep the others from ever being
        # sent.
        return min(waiting, key=lambda copy: copy[0].turn, default=None)

    def _send(self, holding: Holding, head: CopyHeader, fd: int) -> None:
        try:
            # PrimeMaster must know the data positions of a save before a copy of it can count (ADR 28).
            self._report_positions(holding)
            refusal = self._post.carry({"place": asdict(holding.place), "head": asdict(head)}, fd)
        finally:
            os.close(fd)
        with self._changed:
            if refusal == AWAY:
                # Not noted as offered: the copy, or a newer one, is sent as soon as there is a peer.
                self._changed.wait_for(lambda: self._closed, AGAIN_S)
                return
            holding.turn, holding.offered = next(self._turns), head.order
            if not refusal:
                self._arrived(holding, head)
        # Once per reason: a peer without room would refuse every save of the job.
        if refusal not in ("", CHANGED, self._refused):
            self._refused = refusal
            self._report("NoPeer", f"{holding.place.name}: no copy of step {head.step} on a peer node: {refusal}")

    def _arrived(self, holding: Holding, head: CopyHeader) -> None:
        """Note that the peer has a copy. The caller holds the lock."""
        saved = any(slot.head == head and slot.saved == head.order for slot in holding.slots)
        if saved or not holding.slots:  # meanwhile: the peer may drop it at once
            self._rows.append(_row(holding, head.mark))
            return
        holding.peer_marks[head.order] = head.mark
        for old in sorted(holding.peer_marks)[:-COPIES]:  # the peer has dropped it too
            del holding.peer_marks[old]


def _row(holding: Holding, mark: CheckpointId) -> dict[str, Any]:
    return {"folder": holding.place.folder, "rank": holding.place.rank, **mark.json()}


class Keeper:
    """The copies that this node keeps for others.

    `newest` returns the newest run of a world that has begun on this node.
    """

    def __init__(self, changed: threading.Condition, newest: Callable[[str], RunId | None]) -> None:
        self._changed = changed
        self._newest = newest
        self._copies: dict[tuple[str, int], list[Holding]] = {}
        self._transfers: dict[tuple[str, int], tuple[Offer, Slot]] = {}
        # Never reset: once a rank here lacked memory, nothing is kept for other nodes any more (ADR 31).
        self._needed = False

    def allocate(self, offer: Offer) -> tuple[str, int]:
        """Allocate memory for a copy; return ("", its descriptor), or (why it is refused, -1)."""
        with self._changed:
            newest = self._newest(offer.place.folder)
            if newest is not None and offer.place.run_id < newest:
                return f"run {newest} has begun here", -1
            # A rank's transfers do not overlap: an earlier one that still arrives was abandoned by its sender.
            self._abort_transfer(offer.key)
            copies = self._copies.get(offer.key, [])
            # Before the new memory: at no time is there memory for three copies of a rank.
            for old in copies[: 1 - COPIES]:
                self._drop(old)
            if self._needed:
                return "the ranks of that node need its memory", -1
        free_bytes, scope = memory_limit.free()
        if free_bytes is not None and SHARE * offer.head.total > free_bytes:
            return f"{offer.head.total >> 20} MiB are needed, {free_bytes >> 20} MiB are left {scope} of the peer", -1
        try:
            # Outside the lock: filling gigabytes of pages takes seconds, during which ranks of this node save.
            slot = Slot.make(offer.head.size, offer.place.name)
        except UsageError as error:
            return str(error), -1
        with self._changed:
            self._abort_transfer(offer.key)
            self._transfers[offer.key] = (offer, slot)
            return "", os.dup(slot.fd)

    def accept(self, offer: Offer, crc: int | None) -> str:
        """Accept a copy that has arrived with this CRC-32 (None: the sender gave up).

        Return why it is not kept, else empty.
        """
        with self._changed:
            transfer = self._transfers.pop(offer.key, None)
        # Given up meanwhile: a later copy of the rank began, or the world's new run decides already.
        if transfer is None:
            return "its memory was given up on the way"
        slot = transfer[1]
        if transfer[0] != offer or crc is None or _crc(slot, offer.head.total) != crc:
            slot.close()
            return "" if crc is None else "it arrived corrupt"
        # Only now is the header written: until here the copy counts as none.
        slot.finish(offer.head)
        with self._changed:
            copies = self._copies.setdefault(offer.key, [])
            copies.append(Holding(offer.place, [slot], alive=False, is_peer_copy=True, ended_at=math.inf))
            copies.sort(key=_mark_of)
        return ""

    def forget(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Drop copies that are on disk, or that nobody needs any more."""
        with self._changed:
            for row in rows:
                mark = CheckpointId.of(row)
                for copy in list(self._copies.get((row["folder"], row["rank"]), ())):
                    if copy.holds(mark) is not None:
                        self._drop(copy)

    def copies_of(self, folder: str = "") -> list[Holding]:
        """List the copies of a world, or of all worlds. The caller holds the lock."""
        return [copy for (path, _), copies in self._copies.items() if folder in ("", path) for copy in copies]

    def abort_transfers(self, folder: str) -> None:
        """Abort transfers for a world: its new run decides now, and what is still arriving is too late.

        The caller holds the lock.
        """
        for key in [key for key in self._transfers if folder in ("", key[0])]:
            self._abort_transfer(key)

    def tidy(self, older_than: float, is_inherited: Callable[[Holding], bool]) -> None:
        """Release copies on disk since before `older_than`, fenced copies, and those of a rank with a successor here.

        `is_inherited` returns whether it has one that makes a copy needless. The caller holds the lock.
        """
        for copy in self.copies_of():
            saved = copy.slots[0].saved and copy.ended_at < older_than
            if saved or copy.fenced or is_inherited(copy):
                self._drop(copy)

    def drop_all(self) -> None:
        """Drop all copies of other nodes and refuse new ones: the ranks of this node need the memory."""
        with self._changed:
            self._needed = True
            self.abort_transfers("")
            for copy in self.copies_of():
                self._drop(copy)

    def _drop(self, copy: Holding) -> None:
        if copy.busy:  # a writer reads it
            return
        key = copy.place.folder, copy.place.rank
        self._copies[key].remove(copy)
        if not self._copies[key]:
            del self._copies[key]
        copy.drop()

    def _abort_transfer(self, key: tuple[str, int]) -> None:
        if transfer := self._transfers.pop(key, None):
            transfer[1].close()


def _crc(slot: Slot, total: int) -> int:
    with memoryview(slot.map) as view, view[PAGE:total] as part:
        return zlib.crc32(part)


def _mark_of(copy: Holding) -> CheckpointId:
    head = copy.slots[0].head
    return head.mark if head else CheckpointId(copy.place.run_id, -1)
