"""The volume of a job's folder: whether it takes files, and room on it that is the job's own."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

LEAST, ENOUGH = 64 << 10, 1 << 20
"""Free bytes below which a volume counts as full, and from which it no longer does."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors that pass once the volume has room again."""
_KEEP_SIZE = 1
"""FALLOC_FL_KEEP_SIZE of Linux."""


def reserve(fd: int, ahead: int) -> bool:
    """Reserve room for `ahead` bytes behind a file's end, which others cannot fill; the file's size stays.

    Returns:
        Whether the volume has that room; True where its file system cannot reserve any.
    """
    info = os.fstat(fd)
    if info.st_blocks * 512 - info.st_size >= ahead // 2:
        return True
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return libc.fallocate(fd, _KEEP_SIZE, info.st_size, ahead) == 0 or ctypes.get_errno() not in FULL


def volume_problem(folder: Path, *, known: bool) -> str:
    """Return why the volume of a folder takes no files; empty if it takes some, or cannot be asked.

    `known`: whether it counts as full already; then a little room is not enough to say that it is not.
    """
    try:
        seen = os.statvfs(folder)
    except OSError:
        return ""
    if seen.f_flag & os.ST_RDONLY:
        return f"the volume of {folder} is read-only: logs, events and checkpoints of the job are lost"
    # Some blocks are kept for root.
    free = (seen.f_bavail if os.geteuid() else seen.f_bfree) * seen.f_frsize
    if seen.f_files and not seen.f_favail:
        return f"the volume of {folder} has no inode left: logs, events and checkpoints of the job are lost"
    if free >= (ENOUGH if known else LEAST):
        return ""
    size = seen.f_blocks * seen.f_frsize
    amounts = f"{free / 2**20:.1f} of {size / 2**20:.0f} MiB are free"
    return f"the volume of {folder} is full ({amounts}): logs, events and checkpoints of the job are lost"
