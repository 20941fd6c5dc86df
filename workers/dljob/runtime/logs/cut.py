"""The middle of a long log goes back to the disk: the beginning and the end of what a process wrote stay.

A hole is punched into the file, so those who write to it need not know: its size, and every place in it, stay what they
are. The cut is told in the file, right before the hole. Readers skip it (`next_data`).
"""

from __future__ import annotations

import ctypes
import os
import stat
from pathlib import Path

MOST_BYTES = 256 << 20
"""So much of what one process wrote is kept, half from its beginning and half from its end."""
SLACK_BYTES = 16 << 20
"""A cut is made when there is so much more."""
_PUNCH_HOLE, _KEEP_SIZE = 0x02, 0x01
"""Source: linux/falloc.h."""

_libc = ctypes.CDLL(None, use_errno=True)


def words(missing: int) -> bytes:
    """What stands in a log where a part is missing; always as long, as it is written again when the cut grows."""
    kept = f"{MOST_BYTES >> 20} MiB are kept, from the beginning and the end"
    return f"\n[dljob] {missing >> 20:>10,} MiB of this process's output are left out here: {kept}\n".encode()


def cut(path: Path, start: int) -> int:
    """Cut the middle out of what was written behind `start`, where that is too much; the bytes that are missing.

    Raises:
        OSError: The file system gives no part of a file back (EOPNOTSUPP), or the file cannot be written.
    """
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_size - start <= MOST_BYTES + SLACK_BYTES:
            return 0
        first = _whole_blocks(start + MOST_BYTES // 2 + len(words(0)), info.st_blksize)
        last = (info.st_size - MOST_BYTES // 2) // info.st_blksize * info.st_blksize
        _punch(fd, first, last - first)
        os.pwrite(fd, words(last - first), first - len(words(0)))
        return last - first
    finally:
        os.close(fd)


def can_cut(fd: int) -> bool:
    """Whether the file system of a file that is open for writing gives parts of files back."""
    info = os.fstat(fd)
    try:
        _punch(fd, _whole_blocks(info.st_size, info.st_blksize), info.st_blksize)  # behind its end: nothing changes
    except OSError:
        return False
    return True


def next_data(fd: int, at: int, size: int) -> tuple[int, int]:
    """Where the next data begin at or behind a place in a file, and where they end, at the latest at `size`."""
    try:
        start = os.lseek(fd, at, os.SEEK_DATA)
        return min(start, size), min(os.lseek(fd, start, os.SEEK_HOLE), size)
    except OSError:  # no data behind, or a file system that knows no holes
        return at, max(at, size)


def _whole_blocks(at: int, block: int) -> int:
    return -(-at // block) * block


def _punch(fd: int, at: int, length: int) -> None:
    mode = _PUNCH_HOLE | _KEEP_SIZE
    if _libc.fallocate(fd, mode, ctypes.c_int64(at), ctypes.c_int64(length)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
