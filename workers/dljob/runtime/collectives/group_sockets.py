"""The sockets of gloo process groups, shut when a rank must leave a group.

Gloo cannot break off a collective: a thread in one waits for its peer as long as the connection lasts, and a connection
lasts as long as anything, such as a DDP module, still refers to the group. Shutting the sockets ends the wait, whatever
the peer does. They can be told from all others of the process, because each group has an epoll of its own, which
watches all its sockets and the one it listens on.

Only the receiving direction is shut, and the connection stays open for a while. Gloo sets aside a send whose write
fails (EPIPE, ECONNRESET) and reports no later error to it, so its thread waits in `UnboundBuffer::waitSend` for the
group's timeout (`Pair::write`, `Pair::signalException` in gloo/transport/tcp/pair.cc; torch 2.15). With both directions
shut, one of four ranks hung in one of ten tries (tests/ray/worker/test_break_off.py). Delete this when gloo signals
unbound sends.

One wait cannot be ended: that for a message of which a part has arrived. `Pair::signalException` tells the operations
that are queued, and not the one that is being read, so its thread waits in `UnboundBuffer::waitRecv` for the group's
timeout, also where the peer's process died. It is seen with messages of megabytes only (3 of 12,800 ranks whose
collective was broken off). PrimeMaster's deadline for leaving then replaces the process. Delete this
paragraph when gloo tells it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

_FDS, _INFO = Path("/proc/self/fd"), Path("/proc/self/fdinfo")
_EPOLL = "anon_inode:[eventpoll]"
HOLD_S = 5.0
"""Seconds that a connection stays open after its receiving side is shut. The process at its other end shuts it by the
same order meanwhile; one that has no such order notices the end of the connection then."""


@dataclass(frozen=True, slots=True)
class Loop:
    """An epoll of this process, and the inode of the socket on which its group listens."""

    fd: int
    listener: int


class GroupSockets:
    """The sockets of the process groups of this process."""

    def __init__(self) -> None:
        self._loops: set[Loop] = set()
        self._making: list[frozenset[Loop]] = []
        """For each group being created: the loops that existed before."""

    @contextlib.contextmanager
    def noticed(self) -> Generator[None]:
        """Remember the groups created in this block, also if creating them fails."""
        before = frozenset(_loops())
        self._making.append(before)
        try:
            yield
        finally:
            self._making.remove(before)
            self._loops |= _new_loops(before)

    def shut(self, store: str = "") -> int:
        """Shut the connections of these groups, and those to a store (host:port). Returns their number."""
        loops, self._loops = self._loops.union(*(_new_loops(before) for before in tuple(self._making))), set()
        open_sockets = [sock for loop in loops for fd, inode in _of(loop) if (sock := _ended(fd, inode)) is not None]
        # Held open by the duplicates: gloo reports no error to a send whose connection is closed at once (see above).
        if open_sockets:
            last = threading.Timer(HOLD_S, lambda: [sock.close() for sock in open_sockets])
            last.daemon = True
            last.start()
        return len(open_sockets) + (sum(_shut(fd, inode) for fd, inode in _connected_to(store)) if store else 0)


def _new_loops(before: frozenset[Loop]) -> set[Loop]:
    """Return the loops that did not exist before.

    Descriptors alone do not tell: an earlier group may be destroyed meanwhile, and the new one have its descriptor.
    """
    return {loop for loop in _loops() if loop not in before}


def _loops() -> Iterator[Loop]:
    """Return the epolls that watch a listening socket."""
    for fd in _epolls():
        yield from (Loop(fd, inode) for number, inode in _watched(fd) if _listens(number, inode))


def _of(loop: Loop) -> list[tuple[int, int]]:
    """Return the connections that a loop watches, as (descriptor, inode); none if the epoll is another one by now.

    The listening socket is left out: gloo ends the process when that fails.
    """
    watched = _watched(loop.fd)
    # Descriptors are reused: the epoll is the group's only if it still watches the group's listening socket.
    is_own_epoll = any(inode == loop.listener for _, inode in watched)
    return [(fd, inode) for fd, inode in watched if is_own_epoll and inode != loop.listener]


def _epolls() -> Iterator[int]:
    for entry in _FDS.iterdir():
        with contextlib.suppress(OSError):
            # The kernel names an epoll by this text alone; its descriptors have no other mark.
            if str(entry.readlink()) == _EPOLL:
                yield int(entry.name)


def _watched(fd: int) -> list[tuple[int, int]]:
    """Return (descriptor, inode) of each file that an epoll watches.

    The kernel writes a line for each: `tfd: 4 events: 19 data: 4 pos:0 ino:39757a sdev:9`.
    """
    try:
        lines = (_INFO / str(fd)).read_text().splitlines()
    except OSError:
        return []
    files: list[tuple[int, int]] = []
    for words in (line.split() for line in lines if line.startswith("tfd:")):
        inode = next((word[4:] for word in words if word.startswith("ino:")), "")
        if inode:
            files.append((int(words[1]), int(inode, 16)))
    return files


@contextlib.contextmanager
def _borrowed(fd: int, inode: int) -> Generator[socket.socket | None]:
    """Borrow a TCP socket by its descriptor; None if that is something else by now.

    gloo may close the descriptor at any time, and the kernel reuse it: so it is duplicated first and checked after.
    """
    try:
        duplicate = os.dup(fd)
    except OSError:
        yield None
        return
    try:
        same = os.fstat(duplicate).st_ino == inode
        is_blocking = os.get_blocking(duplicate)
        sock = socket.socket(fileno=duplicate) if same else None
        # After socket.setdefaulttimeout() the new object has made torch's own socket non-blocking.
        os.set_blocking(duplicate, is_blocking)
    except OSError:
        same, sock = False, None
    try:
        tcp = sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6)
        yield sock if tcp else None
    finally:
        if sock is not None:
            sock.close()
        else:
            os.close(duplicate)


def _listens(fd: int, inode: int) -> bool:
    with _borrowed(fd, inode) as sock:
        return sock is not None and bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _ended(fd: int, inode: int) -> socket.socket | None:
    """Shut the receiving direction; the connection stays open until the returned duplicate is closed, too."""
    with _borrowed(fd, inode) as sock, contextlib.suppress(OSError):
        if sock is not None:
            with contextlib.suppress(OSError):  # it is not connected any more, or not yet
                sock.shutdown(socket.SHUT_RD)
            return sock.dup()  # an error means no free descriptor: then it stays open as long as gloo keeps it
    return None


def _shut(fd: int, inode: int) -> bool:
    with _borrowed(fd, inode) as sock, contextlib.suppress(OSError):
        if sock is not None:
            sock.shutdown(socket.SHUT_RDWR)
            return True
    return False


def _connected_to(address: str) -> list[tuple[int, int]]:
    """Return the sockets connected to host:port."""
    host, _, port = address.rpartition(":")
    connected: list[tuple[int, int]] = []
    for entry in _FDS.iterdir():
        with contextlib.suppress(OSError, ValueError):
            target = str(entry.readlink())
            if target.startswith("socket:["):
                inode = int(target[8:-1])
                with _borrowed(int(entry.name), inode) as sock:
                    if sock is not None and _peer(sock) == (host, int(port)):
                        connected.append((int(entry.name), inode))
    return connected


def _peer(sock: socket.socket) -> tuple[str, int]:
    host, port = sock.getpeername()[:2]
    # An IPv4 peer of an IPv6 socket has the mapped form of its address.
    return str(host).removeprefix("::ffff:"), int(port)
