"""Transfer of a copy to the peer node: the agents of two savers send it in pieces, so no saver needs a network.

The owner's agent reads the copy's memory itself, and checks after each piece whether the copy is still the one to send.
The peer's agent writes into memory that its saver made for it. The saver keeps the copy only if its CRC-32 is right.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from dljob.runtime.checkpoint.slot import PAGE, CopyHeader, read_head, read_saved

PIECE = 4 << 20
"""Bytes in transfer at once: a piece lies in Ray's object store on both nodes."""
AWAY = "there is no peer"
CHANGED = "it is no longer what was to be sent"


class PeerAgent(Protocol):
    """The agent of another node's saver."""

    def begin(self, offer: Mapping[str, Any]) -> str:
        """Have memory made for the copy; return why not, else empty."""
        ...

    def piece(self, offer: Mapping[str, Any], at: int, data: bytes) -> None:
        """Send some bytes of it, at offset `at`."""
        ...

    def finish(self, offer: Mapping[str, Any], crc: int | None) -> str:
        """End the transfer with the copy's CRC-32, or (None) abort it; return why the copy is not kept, else empty."""
        ...


def carry(fd: int, offer: Mapping[str, Any], peer: PeerAgent) -> str:
    """Send a copy; return empty when the peer has it. CHANGED: its rank overwrote it, or it is on disk meanwhile."""
    head = CopyHeader(**offer["head"])
    if refusal := peer.begin(offer):
        return refusal
    crc, at = 0, PAGE
    while at < head.total:
        # The check after the read: a rank that begins to overwrite the copy marks its header first.
        data = os.pread(fd, min(PIECE, head.total - at), at)
        if not data or not _still(fd, head):
            peer.finish(offer, None)
            return CHANGED
        crc = zlib.crc32(data, crc)
        peer.piece(offer, at, data)
        at += len(data)
    return peer.finish(offer, crc)


def _still(fd: int, head: CopyHeader) -> bool:
    page = os.pread(fd, PAGE, 0)
    return read_head(page) == head and read_saved(page) != head.order


Ask = Callable[[dict[str, Any]], "tuple[dict[str, Any], Sequence[int]] | None"]
"""Asks the saver's process for an answer and descriptors; None when the saver is gone."""


class Inbox:
    """The peer's agent: it writes copies of other nodes into memory that its saver makes."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._open: dict[tuple[str, int], int] = {}

    def begin(self, offer: Mapping[str, Any]) -> str:
        """Implement `PeerAgent.begin`."""
        answer = self._ask({"op": "coming", "offer": offer})
        if answer is None:
            return "its saver is gone"
        self._swap(_key(offer), next(iter(answer[1]), None))
        return answer[0]["failed"]

    def piece(self, offer: Mapping[str, Any], at: int, data: bytes) -> None:
        """Implement `PeerAgent.piece`. Bytes for memory that was given up are dropped."""
        with self._lock:
            # Under the lock to the end: `_swap` closes the descriptor, and its number could be another file's by then.
            fd = self._open.get(_key(offer))
            done = 0 if fd is not None else len(data)
            while fd is not None and done < len(data):
                done += os.pwrite(fd, memoryview(data)[done:], at + done)

    def finish(self, offer: Mapping[str, Any], crc: int | None) -> str:
        """Implement `PeerAgent.finish`."""
        self._swap(_key(offer), None)
        answer = self._ask({"op": "came", "offer": offer, "crc": crc})
        return "its saver is gone" if answer is None else answer[0]["failed"]

    def drop(self, folder: str) -> None:
        """Abort transfers of a world (empty: of all): they are too late for its decision."""
        with self._lock:
            late = [key for key in self._open if folder in ("", key[0])]
        for key in late:
            self._swap(key, None)

    def _swap(self, key: tuple[str, int], fd: int | None) -> None:
        with self._lock:
            old = self._open.pop(key, None)
            if fd is not None:
                self._open[key] = fd
        if old is not None:
            os.close(old)


def _key(offer: Mapping[str, Any]) -> tuple[str, int]:
    return offer["place"]["folder"], offer["place"]["rank"]
