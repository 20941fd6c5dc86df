"""Frames on the socket between a fork host and its ranks: a JSON head and a body of bytes."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Any

_LENGTHS = struct.Struct(">IQ")
"""The lengths of head and body, in front of each frame."""


class Frames:
    """One connection. `send` may be called from any thread, `receive` from one at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._begun = b""

    def send(self, head: dict[str, Any], body: bytes = b"", fds: Sequence[int] = ()) -> None:
        """Send a frame, with file descriptors. Raises OSError when the other side is gone."""
        text = json.dumps(head).encode()
        whole = _LENGTHS.pack(len(text), len(body)) + text
        # Frames of different threads must not mix.
        with self._sending:
            # Descriptors ride on the first bytes; the kernel may take only some of these, and the rest follows.
            sent = socket.send_fds(self._connection, [whole], fds) if fds else 0
            self._connection.sendall(whole[sent:])
            if body:
                self._connection.sendall(body)

    def receive(self) -> tuple[dict[str, Any], bytes] | None:
        """Return the next frame; None when the other side is gone."""
        lengths = self._exactly(_LENGTHS.size)
        if lengths is None:
            return None
        head_length, body_length = _LENGTHS.unpack(lengths)
        head = self._exactly(head_length)
        body = self._exactly(body_length)
        if head is None or body is None:
            return None
        return json.loads(head), body

    def receive_fds(self, count: int) -> list[int]:
        """Return the descriptors sent with the next frame, before `receive` returns it; fewer if the peer is gone."""
        # One byte is enough for the kernel to deliver the descriptors; `_exactly` puts it back in front.
        try:
            self._begun, fds, _, _ = socket.recv_fds(self._connection, 1, count, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return []
        return fds

    def wait_at_most(self, seconds: float | None) -> None:
        """Have each later wait for the other side end after some seconds, as if that were gone; None: never."""
        self._connection.settimeout(seconds)

    def close(self) -> None:
        """Close the connection; `receive` in another thread returns None."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _exactly(self, count: int) -> bytes | None:
        parts, self._begun = bytearray(self._begun), b""
        while len(parts) < count:
            try:
                # In pieces: `recv` allocates as much as it is asked for, and a body may be large.
                got = self._connection.recv(min(count - len(parts), 1 << 20))
            except OSError:
                return None
            if not got:
                return None
            parts += got
        return bytes(parts)


def abstract(path: str) -> str:
    """Convert an address to the kernel's form: `@name` is abstract, as `ss` prints it."""
    return f"\0{path[1:]}" if path.startswith("@") else path
