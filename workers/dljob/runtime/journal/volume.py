"""The volume of a job's folder: whether it takes files, and room on it that is the job's own."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

LEAST, ENOUGH = 64 << 10, 1 << 20
"""Free bytes below which a volume counts as full, and from which it no longer does."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors that pass once the volume has room again."""
WORTH_NAMING = 1 << 20
"""Bytes of a file from which it is named as one that could be removed."""
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


def largest_files(folders: Sequence[Path], volume: Path, count: int = 3) -> str:
    """Return which files below some folders take most of a volume, for messages; empty where none takes much."""
    sizes: dict[str, int] = {}
    with suppress(OSError):
        device = volume.stat().st_dev
        for folder in folders:
            for place, _, names in os.walk(folder):
                for name in names:
                    with suppress(OSError):
                        info = (path := Path(place, name)).lstat()
                        if info.st_dev == device and info.st_blocks * 512 >= WORTH_NAMING:
                            sizes[str(path)] = info.st_blocks * 512
    largest = sorted(sizes, key=lambda path: -sizes[path])[:count]
    return ", ".join(f"{path} ({sizes[path] / 2**20:.0f} MiB)" for path in largest)


def volume_problem(folder: Path, *, known: bool) -> str:
    """Return why the volume of a folder takes no files; empty if it takes some, or cannot be asked.

    `known`: whether it counts as full already; then a little room is not enough to say that it is not.
    """
    try:
        volume = os.statvfs(folder)
    except OSError:
        return ""
    if volume.f_flag & os.ST_RDONLY:
        return f"the volume of {folder} is read-only: {_lost(folder)}"
    # Some blocks are kept for root.
    free = (volume.f_bavail if os.geteuid() else volume.f_bfree) * volume.f_frsize
    if volume.f_files and not volume.f_favail:
        return f"the volume of {folder} has no inode left: {_lost(folder)}"
    if free >= (ENOUGH if known else LEAST):
        return ""
    size = volume.f_blocks * volume.f_frsize
    amounts = f"{free / 2**20:.1f} of {size / 2**20:.0f} MiB are free"
    largest = largest_files([folder], folder)
    hint = f"; its largest files: {largest}" if largest else ""
    return f"the volume of {folder} is full ({amounts}): {_lost(folder)}{hint}"


def _lost(folder: Path) -> str:
    """Return what of a job a volume that takes no files loses: checkpoints may be on another one, by a link."""
    try:
        has_checkpoints = (folder / "checkpoints").stat().st_dev == folder.stat().st_dev
    except OSError:
        has_checkpoints = True  # the folder would be made here
    return f"{'logs, events and checkpoints' if has_checkpoints else 'logs and events'} of the job are lost"
