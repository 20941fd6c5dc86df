"""The shared memory of this machine or container, in which Ray keeps its objects.

Ray's raylet makes one sparse file of the size of its store there. The kernel gives a page when it is first written;
when it has none left, it ends the writer by SIGBUS: the raylet, and with it all ranks of its node.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SHM = Path("/dev/shm")  # noqa: S108 - the machine's shared memory, not a file of ours
SPARE = 1 << 20
"""Bytes beside an object: its header, and what others write at the same moment."""
WRITERS = 16
"""Objects of a size for which there is room without a lock: so many may be written at the same moment."""
TURN_S = 5.0
"""Longest wait for the lock: about as long as 10 GiB take to be written."""


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes in shared memory: all, those that are free, and those that Ray's store has reserved but not got yet."""

    total: int
    free: int
    promised: int

    def takes(self, size: int) -> bool:
        """Whether the store can write `size` bytes. It may write to pages that it has, so it never needs more."""
        return self.free >= min(size + SPARE, self.promised)


def room(size: int, raylet: int, shm: Path = SHM, proc: Path = Path("/proc")) -> Room | None:
    """Return the room for `size` bytes in the store of a raylet; None where it is known to be enough.

    Without a file of the raylet in shared memory its store lies on disk, where the raylet notices that nothing is left.
    """
    try:
        usage = os.statvfs(shm)
        free = usage.f_bavail * usage.f_frsize
        # The usual case, without a look at the raylet.
        if free >= size + SPARE:
            return None
        promised = _promised(proc / str(raylet) / "fd", str(shm))
    except OSError:  # no shared memory, or a raylet that is gone: whoever uses it says so
        return None
    room_left = Room(usage.f_blocks * usage.f_frsize, free, promised)
    return None if room_left.takes(size) else room_left


@contextmanager
def turn(size: int, shm: Path = SHM) -> Generator[None]:
    """Hold the lock on shared memory for the block, if little is free: who has seen room writes before others look.

    Nobody waits for it longer than TURN_S: the lock of a directory may be held by a stranger.
    """
    usage = None
    with suppress(OSError):
        usage = os.statvfs(shm)
    if usage is None or usage.f_bavail * usage.f_frsize >= WRITERS * size + SPARE:
        yield
        return
    with _opened(shm) as folder:
        end = time.monotonic() + TURN_S
        while not _locked(folder) and time.monotonic() < end:
            time.sleep(0.01)
        yield


@contextmanager
def _opened(folder: Path) -> Generator[int]:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield opened
    finally:
        os.close(opened)  # and gives the lock up


def _locked(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_full(shm: Path = SHM) -> bool:
    """Whether less than the smallest useful rest is free."""
    try:
        usage = os.statvfs(shm)
    except OSError:
        return False
    return bool(usage.f_blocks) and usage.f_bavail * usage.f_frsize < SPARE


def _promised(descriptors: Path, shm: str) -> int:
    """Return the bytes of a process's files in shared memory that have no pages yet."""
    bytes_by_inode = dict[int, int]()
    for descriptor in descriptors.iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed, and not the store's
            if str(descriptor.readlink()).startswith(f"{shm}/"):
                file = descriptor.stat()
                bytes_by_inode[file.st_ino] = max(0, file.st_size - file.st_blocks * 512)
    return sum(bytes_by_inode.values())
