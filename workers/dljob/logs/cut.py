"""Size limit of logs: the middle of a long log is given back to the disk, its beginning and end stay.

It punches a hole into the file, so its writers need not know: size and offsets stay as they are. A line before the hole
says what is missing. Readers skip the hole (`next_data`).
"""

from __future__ import annotations

import ctypes
import os
import stat
from pathlib import Path

MOST_BYTES = 256 << 20
"""Bytes of one process's output that are kept, half from its beginning and half from its end."""
SLACK_BYTES = 16 << 20
"""Bytes beyond MOST_BYTES that a log may grow before it is cut, so that cuts are rare."""
_PUNCH_HOLE, _KEEP_SIZE = 0x02, 0x01
"""Source: linux/falloc.h."""

_libc = ctypes.CDLL(None, use_errno=True)


def cut_line(missing: int) -> bytes:
    """Return the line that replaces a cut part. Its length is constant, since it is overwritten when the cut grows."""
    kept_text = f"{MOST_BYTES >> 20} MiB are kept, from the beginning and the end"
    return f"\n[dljob] {missing >> 20:>10,} MiB of this process's output are left out here: {kept_text}\n".encode()


def cut(path: Path, start: int) -> int:
    """Cut the middle of what was written after offset `start`, if that is too long. Returns the bytes that are missing.

    Raises:
        OSError: The file system cannot punch holes (EOPNOTSUPP), or the file cannot be written.
    """
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_size - start <= MOST_BYTES + SLACK_BYTES:
            return 0
        # Only whole blocks become a hole; the line stands in the bytes right before it.
        first = _whole_blocks(start + MOST_BYTES // 2 + len(cut_line(0)), info.st_blksize)
        last = (info.st_size - MOST_BYTES // 2) // info.st_blksize * info.st_blksize
        # The hole comes first: if the file system refuses it, no line may claim that output is missing.
        _punch(fd, first, last - first)
        os.pwrite(fd, cut_line(last - first), first - len(cut_line(0)))
        return last - first
    finally:
        os.close(fd)


def can_cut(fd: int) -> bool:
    """Whether the file system of a file open for writing can punch holes."""
    info = os.fstat(fd)
    try:
        _punch(fd, _whole_blocks(info.st_size, info.st_blksize), info.st_blksize)  # beyond its end: nothing changes
    except OSError:
        return False
    return True


def next_data(fd: int, at: int, size: int) -> tuple[int, int]:
    """Return the start and end of the next data at or after an offset; the end is at most `size`."""
    try:
        start = os.lseek(fd, at, os.SEEK_DATA)
        return min(start, size), min(os.lseek(fd, start, os.SEEK_HOLE), size)
    except OSError:  # no data follows, or the file system does not report holes
        return at, max(at, size)


def _whole_blocks(at: int, block: int) -> int:
    return -(-at // block) * block


def _punch(fd: int, at: int, length: int) -> None:
    mode = _PUNCH_HOLE | _KEEP_SIZE
    if _libc.fallocate(fd, mode, ctypes.c_int64(at), ctypes.c_int64(length)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
