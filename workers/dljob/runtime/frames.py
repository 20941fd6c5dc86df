"""Frames on the socket between a fork host and its ranks: a JSON head and a body of bytes."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from typing import Any

_LENGTHS = struct.Struct(">IQ")


class Frames:
    """One connection; `send` may be called from many threads, `receive` from one."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, head: dict[str, Any], body: bytes = b"") -> None:
        """Send a frame. Raises OSError when the other side is gone."""
        text = json.dumps(head).encode()
        with self._sending:
            self._connection.sendall(_LENGTHS.pack(len(text), len(body)) + text)
            if body:
                self._connection.sendall(body)

    def receive(self) -> tuple[dict[str, Any], bytes] | None:
        """The next frame; None when the other side is gone."""
        lengths = self._exactly(_LENGTHS.size)
        if lengths is None:
            return None
        head_length, body_length = _LENGTHS.unpack(lengths)
        head = self._exactly(head_length)
        body = self._exactly(body_length)
        if head is None or body is None:
            return None
        return json.loads(head), body

    def close(self) -> None:
        """Close the connection; `receive` in another thread returns None."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _exactly(self, count: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            try:
                got = self._connection.recv(min(count - len(parts), 1 << 20))
            except OSError:
                return None
            if not got:
                return None
            parts += got
        return bytes(parts)


def abstract(path: str) -> str:
    """The kernel's form of an address: `@name` is abstract, as `ss` writes it."""
    return f"\0{path[1:]}" if path.startswith("@") else path
