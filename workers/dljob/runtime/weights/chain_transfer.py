"""A version in the memory of one node, which a thread fills from the node before, and another sends to the next one.

The memory is anonymous (a memfd): it belongs to the process that made it and to the readers that map it, and is gone
with the last of them, however they die.
"""

from __future__ import annotations

import mmap
import os
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dljob.runtime.weights.chain import ALIGN, seconds_for

PIECE = 1 << 20
"""Bytes that go on to the next node as soon as they are there."""

STEP = 16 << 20
"""Bytes after which readers are woken: each wake-up takes as long as a piece."""


@dataclass(frozen=True, slots=True)
class Filled:
    """How much of a version is in the memory of a node, and where that is."""

    bytes: int
    path: str
    """The memory, as a file that processes of this node can map."""
    name: str
    """What the path must be a link to: in another container it may be another process's file."""


class Transfer:
    """The bytes of one version at a node; `changed` is called, in any thread, after each STEP and at the end."""

    def __init__(self, name: str, size: int, changed: Callable[[], None] = lambda: None) -> None:
        self.size = size
        self.filled = 0
        self.failure = ""
        self.began = time.monotonic()
        self.took: float | None = None
        """Seconds until all bytes were there."""
        self._changed = changed
        self._more = threading.Condition()
        self.fd = os.memfd_create(name, os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size)

    @property
    def is_complete(self) -> bool:
        """Whether all bytes are there."""
        return self.filled == self.size

    def receive(self, connection: socket.socket) -> bool:
        """Fill the memory from a connection; return whether everything came in time."""
        # Written from a buffer: through a mapping each new page costs a fault and zeros, a third more CPU.
        piece = memoryview(bytearray(PIECE))
        self.began = time.monotonic()  # nodes that start have been waited for
        with connection, self._descriptor() as fd:
            while not self.is_complete and not self.failure:
                try:
                    # A whole piece at once: a thread that wakes for every packet takes a core at 1 Gbit/s.
                    got = connection.recv_into(piece, min(PIECE, self.size - self.filled), socket.MSG_WAITALL)
                    written = os.pwrite(fd, piece[:got], self.filled) if got else 0
                except OSError as error:
                    return self.fail(f"no more bytes came: {error}")
                if not got:
                    return self.fail("the node before this one closed the connection")
                if time.monotonic() - self.began > seconds_for(self.size):
                    return self.fail("the bytes came too slowly")
                self._add(written)
                if written < got:
                    return self.fail("this node has no memory for more")
        return self.is_complete

    def send(self, connection: socket.socket) -> bool:
        """Send the memory on while it fills; return whether the next node took everything."""
        sent = 0
        with connection, self._descriptor() as fd:
            while sent < self.size:
                with self._more:
                    self._more.wait_for(lambda at=sent: self.filled > at or bool(self.failure))
                    filled = self.filled
                if filled == sent or self._late():
                    return False  # the next node sees it by the closed connection
                try:
                    sent += os.sendfile(connection.fileno(), fd, sent, min(filled - sent, PIECE))
                except OSError:
                    return False
        return True

    @contextmanager
    def _descriptor(self) -> Generator[int]:
        """Yield a thread's own descriptor: the version's is closed when it is dropped, and its number used again."""
        with self._more:
            duplicate = os.dup(self.fd) if self.fd >= 0 else -1  # each use of -1 is an OSError
        try:
            yield duplicate
        finally:
            if duplicate >= 0:
                os.close(duplicate)

    def fail(self, reason: str) -> bool:
        """Record why the rest will not come, and wake all that wait for it; returns False."""
        with self._more:
            if not self.is_complete:
                self.failure = self.failure or reason
            self._more.notify_all()
        self._changed()
        return False

    def close(self) -> None:
        """Give the memory up; readers that have mapped it keep it."""
        self.fail("the version was dropped")
        with self._more:
            if self.fd >= 0:
                os.close(self.fd)
            self.fd = -1

    def _add(self, got: int) -> None:
        with self._more:
            stepped = (self.filled + got) // STEP > self.filled // STEP
            self.filled += got
            if self.is_complete:
                self.took = time.monotonic() - self.began
            self._more.notify_all()
        if stepped or self.is_complete:
            self._changed()

    def _late(self) -> bool:
        return time.monotonic() - self.began > seconds_for(self.size, self.took)


def send_buffers(connection: socket.socket, buffers: Iterable[memoryview], size: int) -> bool:
    """Send a version from where its publisher put it, as `places` lays it out; return whether all of it went."""
    began = time.monotonic()
    with connection:
        try:
            for buffer in buffers:
                for at in range(0, buffer.nbytes, PIECE):
                    connection.sendall(buffer[at : at + PIECE])
                    if time.monotonic() - began > seconds_for(size):
                        return False
                connection.sendall(bytes(-buffer.nbytes % ALIGN))
        except OSError:
            return False
    return True


def mapped(at: Filled, size: int) -> memoryview | None:
    """Map a version's memory, read-only; None if it cannot be found from here."""
    try:
        file = os.open(at.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # In a container of its own another process may have that number: the name tells.
        if at.name not in str(Path(f"/proc/self/fd/{file}").readlink()) or os.fstat(file).st_size != size:
            return None
        return memoryview(mmap.mmap(file, size, prot=mmap.PROT_READ))
    except (OSError, ValueError):
        return None
    finally:
        os.close(file)
