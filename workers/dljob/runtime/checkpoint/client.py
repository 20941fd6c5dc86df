"""A rank's client of its node's saver: it copies the state into shared memory, and asks which checkpoint to restore."""

from __future__ import annotations

import atexit
import mmap
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dljob.errors import CheckpointError, UsageError
from dljob.linux.socket_peer import connect_to_own
from dljob.master.state.checkpoint_ids import CheckpointId, RunId
from dljob.runtime.checkpoint.files import Folder
from dljob.runtime.checkpoint.model import CheckpointLocation
from dljob.runtime.checkpoint.pack import Packed, pack, unpack
from dljob.runtime.checkpoint.shards import any_in, fill, fit
from dljob.runtime.checkpoint.slot import PAGE, WHOLE, CopyHeader, Slot, check_room, read_head
from dljob.runtime.checkpoint.wire import Wire
from dljob.telemetry.wording import counted

SAY_S = 30.0
"""Interval, in seconds, at which a rank that waits for its saver writes so into its log."""
STEPS = 1 << 63
"""Number of steps: a step is stored as a signed 64-bit number."""
BESIDE = "dljob.cut"
"""The key under which a part of a cut, or a checkpoint of TensorFlow's chief, has what was saved beside the state."""
SLACK = 16
"""Headroom of the shared memory: a state may grow by 1/SLACK before the memory is allocated anew."""


NOTHING_SAVED = (-1, 0)
"""(step, revision) before the first save of a run."""


class SaveCount:
    """Counts the saves of a process, per run."""

    def __init__(self) -> None:
        self._run_id: RunId | None = None
        self._order = 0
        self._newest = NOTHING_SAVED

    def saves_of(self, run_id: RunId) -> int:
        """Return the number of saves of a run."""
        return self._order if run_id == self._run_id else 0

    def newest(self, run_id: RunId) -> tuple[int, int]:
        """Return (step, revision) of the newest checkpoint that a run has saved."""
        return self._newest if run_id == self._run_id else NOTHING_SAVED

    def next(self, run_id: RunId, step: int) -> tuple[int, int]:
        """Return (order, revision) of the next save.

        A step that is not above the one before gets the order as its revision (`CheckpointId.revision`). All ranks of
        a world make the same saves, so their revisions are equal, and parts of two saves of a step never make a
        checkpoint together.
        """
        if run_id != self._run_id:
            self._run_id, self._order, self._newest = run_id, 0, NOTHING_SAVED
        self._order += 1
        revision = self._newest[1] if step > self._newest[0] else self._order
        self._newest = step, revision
        return self._order, revision


class CheckpointClient:
    """The client of one process of a rank. `place` asks the host for the saver's location.

    `say` writes into the rank's log.
    """

    def __init__(
        self, place: Callable[[], Mapping[str, Any]], say: Callable[[str], None], count: SaveCount | None = None
    ) -> None:
        self._ask = place
        self._say = say
        self._lock = threading.RLock()
        self._wire: Wire | None = None
        self._place: CheckpointLocation | None = None
        self._next: CheckpointLocation | None = None
        self._slots: list[Slot] = []
        self._count = count or SaveCount()
        self._done: list[Mapping[str, Any]] = []
        """Data positions done before the last save: a saver that replaces another gets them along with the memory."""
        self.saved: tuple[int, int] | None = None
        """(step, revision) of the newest checkpoint that this run has saved, or NOTHING_SAVED if it has only loaded.
        None if neither.

        Work that follows is in no checkpoint of this run up to it, also after a load that went back.
        """
        self.loaded: CheckpointId | None = None
        """The checkpoint that was loaded last; None: there was none."""
        # A fork inherits the socket and the memory: with its own requests the answers of parent and child would be
        # mixed up.
        self._pid = os.getpid()
        self.called: Callable[[], int] = lambda: 0
        """Returns the cut for which this rank is to save; 0: for none."""
        self.note: Callable[[str, int], None] = lambda _name, _value: None
        """Notes a value of this rank for the job's samples."""
        self.beside: dict[str, Any] = {}
        """What a cut saved beside the state that was loaded last."""
        self._reported_failure = ""
        atexit.register(self.close)

    # -- what users call

    def save(self, step: int, state: Any, *, persist: bool, shards: Sequence[Mapping[str, Any]] = ()) -> CheckpointId:
        """Copy a state, and return its mark when the copy is whole. `shards`: the data positions done before it."""
        with self._lock:
            if not 0 <= step < STEPS:
                raise UsageError(f"checkpoint.save({step}): a step is a whole number from 0 to 2**63 - 1")
            # 1. All that may fail, before any memory is touched: a state that cannot be pickled leaves both copies as
            # they were.
            packed = pack(state)
            place = self._connected()
            if not self._slots or self._slots[0].capacity < packed.size:
                self._make_room(place, packed.size)
            # 2. The slot, which may take a wait for the disk. The count comes after: all ranks count the same saves.
            slot = self._begun_slot()
            order, revision = self._count.next(place.run_id, step)
            head = CopyHeader(
                WHOLE, order, step, place.attempt, place.number, place.incarnation, place.rank, place.world,
                len(packed.index), persist, packed.size, revision,
            )  # fmt: skip
            # 3. The data positions before the copy that contains them; then the saver is notified. A rank that dies in
            # between loses nothing: the saver reads the headers.
            self._done = list(shards)
            if self._done:
                self._notify({"op": "positions", "shards": self._done})
            _fill(slot, packed, head)
            self._notify({"op": "commit"})
            self.saved = self._count.newest(place.run_id)
            return head.mark

    def next_order(self) -> int:
        """Return how many saves this run will have made with the next one."""
        with self._lock:
            return self._count.saves_of(self._connected().run_id) + 1

    def load(self, into: Any = None) -> tuple[int, Any] | None:
        """Return the (step, state) that the life of this rank restores; None when there is nothing to restore.

        Raises:
            CheckpointError: The decided checkpoint is gone or damaged, PrimeMaster cannot decide, or what this run
                saved cannot be written to disk.
        """
        with self._lock:
            self._renewed()
            run_id = self._connected().run_id
            self.saved = self._count.newest(run_id)
            if self._count.saves_of(run_id):  # to the last save, also where it is in memory alone or still on its way
                self.wait(self._connected().grace_s, everything=True)
            # Memory first, then disk: a copy in memory may be overwritten while it is read, or lack pieces of other
            # ranks.
            for memory in (True, False):
                reply, fds = self._request({"op": "choose", "memory": memory})
                if "error" in reply:
                    raise CheckpointError(reply["error"])
                for word in reply["skipped"]:
                    self._say(f"checkpoint: {word}")
                if not reply["source"]:
                    self.loaded = None
                    return None
                mark = CheckpointId.of(reply["mark"])
                if reply["source"] == "lost":
                    raise CheckpointError(
                        f"step {mark.step} is to be restored, but is neither in memory nor on disk any more",
                        hint="its node may be gone: with the next restart an older checkpoint is chosen",
                    )
                state = self._read(mark, reply.get("world", 0), fds, into)
                if state is not None:
                    self.loaded = mark
                    self._say(
                        f"checkpoint: restored step {mark.step} from {reply['source']}{self._describe_resize(reply)}"
                    )
                    return mark.step, state[0]
            raise CheckpointError(f"step {mark.step} cannot be read", hint="does the rank's old process still write?")

    def latest(self) -> int | None:
        """Return the newest step that is whole on disk; None without one."""
        with self._lock:
            return self._request({"op": "latest"})[0]["step"]

    def wait(self, timeout_s: float, *, everything: bool = False) -> None:
        """Wait until the saves are on disk; `everything` includes those with `persist=False`.

        Raises:
            CheckpointError: They are not, after `timeout_s` seconds or because the disk refused.
        """
        with self._lock:
            if self._place is None:
                return
            reply, _ = self._request({"op": "wait", "all": everything, "timeout_s": timeout_s})
            if reply["failed"]:
                raise CheckpointError(reply["failed"])

    def close(self, *, wait: bool = True) -> None:
        """End the client: wait for the disk within the grace, or leave that to the saver (`wait=False`).

        Release the memory.
        """
        # atexit also runs this in a forked child, and beside a thread that is stuck in a save: neither may hold up the
        # exit.
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

    def _make_room(self, place: CheckpointLocation, size: int) -> None:
        """Allocate the memory of both copies, with all its pages: later saves only copy."""
        # A disk that refuses is told before more memory is taken. Copies in memory alone stay with the saver.
        self.wait(place.grace_s)
        for slot in self._slots:
            slot.close()
        self._slots = []
        # Whole pages, and a little more: a state that grows must not need new memory at once.
        capacity = -(-(size + size // SLACK) // PAGE) * PAGE
        self._check_room(place, capacity)
        self._slots = [Slot.make(capacity, place.name) for _ in range(2)]
        self._offer_slots()

    def _check_room(self, place: CheckpointLocation, capacity: int) -> None:
        """Check that both copies fit, after what can be spared has gone: first what this rank has on disk as well.

        Copies that this node keeps for others go only then, since it takes no more of them for the rest of the job.
        """
        for others in (False, True):
            try:
                check_room(place.name, capacity)
            except UsageError:
                self._request({"op": "room", "others": others})
            else:
                return
        check_room(place.name, capacity)

    def _offer_slots(self) -> None:
        self._request({"op": "slots", "shards": self._done}, [slot.fd for slot in self._slots])

    def _begun_slot(self) -> Slot:
        """Return the copy to overwrite, marked as torn; during the last save of the node, no copy begins.

        The last save forbids copies, then waits for those that have begun: it sees the mark, or this its flag. A rank
        that went on between the two would have a step that is not on disk.
        """
        shut, slot = self._shut(), self._free_slot()
        before = slot.head
        slot.begin()
        if self._shut() and not shut:
            slot.take_back(before)
            slot = self._free_slot()  # it waits in the saver
            slot.begin()
        return slot

    def _shut(self) -> bool:
        return any(slot.shut for slot in self._slots)

    def _free_slot(self) -> Slot:
        """Return the copy to overwrite: never one that waits for the disk, else the older one.

        While the node is being drained, this waits until the process ends: a later copy could not reach the disk.
        """
        if all(_waits(slot) for slot in self._slots) or self._shut():
            reply, _ = self._request({"op": "free"})
            if reply["failed"] and reply["failed"] != self._reported_failure:
                self._reported_failure = reply["failed"]
                self._say(f"checkpoint: {reply['failed']}")
            # With a disk that hangs the older copy is written over: the newest state is worth more in memory than an
            # old one on a disk that takes neither.
            free = [slot for n, slot in enumerate(self._slots) if n not in reply["busy"]] or self._slots
        else:
            free = [slot for slot in self._slots if not _waits(slot)]
        return min(free, key=_age)

    # -- the line to the saver

    def _connected(self) -> CheckpointLocation:
        """Connect to the saver unless connected, and return where this process saves.

        Raises:
            UsageError: The process is a fork of the rank.
            CheckpointError: The saver does not answer, or has fenced this process.
        """
        if os.getpid() != self._pid:
            raise UsageError("checkpoint was used in a child process of the rank", hint="use it in the rank itself")
        if self._wire is None or self._place is None:
            place, self._next = self._next or CheckpointLocation(**self._ask()), None
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                connect_to_own(connection, f"\0{place.address[1:]}")
                wire = Wire(connection)
                wire.send({"op": "hello", "place": asdict(place)})
                answer = wire.receive()
            except OSError as error:
                connection.close()
                raise CheckpointError(f"{place.name}: the saver does not answer: {error.strerror}") from error
            # Fenced: a later run has begun on this node, and what this process saves would not count.
            if answer is None or answer[0]["fenced"]:
                connection.close()
                raise CheckpointError(
                    f"{place.name} cannot save: {answer[0]['fenced'] if answer else 'the saver went away'}"
                )
            # A new saver knows nothing: it gets the memory that its predecessor had, and persists the copies in it.
            self._wire, self._place = wire, place
            if self._slots:
                self._offer_slots()
        return self._place

    def _renewed(self) -> None:
        """Ask the host for the location again; a new run drops the copies of the one before.

        With `InProcess` restarts the process lives on, in another run; what it had saved belongs to the earlier one.
        """
        place = CheckpointLocation(**self._ask())
        if self._place is not None and self._place.run_id != place.run_id:
            self._disconnect()
            for slot in self._slots:
                slot.close()
            self._slots, self._done = [], []
        self._next = place

    def renewed(self) -> CheckpointLocation:
        """Return the location, after asking the host whether this process has a new run."""
        with self._lock:
            self._renewed()
            return self._connected()

    def place(self) -> CheckpointLocation:
        """Return where this process saves, and its names there."""
        with self._lock:
            return self._connected()

    def shards(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Ask PrimeMaster about a data set.

        Waits while PrimeMaster is away, or while other ranks hold all remaining shards.

        Raises:
            CheckpointError: PrimeMaster refused; the message says why.
        """
        with self._lock:
            while True:
                reply, _ = self._request({"op": "shards", "question": dict(question)})
                # A refusal does not pass; `again` is an answer that may change.
                if reply["why"]:
                    raise CheckpointError(reply["why"])
                if "again" not in reply:
                    return reply

    def _connected_wire(self) -> Wire:
        self._connected()
        assert self._wire is not None  # noqa: S101 - what _connected is for
        return self._wire

    @property
    def _folder(self) -> str:
        return self._place.folder if self._place else ""

    def _notify(self, message: dict[str, Any]) -> None:
        try:
            self._connected_wire().send(message)
        except OSError:  # its saver is gone; the next one finds the copy when it gets the memory
            self._disconnect()
            self._connected()

    def _disconnect(self) -> None:
        if self._wire is not None:
            self._wire.close()
        self._wire = None

    def _request(self, message: dict[str, Any], fds: list[int] | None = None) -> tuple[dict[str, Any], list[int]]:
        """Send a request to the saver and return its answer. A saver that went away is started again, once.

        Raises:
            CheckpointError: The second one went away too.
        """
        for last in (False, True):
            wire, answer = self._connected_wire(), None
            try:
                with suppress(OSError):
                    wire.send(message, fds or ())
                    waited = 0.0
                    # No timeout: an answer that comes late would be taken for that of the next request.
                    while not wire.readable(SAY_S):
                        waited += SAY_S
                        self._say(
                            f"checkpoint: {message['op']}: no answer for {waited:g} s; is {self._folder} reachable?"
                        )
                    answer = wire.receive()
            finally:
                # Also where the thread was interrupted, for the same reason: its answer comes over this connection.
                if answer is None:
                    self._disconnect()
            if answer is not None:
                return answer
            if last:
                break
        raise CheckpointError("the saver of this node went away", hint="it is one process per node; see its log")

    # -- reading

    def _describe_resize(self, reply: Mapping[str, Any]) -> str:
        """Say what happens to a checkpoint that another number of ranks saved; empty if the number is the same."""
        place = self._connected()
        saved_world = reply.get("world", place.world)
        if saved_world == place.world:
            return ""
        source_rank = place.rank if place.rank < saved_world else 0
        words = f"; {counted(saved_world, 'rank')} saved it and {place.world} load it: sharded tensors are put together"
        return f"{words} anew, all else is what rank {source_rank} saved"

    def _read(self, mark: CheckpointId, world: int, fds: list[int], into: Any) -> tuple[Any] | None:
        """Return the state in a tuple; None when memory changed during the read, or lacks pieces of other ranks."""
        place = self._connected()
        # A rank that the saved world did not have starts with rank 0's unsharded values.
        source_rank = place.rank if place.rank < world else 0
        data = _mapped(fds[0]) if fds else self._map_part(mark, source_rank, world)
        head = read_head(data)
        if head is None or head.state != WHOLE or head.mark != mark:
            return None
        state, self.beside = without_beside(unpack(data, PAGE, head.index))
        if any_in(state):
            # Memory has this rank's pieces alone; another sharding needs those of all ranks, which are on disk.
            if fds and place.world > 1:
                return None
            others = (
                data if fds or rank == source_rank else self._map_part(mark, rank, world) for rank in range(world or 1)
            )
            fit([(state if part is data else _pieces(part), part) for part in others], into)
        if into is not None:
            state = fill(state, into, "state")
        # The header again, after the read: the rank's former process may still be writing into this memory.
        return (state,) if read_head(data) == head else None

    def _map_part(self, mark: CheckpointId, rank: int, world: int) -> mmap.mmap:
        """Map a part on disk. Each load checks every byte: the check of the saver that decided may be long ago."""
        place = self._connected()
        folder = Folder.of(place)
        if fault := folder.check_part(mark, rank, world):
            raise CheckpointError(
                f"{place.name} cannot restore {mark}: {fault}",
                hint="with the next restart an older checkpoint is chosen",
            )
        return _mapped(folder.part(mark, rank))


def without_beside(state: Any) -> tuple[Any, dict[str, Any]]:
    """Return a state, and what was saved beside it."""
    if isinstance(state, dict) and BESIDE in state:
        parts: dict[str, Any] = state
        return parts["state"], parts[BESIDE]
    return state, {}


def _pieces(part: mmap.mmap) -> Any:
    head = read_head(part)
    return without_beside(unpack(part, PAGE, head.index, tensors=False))[0] if head else None


def _fill(slot: Slot, packed: Packed, head: CopyHeader) -> None:
    packed.copy_into(slot.map, PAGE, locked=packed.on_gpu and slot.lock_for_gpu())
    slot.finish(head)


def _waits(slot: Slot) -> bool:
    head = slot.head
    return head is not None and head.state == WHOLE and head.persist and slot.saved != head.order


def _age(slot: Slot) -> int:
    head = slot.head
    return head.order if head is not None and head.state == WHOLE else 0


def _mapped(source: int | Path) -> mmap.mmap:
    """Map a part in memory (a descriptor, which is closed) or on disk.

    The pages are private: readers may write into them.
    """
    fd = os.open(source, os.O_RDONLY) if isinstance(source, Path) else source
    try:
        return mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(fd)
