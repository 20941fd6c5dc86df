"""The saver: one process per node that holds the copies of its ranks and writes them to disk while the ranks go on.

It serves ranks on a unix socket with an abstract name. The memory of a rank stays here however the rank dies; the saver
persists it, and hands it to the rank's next process. It needs neither ray nor torch.

    -> hello {place}             <- {} | {fenced}       a process of a rank connects, or connects again
    -> slots {shards} + descr.   <- {}                  its memory, from now on; data done before the last copy in it
    -> positions {shards}                               data done before the copy that is made next
    -> commit {}                                        a copy is whole (its header says which)
    -> free {}                   <- {failed, busy}      at most one copy waits for the disk, or it hangs; busy slots
    -> wait {all, timeout_s}     <- {failed, busy}      no copy waits (all: also those saved with persist=False)
    -> choose {memory}           <- {source, ...}       what this rank's run restores; memory comes as a descriptor
    -> room {others}             <- {}                  a rank needs memory: drop its earlier copies that are on disk,
                                                        or (others) keep no copies for other nodes
    -> latest {}                 <- {step}              the newest whole checkpoint
    -> shards {question}         <- {runs, ...}         leases of data, and what was done of it (`data.shards`)
    -> flush|last {timeout_s}    <- {failed, steps}     sent by the code that ends a node, without a hello (FinalSave)
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dljob.errors import CheckpointError
from dljob.master.state.checkpoint_ids import CheckpointId, RunId, fence
from dljob.runtime.checkpoint.book import Book, FileBook
from dljob.runtime.checkpoint.files import Copy, Folder, TornError
from dljob.runtime.checkpoint.final_save import FinalSave
from dljob.runtime.checkpoint.holding import Holding, newest_whole_mark
from dljob.runtime.checkpoint.model import KEEP, CheckpointLocation
from dljob.runtime.checkpoint.peers import Keeper, Post, Sender
from dljob.runtime.checkpoint.restoring import Restorer, newest_on_disk
from dljob.runtime.checkpoint.slot import CopyHeader
from dljob.runtime.checkpoint.wire import Wire

WRITERS = 4
"""Threads that write to disk."""
KEPT_S = 120.0
"""Seconds for which a dead rank's memory stays available to its successor once it is on disk."""

ReportEvent = Callable[[str, str], None]
"""Callback for a kind (Saved, Failed, Fenced, Damaged, NoPeer) and a sentence."""


class Saver:
    """Serves ranks on `address` until `close`. `post` leads to a peer node, if peer copies are on.

    `others` makes the savers of other nodes flush, and write the copies of a world that they keep, before it decides.
    `book` is where commits and decisions are recorded: PrimeMaster's journal, or the files alone.
    """

    def __init__(
        self,
        address: str,
        report: ReportEvent,
        others: Callable[[str], None] = lambda _: None,
        book: Book | None = None,
        post: Post | None = None,
    ) -> None:
        self.address = address
        self._report = report
        self._others = others
        self._book = book or FileBook()
        self._changed = threading.Condition()
        # Several for a (folder, rank): processes that died and the present one. The lock of `_changed` guards them all.
        self._holdings: dict[tuple[str, int], list[Holding]] = {}
        self._newest: dict[str, RunId] = {}
        self._committed: dict[str, CheckpointId] = {}
        """The newest checkpoint of each folder whose last part this saver wrote."""
        self._closed = False
        self._restorer = Restorer(
            self._changed, self._holdings_of, self._report_positions, self._flush_all_nodes, self._book, report=report
        )
        self.keeper = Keeper(self._changed, self._newest.get)
        self.final_save = FinalSave(self._changed, self._all, self.flush, self.bring)
        self._sender = Sender(self._changed, self._all, self._report_positions, report, post) if post else None
        self._writers = ThreadPoolExecutor(WRITERS, thread_name_prefix="dljob-save")
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server.bind(f"\0{address[1:]}")
        self._server.listen(256)
        threading.Thread(target=self._accept, name="dljob-savers", daemon=True).start()

    # -- from outside the ranks

    def flush(self, timeout_s: float, *, alive: bool = False) -> str:
        """Persist the copies of dead ranks, with `alive` those of living ones too.

        Return why not all is on disk, else empty.
        """
        end = time.monotonic() + timeout_s
        with self._changed:
            holdings = [h for many in self._holdings.values() for h in many if alive or h.ended()]
        for holding in holdings:
            # PrimeMaster must know the data positions before a checkpoint counts that contains them (ADR 28).
            self._report_positions(holding)
        with self._changed:
            for holding in holdings:
                # A failure of an earlier attempt is forgotten: the disk may take the copy now.
                holding.failed = ""
                self._enqueue(holding, all_of_it=holding.place.save_on_exit)
            done = self._changed.wait_for(lambda: not any(h.busy for h in holdings), max(0.0, end - time.monotonic()))
        late = "" if done else f"not all was on disk after {timeout_s:g} s"
        return next((h.failed for h in holdings if h.failed), late)

    def bring(self, folder: str, timeout_s: float) -> str:
        """Write the copies of a world (empty: of all worlds) that are kept for other nodes.

        Return why not all is on disk, else empty.
        """
        end = time.monotonic() + timeout_s
        with self._changed:
            # A copy that is still arriving comes too late for the decision of this world.
            self.keeper.abort_transfers(folder)
            peer_copies = self.keeper.copies_of(folder)
            for holding in peer_copies:
                holding.failed = ""
                holding.ended_at = time.monotonic()
                self._enqueue(holding, all_of_it=True)
            done = self._changed.wait_for(
                lambda: not any(h.busy for h in peer_copies), max(0.0, end - time.monotonic())
            )
        late = "" if done else f"not all that is kept for other nodes was on disk after {timeout_s:g} s"
        return next((h.failed for h in peer_copies if h.failed), late)

    def _flush_all_nodes(self, folder: str, timeout_s: float) -> None:
        """Make every node write the copies of dead ranks, then the copies that are kept for other nodes."""
        self.flush(timeout_s)
        # The owners first: a peer's copy is written only if its owner did not bring the same step to disk.
        self._others(folder)
        self.bring(folder, timeout_s)

    def close(self) -> None:
        """Stop serving and release all memory."""
        if self._sender is not None:
            self._sender.close()
        self._closed = True
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._writers.shutdown(wait=False, cancel_futures=True)

    # -- connections

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:  # `close` has shut the socket
                return
            wire = Wire(connection)
            # An abstract socket has no file permissions: any user in this network namespace can connect.
            if wire.peer()[1] != os.getuid():
                wire.close()
                continue
            threading.Thread(target=self._serve, args=(wire,), name="dljob-rank", daemon=True).start()

    def _serve(self, wire: Wire) -> None:
        """Serve one connection: a process of a rank, from its hello to its death."""
        holding: Holding | None = None
        pid = wire.peer()[0]
        try:
            # The socket's end alone does not tell a death: children of the rank may have inherited the socket.
            process = os.pidfd_open(pid)
        except OSError:
            wire.close()
            return
        try:
            while wire.readable_from(process) and (got := wire.receive()) is not None:
                message, fds = got
                if message["op"] == "hello":
                    if holding is not None:
                        # The pidfd is closed with this connection: only the last holding may poll it.
                        holding.process = -1
                    holding = self._hello(CheckpointLocation(**message["place"]), process)
                    wire.send({"fenced": holding.fenced})
                elif holding is not None:
                    self._answer(wire, holding, message, fds)
                else:
                    wire.send(self.final_save.answer(message))
        except OSError:
            pass
        finally:
            if holding is not None:
                self._enqueue_copies(holding)
            # Only now: `Holding.ended` polls it until `_enqueue_copies` has taken it out of the holding.
            os.close(process)
            wire.close()

    def _hello(self, place: CheckpointLocation, process: int) -> Holding:
        holding = Holding(place, process=process)
        with self._changed:
            newest = self._newest.get(place.folder, place.run_id)
            self._newest[place.folder] = max(newest, place.run_id)
            # A process of an earlier run that thaws late may hold its copies, but nothing of them counts.
            if place.run_id < newest:
                holding.fenced = f"run {newest} has begun on this node"
            self._tidy(coming=place.folder)  # before it takes memory of its own
            self._holdings.setdefault((place.folder, place.rank), []).append(holding)
        return holding

    def _enqueue_copies(self, holding: Holding) -> None:
        """Enqueue the copies of a process that is gone."""
        with self._changed:
            holding.alive, holding.process = False, -1
            holding.ended_at = time.monotonic()
            self._enqueue(holding, all_of_it=holding.place.save_on_exit)
            self._tidy()
            self._changed.notify_all()

    def _answer(self, wire: Wire, holding: Holding, message: dict[str, Any], fds: list[int]) -> None:
        # Before everything else: during the last save of a node a rank that wants to save waits here.
        self.final_save.hold(holding, message["op"])
        if positions := message.get("shards"):
            with self._changed:
                holding.unreported_positions.extend(positions)
            # In a thread: PrimeMaster may be away, and `commit` has to return at once.
            self._writers.submit(self._report_positions, holding)
        match message["op"]:
            case "slots":
                self._replace_memory(holding, fds)
                wire.send({})
            case "commit" | "positions":
                with self._changed:
                    self._enqueue(holding, all_of_it=False)
                    self._tidy()
                    self._changed.notify_all()
            case "shards":
                reply = self._book.shards(message["question"])
                wire.send(reply or {"why": "PrimeMaster is not there to say what is to be done"})
            case "free" | "wait":
                wire.send(self._wait(holding, message))
            case "choose":
                try:
                    reply, reply_fds = self._restorer.choose(holding.place, memory=message["memory"])
                    holding.restored = CheckpointId.of(reply["mark"]) if "mark" in reply else None
                except (CheckpointError, OSError) as error:
                    reply, reply_fds = {"error": _reason(holding.place, error)}, []
                wire.send(reply, reply_fds)
                for fd in reply_fds:
                    os.close(fd)
            case "room":
                self._make_room(holding, others=message["others"])
                wire.send({})
            case _:
                newest = newest_on_disk(Folder.of(holding.place))
                wire.send({"step": newest and newest.step})

    def _replace_memory(self, holding: Holding, fds: list[int]) -> None:
        """Take the memory into which a process saves from now on; copies in its former memory stay until needless."""
        with self._changed:
            # A writer may still read the memory that is about to be replaced.
            self._changed.wait_for(lambda: not holding.busy, holding.place.grace_s)
            if holding.unsaved_copies(all_of_it=True):
                aside = holding.set_aside(time.monotonic())
                self._holdings[holding.place.folder, holding.place.rank].append(aside)
                self._enqueue(aside, all_of_it=aside.place.save_on_exit)
            holding.replace(fds)
            self._enqueue(holding, all_of_it=False)  # copies that another saver did not live to save
            self._tidy()

    def _make_room(self, holding: Holding, *, others: bool) -> None:
        """Release a rank's earlier copies once they are on disk, or (`others`) the copies of other nodes."""
        if others:
            self.keeper.drop_all()
            return
        place = holding.place
        with self._changed:
            holdings = [h for h in self._holdings.get((place.folder, place.rank), ()) if h is holding or not h.alive]
            for rank_holding in holdings:
                self._enqueue(rank_holding, all_of_it=rank_holding.place.save_on_exit)
            self._changed.wait_for(lambda: not any(h.busy for h in holdings), place.grace_s)
            for rank_holding in holdings:
                needed = (
                    rank_holding.unsaved_copies(all_of_it=True)
                    if rank_holding is holding
                    else self._needed_marks(rank_holding, holding)
                )
                if not needed and not rank_holding.busy:
                    rank_holding.drop()
            self._tidy()

    def _wait(self, holding: Holding, message: dict[str, Any]) -> dict[str, Any]:
        late, waiting = "", list[CheckpointId]()
        with self._changed:
            # `wait` retries what has failed; `free` only waits for a slot, and gives up on a disk that hangs.
            if message["op"] == "wait":
                self._enqueue(holding, all_of_it=message["all"])
                self._changed.wait_for(lambda: not holding.busy, message["timeout_s"])
                late = f"not on disk after {message['timeout_s']:g} s" if holding.busy else ""
            else:
                grace = holding.place.grace_s
                done = self._changed.wait_for(lambda: len(holding.busy) < 2, grace)
                late = "" if done else f"{holding.place.folder} has taken nothing for {grace:g} s; steps stay in memory"
                waiting = [head.mark for _, head in holding.unsaved_copies(all_of_it=False)] if late else []
            answer = {"failed": holding.fenced or holding.failed or late, "busy": list(holding.busy)}
        if waiting:
            self._book.not_saved(holding.place, max(waiting), late)
        return answer

    # -- to disk

    def _enqueue(self, holding: Holding, *, all_of_it: bool) -> None:
        """Submit the copies of a holding that belong on disk. The caller holds the lock."""
        for number, head in holding.unsaved_copies(all_of_it=all_of_it):
            if number not in holding.busy and not self._closed:
                holding.busy.add(number)
                self._writers.submit(self._save, holding, number, head)

    def _save(self, holding: Holding, number: int, head: CopyHeader) -> None:
        failed = fenced = reason = ""
        torn = False
        try:
            fenced = self._persist(holding, number, head)
        # Not a failure: the rank was allowed to overwrite a copy that the disk did not take in time.
        except TornError:
            torn = True
        except OSError as error:
            newest = newest_on_disk(Folder.of(holding.place))
            # Else the checkpoint is expired, and `retain` of another saver has deleted its folder beneath this writer.
            if newest is None or newest < head.mark:
                reason = error.strerror or str(error)
                failed = f"{holding.place.name}: step {head.step} is not saved: {reason} ({holding.place.folder})"
        except Exception as error:  # noqa: BLE001 - whatever it is, the rank must hear it
            reason = f"{type(error).__name__}: {error}"
            failed = f"{holding.place.name}: step {head.step} is not saved: {reason}"
        if failed:  # before the rank hears of it, which may end for it
            self._book.not_saved(holding.place, head.mark, reason)
        with self._changed:
            if not (failed or fenced or torn) and holding.slots:
                holding.slots[number].note_saved(head.order)
                if self._sender is not None:
                    self._sender.note_needless(holding, head.order)
            holding.failed = failed
            holding.fenced = holding.fenced or fenced
            holding.busy.discard(number)
            if torn:  # the rank wrote over it: what it wrote may have come while this was busy
                self._enqueue(holding, all_of_it=not holding.alive and holding.place.save_on_exit)
            self._tidy()
            self._changed.notify_all()
        if failed:
            self._report("Failed", failed)

    def _report_positions(self, holding: Holding) -> None:
        """Report data positions to PrimeMaster; they must be known before the save that contains them counts."""
        with holding.report_lock:
            with self._changed:
                waiting = list(holding.unreported_positions)
            for question in waiting:
                # Not under the lock of `_changed`: PrimeMaster may be away for minutes, and saves go on meanwhile.
                self._book.shards(question)
            with self._changed:
                del holding.unreported_positions[: len(waiting)]

    def _persist(self, holding: Holding, number: int, head: CopyHeader) -> str:
        """Write one copy, and the manifest after the last part; return why the copy is refused, else empty."""
        place, slot = holding.place, holding.slots[number]
        folder, mark = Folder(Path(place.folder)), head.mark
        refusal = holding.fenced or fence(mark, folder.decisions())
        if holding.is_peer_copy and not refusal and (newest := newest_on_disk(folder)) and newest >= mark:
            # This step or a later one is on disk: nobody will ask for the copy.
            return ""
        if not refusal:
            self._report_positions(holding)
            copy = Copy(slot.map, head.total, lambda: slot.head == head)
            # The owner may have written this part already, with the same bytes.
            if not (holding.is_peer_copy and folder.has_part(mark, place.rank)):
                folder.write_part(mark, place.rank, slot.clean_head(head), copy)
            outcome = folder.commit(
                mark, place.world, lambda: self._book.commit(place, mark), lambda: self._book.needed(place)
            )
            if outcome == "committed":
                with self._changed:
                    self._committed[place.folder] = max(mark, self._committed.get(place.folder, mark))
                folder.retain(KEEP, self._book.needed(place))
                self._report(
                    "Saved", f"step {head.step} is saved: {place.world} x {head.size >> 20} MiB in {place.folder}"
                )
            refusal = outcome.removeprefix("fenced: ") if outcome.startswith("fenced") else ""
        if refusal:
            self._report("Fenced", f"{place.name}: step {head.step} of run {place.run_id} does not count: {refusal}")
        return refusal

    def _tidy(self, coming: str = "") -> None:
        """Release memory of dead processes that no successor will ask for. The caller holds the lock.

        `coming`: the folder of a world whose ranks are just arriving; its memory stays, however old it is.
        """
        now = time.monotonic()
        self.keeper.tidy(now - KEPT_S, self._is_inherited)
        for key, many in list(self._holdings.items()):
            for old in list(many):
                if old.alive or old.busy:
                    continue
                late = (
                    now - old.ended_at > KEPT_S
                    and key[0] != coming
                    and not old.unsaved_copies(all_of_it=old.place.save_on_exit)
                )
                if not old.slots or old.fenced or late or self._is_inherited(old):
                    old.drop()
                    many.remove(old)
                    if self._sender is not None:
                        # The peer keeps a copy for a process that is gone: it may drop it, too.
                        self._sender.note_needless(old)
            if not many:
                del self._holdings[key]

    def _is_inherited(self, old: Holding) -> bool:
        """Return whether a later process of its rank has memory here, and no run needs the copies of the earlier one.

        The caller holds the lock.
        """
        many = self._holdings.get((old.place.folder, old.place.rank), ())
        later = (h for h in many if h is not old and h.alive and h.slots and h.place.run_id >= old.place.run_id)
        heir = next(later, None)
        return heir is not None and not self._needed_marks(old, heir)

    def _needed_marks(self, old: Holding, heir: Holding) -> list[CheckpointId]:
        """List the checkpoints that a next run may want of a dead process. The caller holds the lock."""
        # A copy on disk is safe there, and one that its heir holds too (it has only connected again) is safe there.
        marks = [head.mark for _, head in old.unsaved_copies(all_of_it=True) if heir.holds(head.mark) is None]
        # Of earlier runs nothing counts but what the heir has restored. Crashes in a row would fill the memory.
        if heir.restored is not None:
            marks = [mark for mark in marks if mark == heir.restored or mark.run_id == heir.place.run_id]
        # The heir's own first copy is not enough: until all ranks have saved, every run goes back to the earlier one.
        complete_mark = newest_whole_mark(
            h for (path, _), many in self._holdings.items() if path == old.place.folder for h in many
        )
        newer = [mark for mark in (complete_mark, self._committed.get(old.place.folder)) if mark is not None]
        return [mark for mark in marks if not newer or mark > max(newer)]

    def _holdings_of(self, folder: str) -> list[Holding]:
        with self._changed:
            holdings = [h for (path, _), many in self._holdings.items() if path == folder for h in many]
            return holdings + self.keeper.copies_of(folder)

    def _all(self) -> list[Holding]:
        """List the copies that the ranks of this node made. The caller holds the lock."""
        return [holding for many in self._holdings.values() for holding in many]


def _reason(place: CheckpointLocation, error: CheckpointError | OSError) -> str:
    """Return the message why a rank cannot load."""
    return f"{place.name} cannot load: {error.strerror} ({place.folder})" if isinstance(error, OSError) else str(error)
