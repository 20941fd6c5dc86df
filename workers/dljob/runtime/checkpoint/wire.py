"""Messages between ranks and their saver: JSON and file descriptors over one SEQPACKET socket."""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import socket
import struct
from collections.abc import Sequence
from typing import Any

MESSAGE_BYTES = 64 << 10
FDS = 2


class Wire:
    """One connection. In each direction one thread at a time uses it."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message with descriptors. Raises OSError when the other side is gone."""
        extra = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([json.dumps(message).encode()], extra)

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
        """Return the next message and its descriptors; None when the other side is gone."""
        try:
            text, extra, _, _ = self.socket.recvmsg(MESSAGE_BYTES, socket.CMSG_SPACE(4 * FDS), socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return None
        fds = array.array("i")
        for level, kind, data in extra:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        # The end of the connection, or an empty message, whose descriptors would leak.
        if not text:
            for fd in fds:
                os.close(fd)
            return None
        return json.loads(text), list(fds)

    def peer(self) -> tuple[int, int]:
        """Return process id and user id of the process that connected."""
        pid, uid, _ = struct.unpack("3i", self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return pid, uid

    def close(self) -> None:
        """Close it; a `receive` in another thread returns None."""
        with contextlib.suppress(OSError):
            # `close` alone does not wake a thread in recvmsg; `shutdown` does.
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
