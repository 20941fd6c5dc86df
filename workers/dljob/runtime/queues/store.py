"""A queue that outlives its process: each change of its backlog is on disk before it is answered."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dljob.calls.backlog import Backlog, FailedItem, HolderEnd, PutRefusal, QueueCaller
from dljob.calls.queue_cut import CutStamp, QueueCut
from dljob.errors import UsageError
from dljob.runtime.queues import cut_file
from dljob.runtime.queues.cut_file import CutFile
from dljob.runtime.queues.files import SEGMENT, Place, QueueFiles

PATIENCE_S = 60.0
"""Seconds for which an item waits for another rank than the one that failed with it; then that one may get it, too."""
ANY = CutStamp()
"""The stamp of a caller that knows of no cut."""


class QueueStore:
    """One queue. `folder_id` identifies its folder: a new one tells clients that earlier items are lost."""

    def __init__(self, folder: Path, bounds: tuple[int, int, int], segment: int = SEGMENT) -> None:
        """Open or create the queue; an existing one keeps its own bounds."""
        self._files = QueueFiles(folder, segment)
        self.backlog = Backlog(*bounds)
        self.folder_id = secrets.token_hex(8)
        self.epoch = 0
        """How often the job had gone back to a cut when this queue last did."""
        self.cut: QueueCut | None = None
        """The cut under way. It ends with this process: PrimeMaster then gives it up."""
        self._cut_places: dict[int, Place] = {}
        self._restored_places: dict[int, Place] = {}
        """Item -> place, of a restore that is being replayed."""
        self._places: dict[int, Place] = {}
        self._live = Counter[int]()
        """Segment -> number of its items that are not acknowledged."""
        self._failed_at: dict[int, float] = {}
        """Item -> when its last delivery failed (monotonic clock of this process), of failures that it heard of."""
        self._stated = False
        """Whether a state has been read; records after it number items as they were numbered then."""
        try:
            self._recover()
        except BaseException:
            self._files.close()  # otherwise its lock would keep the next one out as long as this process lives
            raise

    def check(self, bounds: tuple[int, int, int]) -> None:
        """Check that others gave the same bounds. Raises UsageError."""
        own_bounds = (self.backlog.max_items, self.backlog.max_bytes, self.backlog.max_deliveries)
        if own_bounds != bounds:
            names = ("max_items", "max_bytes", "max_deliveries")
            words = ", ".join(f"{name}={value or None}" for name, value in zip(names, own_bounds, strict=True))
            others = ", ".join(str(value or None) for value in bounds)
            raise UsageError(f"the queue has {words}; this rank gave {others}")

    def register(self, caller: QueueCaller) -> bool:
        """Register a session; see `Backlog.register`."""
        newest = self.backlog.incarnations.get(caller.rank, 0)
        is_registered = newest == caller.incarnation and caller.session in self.backlog.sessions
        # A session of an earlier incarnation is refused by `register`, and refusals are not written.
        if not is_registered and newest <= caller.incarnation:
            self._write({"op": "register", **asdict(caller)})
        return is_registered or self.backlog.register(caller)

    def put(
        self, caller: QueueCaller, put_number: int, body: bytes, stamp: CutStamp = ANY, key: str = ""
    ) -> PutRefusal | None:
        """Append an item; return why not if it is refused."""
        if 0 < stamp.epoch <= self.epoch:
            return PutRefusal.PAST
        refusal = self.backlog.put_refusal(caller, put_number, len(body), key)
        if refusal is None:
            # On disk first: a put that was answered must not be lost with this process.
            record = {"op": "put", **asdict(caller), "number": put_number, "size": len(body)}
            place = self._write(record | ({"key": key} if key else {}), body)
            number = self.backlog.put(caller, put_number, len(body), key, self._content(key, place))
            self._places[number] = place
            self._live[place[0]] += 1
            if self.cut is not None and self.cut.is_before(caller, stamp):
                self.cut.put(number, len(body), key)
                self._cut_places[number] = place
        return refusal

    def _content(self, key: str, place: Place) -> str:
        """Return the digest of an item without a key that may be one of those that are put again; empty for others."""
        return "" if key or not self.backlog.awaited_items else self._digest(place)

    def _note_contents(self, items: Collection[FailedItem]) -> None:
        """Note the digests of items without a key that have failed."""
        for item in items:
            # While records are replayed an item may be one whose segment has been deleted since.
            if not item.key and item.number in self._places:
                self.backlog.note_content(item.number, self._digest(self._places[item.number]))

    def _digest(self, place: Place) -> str:
        return hashlib.blake2b(self._files.read(place), digest_size=16).hexdigest()

    def begin_get(
        self, caller: QueueCaller, number: int, received: int, unreadable: tuple[int, ...] = (), stamp: CutStamp = ANY
    ) -> bool:
        """Begin a get, and acknowledge the items of the last one; return whether it is the session's latest get."""
        session = self.backlog.sessions[caller.session]
        if number > session.last_get:
            # A get that acknowledges nothing and returns nothing to the front changes nothing that has to be on disk.
            if session.ids:
                get = {"get": number, "received": received, "unreadable": unreadable}
                self._write({"op": "acknowledge", **asdict(caller), **get})
            acknowledged = self.backlog.begin_get(caller, number, received, unreadable) or ()
            if self.cut is not None and self.cut.is_before(caller, stamp):
                self.cut.drop_items(acknowledged)
            self._done(acknowledged)
        return number == session.last_get

    def take(self, caller: QueueCaller, count: int, stamp: CutStamp = ANY) -> list[bytes] | None:
        """Return the items of a get; None while there are too few. A repeated get returns the same items."""
        item_numbers = self.backlog.last_answer(caller)
        only: Collection[int] | None = (
            self.cut.item_sizes if self.cut is not None and self.cut.restricts_gets(caller, stamp) else None
        )
        if item_numbers is None:
            only = self.backlog.choose_items(caller, count, only, self._for_anybody())
        if item_numbers is None and self.backlog.can_answer_get(count, only):
            get_number = self.backlog.sessions[caller.session].last_get
            # A take of nothing, from a closed queue, needs no record.
            if self.backlog.waiting:
                record = {"op": "take", **asdict(caller), "get": get_number, "count": count}
                # Before the items leave: a repeated get must return the same ones after a restart.
                self._write(
                    record | ({} if only is None else {"only": sorted(set(self.backlog.waiting).intersection(only))})
                )
            item_numbers = self.backlog.take(caller, count, only)
        return None if item_numbers is None else [self._files.read(self._places[number]) for number in item_numbers]

    def _for_anybody(self) -> list[int]:
        """Return the failed items that have waited long enough for another rank."""
        if not self.backlog.failed:
            return []
        # Of failures that an earlier process of this queue heard of the time begins now.
        now = time.monotonic()
        self._failed_at = {number: self._failed_at.get(number, now) for number in self.backlog.failed}
        return [number for number, at in self._failed_at.items() if now - at >= PATIENCE_S]

    def end_incarnation(self, rank: str, incarnation: int, end: HolderEnd, error: str) -> tuple[FailedItem, ...] | None:
        """Take back the items of a process that has ended; see `Backlog.end_incarnation`."""
        backlog = self.backlog
        # Nothing is written of ranks without a part in the queue, nor again: PrimeMaster tells of all ends.
        is_settled = backlog.incarnations.get(rank, incarnation + 1) > incarnation
        if is_settled and backlog.returned.get(rank, (0,))[0] != incarnation:
            return ()
        self._write({"op": "end", "rank": rank, "incarnation": incarnation, "end": end, "error": error})
        stored_items = backlog.stored_items
        items = backlog.end_incarnation(rank, incarnation, end, error)
        if self.cut is not None:
            self.cut.drop_items(item.number for item in items or () if item.number in backlog.dead)
        for item in items or ():
            self._failed_at.pop(item.number, None)
        self._note_contents(items or ())
        self._done(tuple(stored_items - backlog.stored_items))
        return items

    def dead_items(self) -> list[tuple[FailedItem, bytes]]:
        """Return the items that were set aside, the oldest first."""
        return [(item, self._files.read(self._places[item.number])) for item in self.backlog.dead.values()]

    def answer_stamp(self, caller: QueueCaller, *, put: bool = False) -> CutStamp:
        """Return the stamp of an answer: the receiver's later requests belong after the cut if its items do."""
        session, cut = self.backlog.sessions.get(caller.session), self.cut
        item_numbers = () if put or session is None else session.ids
        tainting_cut = cut.number if cut is not None and cut.puts_receiver_after(item_numbers) else 0
        return CutStamp(self.epoch + 1, 0, tainting_cut)

    # -- cuts

    def begin_cut(self, number: int, members: Mapping[str, int]) -> list[str]:
        """Begin a cut, and return the ranks that have got items of this queue.

        The order of a lost PrimeMaster may come after that of its successor: then it changes nothing.
        """
        if self.cut is None or number > self.cut.number:
            self.end_cut()
            self.cut = QueueCut.from_backlog(number, members, self.backlog)
            self._cut_places = dict(self._places)
        return sorted({session.rank for session in self.backlog.sessions.values() if session.last_get})

    def mark(self, caller: QueueCaller, number: int, session_names: tuple[str, ...]) -> bool:
        """Turn a rank that saves its state, which has what these sessions got; False if there is no such cut."""
        sessions = (self.backlog.sessions.get(session) for session in session_names)
        held_items = [number for session in sessions if session is not None for number in session.ids]
        return self.cut is not None and self.cut.mark_saved(caller, number, held_items)

    def seal_cut(self, number: int, name: str) -> CutFile | None:
        """End the cut, and return what is to be written; None if there is no such cut."""
        if self.cut is None or self.cut.number != number:
            return None
        self.cut.seal()
        places = [(item, self._cut_places[item]) for item in sorted(self.cut.item_sizes)]
        bounds = (self.backlog.max_items, self.backlog.max_bytes)
        return CutFile(name, bounds, places, dict(self.cut.keys), self.cut.closed, self._files.read)

    def end_cut(self) -> None:
        """Forget the cut: it is committed, or given up."""
        self.cut, self._cut_places = None, {}
        self._keep()

    def restore(self, epoch: int, path: Path | None, crc: int) -> None:
        """Go back to the items of a cut; without a file to none. An epoch that was reached already changes nothing.

        Raises:
            OSError: The file cannot be read, or is damaged.
        """
        if epoch <= self.epoch:
            return
        self.end_cut()
        cut_items = cut_file.read(path, crc) if path is not None else cut_file.EMPTY
        dead = self.backlog.dead
        for item, body in cut_items.bodies():
            if item not in dead:
                self._cut_places[item] = self._write({"op": "restore", "item": item}, body)
        # All at once, by the state below: a process that dies before it leaves the queue as it was.
        self.backlog.restore(cut_items.sizes, cut_items.keys, closed=cut_items.closed)
        self.backlog.next = max([self.backlog.next, *(item + 1 for item in cut_items.sizes)])
        dead_places = {item: self._places[item] for item in dead}
        self.epoch, self._places, self._cut_places = epoch, {**dead_places, **self._cut_places}, {}
        self._live = Counter(place[0] for place in self._places.values())
        self._begin()

    def close_queue(self) -> None:
        """Close the queue to puts."""
        if not self.backlog.closed:
            self._write({"op": "close"})
            self.backlog.close()

    def close(self) -> None:
        """Release the folder for another process."""
        self._files.close()

    def _done(self, ids: tuple[int, ...]) -> None:
        segment_count = len(self._live)
        self._live -= Counter(self._places.pop(number)[0] for number in ids)
        # Only when a segment has lost its last item is there something to delete.
        if len(self._live) < segment_count:
            self._keep()

    def _keep(self) -> None:
        # A cut under way still has to be written from the segments of its items.
        self._files.keep(self._live.keys() | {place[0] for place in self._cut_places.values()})

    def _write(self, record: dict[str, Any], body: bytes = b"") -> Place:
        # Each segment begins with the state, so that earlier ones can be deleted.
        if self._files.full:
            self._begin()
        return self._files.append(record, body)

    def _begin(self) -> None:
        self._files.begin()
        epoch = {"epoch": self.epoch} if self.epoch else {}
        self._files.append({"op": "state", "folder_id": self.folder_id, "backlog": self.backlog.to_data(), **epoch})
        self._keep()  # the last segment may have lost its last item while it was written

    def _recover(self) -> None:
        state_segment = 0
        for record, place in self._files.records():
            if record["op"] == "state":
                state_segment = place[0]
            self._replay(record, place) if state_segment else self._salvage(record, place)
        self._live = Counter(place[0] for place in self._places.values())
        if state_segment != self._files.last and not self._files.full:
            self._begin()  # writes the state now, so that older segments can be deleted before this one is full

    def _salvage(self, record: dict[str, Any], place: Place) -> None:
        """Replay a record without the state before it. What was taken is unknown, so all its items wait again."""
        backlog = self.backlog
        caller = QueueCaller(record.get("rank", ""), record.get("incarnation", 0), record.get("session", ""))
        if caller.session:
            backlog.register(caller)
        match record["op"]:
            case "put":
                self._places[backlog.put(caller, record["number"], record["size"], record.get("key", ""))] = place
            case "acknowledge" | "take":
                backlog.begin_get(caller, record["get"], 0)
            case "close":
                backlog.close()
            case _:
                pass

    def _replay(self, record: dict[str, Any], place: Place) -> None:
        """Replay a record that follows a state."""
        backlog = self.backlog
        caller = QueueCaller(record.get("rank", ""), record.get("incarnation", 0), record.get("session", ""))
        match record["op"]:
            case "state":
                # The items of a cut count from the state on that says so: a restore that was broken off never was.
                if record.get("epoch", 0) > self.epoch:
                    self._places, self._restored_places = {**self._places, **self._restored_places}, {}
                self.folder_id, self.epoch = record["folder_id"], record.get("epoch", 0)
                next_number, self.backlog = backlog.next, Backlog.from_data(record["backlog"])
                # Salvaged items were numbered from 1 again, and are shifted to the numbers of the first state. Later on
                # a difference comes from items of a deleted segment, and nothing is shifted.
                shift = 0 if self._stated else self.backlog.next - next_number
                self._stated = True
                stored_items = self.backlog.stored_items
                shifted_places = {number + shift: item_place for number, item_place in self._places.items()}
                self._places = {number: shifted_places[number] for number in shifted_places if number in stored_items}
            case "register":
                backlog.register(caller)
            case "put":
                key = record.get("key", "")
                number = backlog.put(caller, record["number"], record["size"], key, self._content(key, place))
                self._places[number] = place
            case "restore":
                self._restored_places[record["item"]] = place
            case "acknowledge":
                unreadable = record.get("unreadable", ())
                for number in backlog.begin_get(caller, record["get"], record["received"], unreadable) or ():
                    self._places.pop(number, None)  # its segment may have been deleted
            case "take":
                # A get that gave no items back is not recorded.
                if backlog.sessions[caller.session].last_get < record["get"]:
                    backlog.begin_get(caller, record["get"], 0)
                allowed_items = record.get("only")
                backlog.take(caller, record["count"], None if allowed_items is None else frozenset(allowed_items))
            case _:
                self._replay_end(record) if record["op"] == "end" else backlog.close()

    def _replay_end(self, record: dict[str, Any]) -> None:
        stored_items = self.backlog.stored_items
        items = self.backlog.end_incarnation(
            record["rank"], record["incarnation"], HolderEnd(record["end"]), record["error"]
        )
        self._note_contents(items or ())
        for number in stored_items - self.backlog.stored_items:
            self._places.pop(number, None)
