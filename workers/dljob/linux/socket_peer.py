"""The process at the other end of a Unix socket."""

from __future__ import annotations

import socket
import struct


def peer(line: socket.socket) -> tuple[int, int]:
    """Return the process id and user id at the other end, as the kernel noted them at connect (SO_PEERCRED)."""
    pid, uid, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid
