"""The TCP sockets of this process: whether it listens, and which peers do not acknowledge what was sent to them.

Source: linux/tcp.h (struct tcp_info), tcp(7). A process that is stopped still acknowledges: its kernel does. So what
nobody acknowledges has not reached the other machine, or that machine is gone.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

FOLDER = Path("/proc/self/fd")
UNANSWERED = 3
"""Repetitions without an answer from which on a connection counts as broken: one may get lost."""
SILENT_MS = 5000
RECENT_S = 10.0
"""Age up to which a look explains an error."""
_ESTABLISHED = 1


class DeadLinks:
    """What the last look at this process's connections showed."""

    words = ""
    looked_at = 0.0


def listens() -> bool:
    """Return whether this process listens on a TCP port, or may do so."""
    return socket.getdefaulttimeout() is not None or any(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) for sock in _tcp_sockets()
    )


def look_for_dead_links() -> None:
    """Note the connections over which nothing arrives, for `describe_dead_links` of this process."""
    DeadLinks.words = next((words for connection in _tcp_sockets() if (words := _unanswered(connection))), "")
    DeadLinks.looked_at = time.monotonic()


def describe_dead_links() -> str:
    """Return which peer does not acknowledge what was sent to it, as last seen; empty: none, or it is long ago."""
    return DeadLinks.words if time.monotonic() - DeadLinks.looked_at <= RECENT_S else ""


def _tcp_sockets() -> Iterator[socket.socket]:
    if socket.getdefaulttimeout() is not None:
        return  # each object that is made for a descriptor would make the user's own socket non-blocking
    for entry in FOLDER.iterdir():
        with suppress(OSError):  # it is closed meanwhile
            if not str(entry.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as copy:
                if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
                    yield copy


def _unanswered(connection: socket.socket) -> str:
    with suppress(OSError, struct.error):
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
        state, _, repeated, probes = info[:4]
        unacknowledged, last_ack_ms, not_sent = (struct.unpack_from("I", info, at)[0] for at in (24, 56, 144))
        waits = state == _ESTABLISHED and (unacknowledged or not_sent) and last_ack_ms >= SILENT_MS
        if waits and max(repeated, probes) >= UNANSWERED:
            host, port = connection.getpeername()[:2]
            own_address = connection.getsockname()[0]
            lost_address = (
                ""
                if _is_own(connection.family, own_address)
                else f", and {own_address} is no address of its machine any more"
            )
            return f"what it sent to {host}:{port} is not acknowledged for {last_ack_ms // 1000} s{lost_address}"
    return ""


def _is_own(family: int, address: str) -> bool:
    """Return whether an address is one of this machine."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
