"""The process at the other end of a Unix socket."""

from __future__ import annotations

import errno
import os
import socket
import struct


def peer(line: socket.socket) -> tuple[int, int]:
    """Return the process id and user id at the other end, as the kernel noted them at connect (SO_PEERCRED)."""
    pid, uid, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def connect_to_own(line: socket.socket, address: str) -> None:
    """Connect to a process of this user.

    An abstract address has no file permissions: whoever binds it first gets what is sent there.

    Raises:
        OSError: Nobody listens there, or another user's process does.
    """
    line.connect(address)
    pid, uid = peer(line)
    if uid != os.geteuid():
        raise PermissionError(errno.EPERM, f"process {pid} of user {uid} listens there", address)
