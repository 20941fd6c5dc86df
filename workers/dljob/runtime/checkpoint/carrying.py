"""A copy's way to the peer node: the agents of two savers carry it in pieces, so neither saver needs a network.

The owner's agent reads the copy's memory itself and looks after each piece whether it still is what was to be sent.
The peer's agent writes into memory that its saver made for it. Only when the CRC-32 is right does the saver keep it.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from dljob.runtime.checkpoint.slot import PAGE, Head, read_head, read_saved

PIECE = 4 << 20
"""Bytes under way at once: a piece lies in Ray's object store on both nodes."""
AWAY = "there is no peer"
CHANGED = "it is no longer what was to be sent"


class Peer(Protocol):
    """The agent of another node's saver."""

    def begin(self, offer: Mapping[str, Any]) -> str:
        """Memory is made; why not, else empty."""
        ...

    def piece(self, offer: Mapping[str, Any], at: int, data: bytes) -> None:
        """Some bytes of it."""
        ...

    def finish(self, offer: Mapping[str, Any], crc: int | None) -> str:
        """All was sent, or (None) no more will be; why it is not kept, else empty."""
        ...


def carry(fd: int, offer: Mapping[str, Any], peer: Peer) -> str:
    """Send a copy; empty when the peer has it. CHANGED: its rank wrote over it, or the disk has it meanwhile."""
    head = Head(**offer["head"])
    if why := peer.begin(offer):
        return why
    crc, at = 0, PAGE
    while at < head.total:
        data = os.pread(fd, min(PIECE, head.total - at), at)
        if not data or not _still(fd, head):
            peer.finish(offer, None)
            return CHANGED
        crc = zlib.crc32(data, crc)
        peer.piece(offer, at, data)
        at += len(data)
    return peer.finish(offer, crc)


def _still(fd: int, head: Head) -> bool:
    page = os.pread(fd, PAGE, 0)
    return read_head(page) == head and read_saved(page) != head.order


Ask = Callable[[dict[str, Any]], "tuple[dict[str, Any], Sequence[int]] | None"]
"""Asks the saver's process; its answer and descriptors, or None when it is gone."""


class Inbox:
    """The peer's agent: what comes from others, into memory that its saver gives."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._open: dict[tuple[str, int], int] = {}

    def begin(self, offer: Mapping[str, Any]) -> str:
        """See Peer."""
        said = self._ask({"op": "coming", "offer": offer})
        if said is None:
            return "its saver is gone"
        self._swap(_key(offer), next(iter(said[1]), None))
        return said[0]["failed"]

    def piece(self, offer: Mapping[str, Any], at: int, data: bytes) -> None:
        """See Peer. What comes for memory that was given up is dropped."""
        with self._lock:
            fd = self._open.get(_key(offer))
            done = 0 if fd is not None else len(data)
            while fd is not None and done < len(data):
                done += os.pwrite(fd, memoryview(data)[done:], at + done)

    def finish(self, offer: Mapping[str, Any], crc: int | None) -> str:
        """See Peer."""
        self._swap(_key(offer), None)
        said = self._ask({"op": "came", "offer": offer, "crc": crc})
        return "its saver is gone" if said is None else said[0]["failed"]

    def drop(self, folder: str) -> None:
        """What is on its way of a world (empty: of all) comes too late."""
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
