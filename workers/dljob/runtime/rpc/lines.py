"""Lines: connections between two processes of a machine that carry numbered messages, and the thread that reads them.

Sending never waits: what the socket does not take stays in a buffer until the other end has read, so a process that is
stopped holds up nobody else.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from dljob.linux.socket_peer import peer

_HEAD = struct.Struct("<IQ")
"""Before each message: its length in bytes, and its number."""
_ROOM = 1 << 18
"""Bytes that are read at a time."""
AGAIN_S = 1.0
"""Seconds until the next try to accept a line."""

log = logging.getLogger(__package__)


Closed = Callable[[], None]


class Line:
    """One end of a connection. Any thread may send; `heard` and `closed` are called in the thread of `LineReader`."""

    def __init__(self, line: socket.socket, poll: select.epoll, on_message: Heard, closed: Closed) -> None:
        self._line = line
        self._poll = poll
        self._heard = on_message
        self._closed = closed
        self._sending = threading.Lock()
        self._out = bytearray()
        self._waits = False
        """Whether the socket was full, so that the reader sends the rest."""
        self._is_open = True
        self._read = bytearray()

    def send(self, number: int, message: bytes) -> None:
        """Send a message of less than 4 GiB, or raise OSError if the line is broken."""
        with self._sending:
            if not self._is_open:
                raise BrokenPipeError("the line is closed")
            try:
                self._out += _HEAD.pack(len(message), number)
                self._out += message
                if not self._waits:
                    self._flush()
            except BaseException:
                # An interruption may come between the sending and its note here: what was sent must not go again.
                self._break()
                raise

    def _flush(self) -> None:
        """Send what the socket takes."""
        try:
            while self._out:
                del self._out[: self._line.send(self._out, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            pass
        if self._waits != bool(self._out):
            self._waits = bool(self._out)
            self._poll.modify(self._line.fileno(), select.EPOLLIN | (select.EPOLLOUT if self._waits else 0))

    def serve(self, events: int) -> bool:
        """Send the rest, and hand over what has arrived; False once the line is broken."""
        try:
            if events & select.EPOLLOUT:
                with self._sending:
                    self._flush()
            data = self._line.recv(_ROOM, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._read += data
        at = 0
        while len(self._read) - at >= _HEAD.size:
            size, number = _HEAD.unpack_from(self._read, at)
            if len(self._read) - at < _HEAD.size + size:
                break
            at += _HEAD.size + size
            self._heard(self, number, bytes(memoryview(self._read)[at - size : at]))
        del self._read[:at]
        return bool(data)

    def shut_down(self) -> None:
        """End the connection from any thread; its reader closes it."""
        with self._sending:
            self._break()

    def _break(self) -> None:
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection, and tell."""
        with self._sending:
            self._is_open = False
            self._line.close()
        self._closed()


class LineReader:
    """The thread that reads all lines of one purpose in a process; it is started with the first one."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._lines: dict[int, Line] = {}
        self._lock = threading.Lock()
        self._runs = False

    def add(self, line: socket.socket, on_message: Heard, closed: Closed) -> Line | None:
        """Read a connection from now on; None, and it is closed, where it cannot be read.

        Nor is it read where the process at the other end is another user's: an abstract address has no file
        permissions, so that anybody may connect to it, or have bound it before.
        """
        if peer(line)[1] != os.getuid():
            line.close()
            return None
        new_line = Line(line, self._poll, on_message, closed)
        with self._lock:
            self._lines[line.fileno()] = new_line
            try:
                if not self._runs:
                    threading.Thread(target=self._run, name="dljob-lines", daemon=True).start()
                    self._runs = True
                self._poll.register(line.fileno(), select.EPOLLIN)
            except (RuntimeError, OSError) as error:  # no thread is left, or no room in the kernel
                log.warning("a line is closed, as nobody can read it: %s", error)
                del self._lines[line.fileno()]
                line.close()
                return None
        return new_line

    def _run(self) -> None:
        while True:
            for fd, events in self._poll.poll():
                line = self._lines[fd]
                if not _served(line, events):
                    self._poll.unregister(fd)
                    del self._lines[fd]
                    line.close()


def _served(line: Line, events: int) -> bool:
    """Serve a line; False once it is broken, or whoever hears it failed: the others are read on."""
    try:
        return line.serve(events)
    except Exception:
        log.exception("a line is closed, as a message of it could not be taken")
        return False


class LineListener:
    """Accepts lines at an address, and has a reader read them."""

    def __init__(self, address: str, reader: LineReader, on_message: Heard, name: str) -> None:
        """Listen at an abstract address (`man 7 unix`); raises OSError where somebody does already."""
        self._reader = reader
        self._heard = on_message
        self._line = socket.socket(socket.AF_UNIX)
        try:
            self._line.bind(address)
            self._line.listen(1024)
        except OSError:
            self._line.close()
            raise
        try:
            threading.Thread(target=self._accept, name=name, daemon=True).start()
        except RuntimeError:  # who connected would wait for an answer
            self._line.close()
            raise

    def _accept(self) -> None:
        while True:
            try:
                line = self._line.accept()[0]
            except OSError as error:  # no descriptor is left; who connects waits for one
                log.warning("no line can be accepted; it is tried again in %g s: %s", AGAIN_S, error.strerror)
                time.sleep(AGAIN_S)
            else:
                self._reader.add(line, self._heard, lambda: None)


Heard = Callable[[Line, int, bytes], None]
