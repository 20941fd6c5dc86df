"""Messages between ranks and their saver: JSON and file descriptors over one SEQPACKET socket.

A message of any length gets through: the socket takes some 200 KiB at once, so a longer text than `MESSAGE_BYTES` goes
as a memfd, the last descriptor beside the text `ELSEWHERE`.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import socket
from collections.abc import Sequence
from typing import Any

from dljob.linux import socket_peer

MESSAGE_BYTES = 64 << 10
"""The longest text that goes through the socket itself."""
ELSEWHERE = b"-"
"""In place of a longer one; no JSON object begins with it."""
FDS = 3
"""The two copies of a rank, and a long text."""


class Wire:
    """One connection. In each direction one thread at a time uses it."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message with descriptors. Raises OSError when the other side is gone."""
        text, sent = json.dumps(message).encode(), list(fds)
        long = _in_memory(text) if len(text) > MESSAGE_BYTES else -1
        if long >= 0:
            text, sent = ELSEWHERE, [*sent, long]
        try:
            extra = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", sent))] if sent else []
            self.socket.sendmsg([text], extra)
        finally:
            if long >= 0:
                os.close(long)

    def readable(self, seconds: float) -> bool:
        """Wait up to so many seconds; return whether there is a message, or the other side has closed."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def readable_from(self, process: int) -> bool:
        """Wait for a message of a process; False when it is dead and left none.

        Its children may keep the socket open.
        """
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        poll.register(process, select.POLLIN)
        return self.socket.fileno() in {fd for fd, _ in poll.poll()}

    def receive(self) -> tuple[dict[str, Any], list[int]] | None:
        """Return the next message and its descriptors; None when the other side is gone, or what it sent is none."""
        fds = list[int]()
        try:
            text, extra, _, _ = self.socket.recvmsg(MESSAGE_BYTES, socket.CMSG_SPACE(4 * FDS), socket.MSG_CMSG_CLOEXEC)
            fds = _descriptors(extra)
            if text == ELSEWHERE and fds:
                with os.fdopen(fds.pop(), "rb") as file:
                    text = file.read()
            # No text: the end of the connection, or an empty message. Its reader ends in order, as with no connection:
            # a saver then writes what it holds to disk.
            return json.loads(text), fds
        except (OSError, ValueError):
            for fd in fds:  # they would leak
                os.close(fd)
            return None

    def peer(self) -> tuple[int, int]:
        """Return process id and user id of the process that connected."""
        return socket_peer.peer(self.socket)

    def close(self) -> None:
        """Close it; a `receive` in another thread returns None."""
        with contextlib.suppress(OSError):
            # `close` alone does not wake a thread in recvmsg; `shutdown` does.
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def _descriptors(extra: Sequence[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)


def _in_memory(text: bytes) -> int:
    """Return a descriptor from which a text can be read from its beginning."""
    fd = os.memfd_create("dljob-message", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(text)
        os.lseek(fd, 0, os.SEEK_SET)
    except OSError:
        os.close(fd)
        raise
    return fd
