"""A rank's end of its saver: copies into shared memory, asks what to restore."""

from __future__ import annotations

import atexit
import mmap
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dljob.errors import CheckpointError, UsageError
from dljob.master.marks import Life, Mark
from dljob.runtime.checkpoint.files import Folder
from dljob.runtime.checkpoint.fitting import fill
from dljob.runtime.checkpoint.model import Place
from dljob.runtime.checkpoint.pack import Packed, pack, unpack
from dljob.runtime.checkpoint.shards import any_in, fit
from dljob.runtime.checkpoint.slot import PAGE, WHOLE, Head, Slot, check_room, read_head
from dljob.runtime.checkpoint.wire import Wire

SAY_S = 30.0
"""How often a rank that waits for its saver says so."""
SLACK = 16
"""A state may grow by one part in so many before its memory is made anew."""


class Client:
    """One process of a rank. `place` asks the host where the saver is; `say` writes into the rank's log."""

    def __init__(self, place: Callable[[], Mapping[str, Any]], say: Callable[[str], None]) -> None:
        self._ask = place
        self._say = say
        self._lock = threading.RLock()
        self._wire: Wire | None = None
        self._place: Place | None = None
        self._next: Place | None = None
        self._slots: list[Slot] = []
        self._order = 0
        self._done: list[Mapping[str, Any]] = []
        """What data was done before the last save: a saver that takes the place of another hears it with the memory."""
        self.saved: int | None = None
        """The last step that this life has saved; -1: it has only loaded; None: neither."""
        self._pid = os.getpid()
        self._told = ""
        atexit.register(self.close)

    # -- what users call

    def save(self, step: int, state: Any, *, persist: bool, shards: Sequence[Mapping[str, Any]] = ()) -> None:
        """Copy a state; returns when the copy is whole. `shards`: what data was done before it."""
        with self._lock:
            packed = pack(state)
            place = self._connected()
            if not self._slots or self._slots[0].capacity < packed.size:
                self._make_room(place, packed.size)
            slot = self._free_slot()
            self._order += 1
            head = Head(
                WHOLE, self._order, step, place.attempt, place.number, place.incarnation, place.rank, place.world,
                len(packed.index), persist, packed.size,
            )  # fmt: skip
            _fill(slot, packed, head)
            self._done = list(shards)
            try:
                self._connected_wire().send({"op": "commit", "shards": self._done})
            except OSError:  # its saver is gone; the next one finds the copy when it gets the memory
                self._disconnect()
                self._connected()
            self.saved = step

    def load(self, into: Any = None) -> tuple[int, Any] | None:
        """What the life of this rank restores."""
        with self._lock:
            self._renewed()
            self.saved = -1
            for memory in (True, False):
                said, fds = self._request({"op": "choose", "memory": memory})
                if "error" in said:
                    raise CheckpointError(said["error"])
                for word in said["skipped"]:
                    self._say(f"checkpoint: {word}")
                if not said["source"]:
                    return None
                if said["source"] == "lost":
                    raise CheckpointError(
                        f"step {said['step']} was decided upon, and is neither in memory nor on disk any more",
                        hint="its node may be gone: with the next restart an older checkpoint is chosen",
                    )
                state = self._read(said, fds, into)
                if state is not None:
                    self._say(f"checkpoint: restored step {said['step']} from {said['source']}{self._resized(said)}")
                    return said["step"], state[0]
            raise CheckpointError(
                f"step {said['step']} cannot be read", hint="does the rank's old process still write?"
            )

    def latest(self) -> int | None:
        """The newest step that is whole on disk."""
        with self._lock:
            return self._request({"op": "latest"})[0]["step"]

    def wait(self, timeout_s: float, *, everything: bool = False) -> None:
        """Wait until what was saved is on disk."""
        with self._lock:
            if self._place is None:
                return
            said, _ = self._request({"op": "wait", "all": everything, "timeout_s": timeout_s})
            if said["failed"]:
                raise CheckpointError(said["failed"])

    def close(self, *, wait: bool = True) -> None:
        """The rank ends: wait for the disk within the grace, or leave that to the saver; give the memory back."""
        if os.getpid() != self._pid or not self._lock.acquire(timeout=1):
            return
        try:
            if wait and self._place is not None and self._wire is not None:
                try:
                    self.wait(self._place.grace_s, everything=self._place.save_on_exit)
                except (CheckpointError, OSError) as error:
                    self._say(f"checkpoint: {error}")
            self._disconnect()
            for slot in self._slots:
                slot.close()
            self._slots = []
            atexit.unregister(self.close)
        finally:
            self._lock.release()

    # -- memory

    def _make_room(self, place: Place, size: int) -> None:
        """Two copies' memory, all of it now: from here on saving only copies."""
        self.wait(place.grace_s)
        for slot in self._slots:
            slot.close()
        self._slots = []
        capacity = -(-(size + size // SLACK) // PAGE) * PAGE
        try:
            check_room(place.name, capacity)
        except UsageError:
            self._request({"op": "room"})  # what this node keeps for others goes first
            check_room(place.name, capacity)
        self._slots = [Slot.make(capacity, place.name) for _ in range(2)]
        self._offer_slots()

    def _offer_slots(self) -> None:
        self._request({"op": "slots", "shards": self._done}, [slot.fd for slot in self._slots])

    def _free_slot(self) -> Slot:
        """The copy to write over: never one that waits for the disk, else the older one.

        Where nothing more is saved, since the node goes, this waits for the process's end.
        """
        if all(_waits(slot) for slot in self._slots) or any(slot.shut for slot in self._slots):
            said, _ = self._request({"op": "free"})
            if said["failed"] and said["failed"] != self._told:
                self._told = said["failed"]
                self._say(f"checkpoint: {said['failed']}")
            # With a disk that hangs the older copy is written over: the newest state is worth more in memory than an
            # old one on a disk that takes neither.
            free = [slot for n, slot in enumerate(self._slots) if n not in said["busy"]] or self._slots
        else:
            free = [slot for slot in self._slots if not _waits(slot)]
        return min(free, key=_age)

    # -- the line to the saver

    def _connected(self) -> Place:
        if os.getpid() != self._pid:
            raise UsageError("checkpoint was used in a child process of the rank", hint="use it in the rank itself")
        if self._wire is None or self._place is None:
            place, self._next = self._next or Place(**self._ask()), None
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                connection.connect(f"\0{place.address[1:]}")
                wire = Wire(connection)
                wire.send({"op": "hello", "place": asdict(place)})
                got = wire.receive()
            except OSError as error:
                connection.close()
                raise CheckpointError(f"{place.name}: the saver does not answer: {error.strerror}") from error
            if got is None or got[0]["fenced"]:
                connection.close()
                raise CheckpointError(f"{place.name} cannot save: {got[0]['fenced'] if got else 'the saver went away'}")
            self._wire, self._place = wire, place
            if self._slots:
                self._offer_slots()
        return self._place

    def _renewed(self) -> None:
        """A process that lives on while its role is started again has another life: what it saved is the last one's."""
        place = Place(**self._ask())
        if self._place is not None and self._place.life != place.life:
            self._disconnect()
            for slot in self._slots:
                slot.close()
            self._slots, self._order, self._done = [], 0, []
        self._next = place

    def renewed(self) -> Place:
        """The same, once it was asked whether this process has another life now."""
        with self._lock:
            self._renewed()
            return self._connected()

    def place(self) -> Place:
        """Where this process saves, and what it is called."""
        with self._lock:
            return self._connected()

    def shards(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Ask PrimeMaster about a data set; waits while it is away, or while only others have shards."""
        with self._lock:
            while True:
                said, _ = self._request({"op": "shards", "question": dict(question)})
                if said["why"]:
                    raise CheckpointError(said["why"])
                if "again" not in said:
                    return said

    def _connected_wire(self) -> Wire:
        self._connected()
        assert self._wire is not None  # noqa: S101 - what _connected is for
        return self._wire

    @property
    def _folder(self) -> str:
        return self._place.folder if self._place else ""

    def _disconnect(self) -> None:
        if self._wire is not None:
            self._wire.close()
        self._wire = None

    def _request(self, message: dict[str, Any], fds: list[int] | None = None) -> tuple[dict[str, Any], list[int]]:
        """Ask the saver; one that went away is asked for again, once."""
        for last in (False, True):
            wire = self._connected_wire()
            try:
                wire.send(message, fds or ())
                waited = 0.0
                while not wire.readable(SAY_S):
                    waited += SAY_S
                    self._say(f"checkpoint: {message['op']}: no answer for {waited:g} s; is {self._folder} reachable?")
                got = wire.receive()
            except OSError:
                got = None
            if got is not None:
                return got
            self._disconnect()
            if last:
                break
        raise CheckpointError("the saver of this node went away", hint="it is one process per node; see its log")

    # -- reading

    def _resized(self, said: Mapping[str, Any]) -> str:
        """What became of a checkpoint that another number of ranks saved; empty: as many did."""
        place = self._connected()
        there = said.get("world", place.world)
        if there == place.world:
            return ""
        whose = place.rank if place.rank < there else 0
        words = f"; {there} ranks saved it and {place.world} load it: sharded tensors are put together anew"
        return f"{words}, all else is what rank {whose} saved"

    def _read(self, said: dict[str, Any], fds: list[int], into: Any) -> tuple[Any] | None:
        """The state; None when memory changed while it was read, or does not have all that is wanted."""
        place, mark = self._connected(), Mark(Life(**said["life"]), said["step"])
        if fds:
            data = _mapped(fds[0])
            parts = [data] if place.world == 1 else []
        else:
            files = [Folder(Path(place.folder)).part(mark, rank) for rank in range(said["world"])]
            parts = [_mapped(path) for path in files]
            data = parts[place.rank if place.rank < len(parts) else 0]
        head = read_head(data)
        if head is None or head.state != WHOLE or head.step != mark.step:
            return None
        state = unpack(data, PAGE, head.index)
        if any_in(state):
            if not parts:
                return None
            fit([(state if part is data else _pieces(part), part) for part in parts], into)
        if into is not None:
            state = fill(state, into, "state")
        return (state,) if read_head(data) == head else None


def _pieces(part: mmap.mmap) -> Any:
    head = read_head(part)
    return unpack(part, PAGE, head.index, tensors=False) if head else None


def _fill(slot: Slot, packed: Packed, head: Head) -> None:
    slot.begin()
    packed.copy_into(slot.map, PAGE)
    slot.finish(head)


def _waits(slot: Slot) -> bool:
    head = slot.head
    return head is not None and head.state == WHOLE and head.persist and slot.saved != head.order


def _age(slot: Slot) -> int:
    head = slot.head
    return head.order if head is not None and head.state == WHOLE else 0


def _mapped(source: int | Path) -> mmap.mmap:
    """A part in memory (a descriptor, which is closed) or on disk. Private pages: what reads them may want to write."""
    fd = os.open(source, os.O_RDONLY) if isinstance(source, Path) else source
    try:
        return mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(fd)
