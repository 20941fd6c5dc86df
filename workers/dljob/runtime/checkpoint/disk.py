"""Reads and atomic writes of files on a volume that several pods share and that may hold foreign files.

Reads never block and never follow a name to anything but a regular file: a FIFO would block its reader for ever. Writes
go to a temporary file whose name is unique across pods; it is synced and renamed, and the folder is synced.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LARGEST = 64 << 20
"""Bytes of the largest metadata file that is read; a manifest takes some 120 per rank."""


def open_file(path: Path) -> int:
    """Open a regular file for reading, and return the descriptor.

    Raises OSError, also for anything that is not a file.
    """
    # O_NONBLOCK: the open of a FIFO without a writer returns. The type is checked on the descriptor, so no swap slips
    # in.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(0, "it is not a file")
    return fd


def read_file(path: Path) -> bytes:
    """Return a metadata file's bytes. Raises OSError."""
    with os.fdopen(open_file(path), "rb", buffering=0) as file:
        if os.fstat(file.fileno()).st_size > LARGEST:
            raise OSError(0, f"it is larger than {LARGEST >> 20} MiB")
        return file.readall()


def temporary(path: Path) -> Path:
    """Return a name beside `path` that is unique on the volume: pods that share it may have the same process ids."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}")


@contextmanager
def replacing(path: Path) -> Generator[Any]:
    """Open a file that appears under its name only when it is whole and on disk.

    After an error nothing of it is left.
    """
    temp = temporary(path)
    try:
        with temp.open("wb", buffering=0) as file:
            yield file
            os.fsync(file.fileno())
        temp.replace(path)
    except BaseException:
        with suppress(OSError):  # the error that is raised says more
            temp.unlink()
        raise
    sync_folder(path.parent)


def create(path: Path, data: bytes) -> bool:
    """Write a new file; False: a file of that name exists, and is left as it is. Raises OSError."""
    temp = temporary(path)
    try:
        with temp.open("wb", buffering=0) as file:
            write_all(file, data)
            os.fsync(file.fileno())
        os.link(temp, path)  # unlike a rename it fails when another one was first
    except FileExistsError:
        return False
    finally:
        temp.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


def write_all(file: Any, piece: memoryview | bytes) -> None:
    """Write the whole piece: one unbuffered write may write only a part of it."""
    done, view = 0, memoryview(piece)
    while done < len(view):
        done += file.write(view[done:])
    view.release()


def make_folder(path: Path) -> None:
    """Make a folder and its parents; each new name is on the disk when this returns."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing):
        sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Sync a folder, so that the names in it survive a crash of the machine."""
    with suppress(OSError):  # some network file systems refuse it; the rename is all they give
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def remove_folder(path: Path, first: str) -> None:
    """Delete a folder, its file `first` before the others. Of a link only the link is deleted, not its target."""
    if path.is_symlink():
        with suppress(OSError):  # it is gone already, or the volume refuses; the next save tries again
            path.unlink()
        return
    with suppress(OSError):  # gone already, or refused: `rmtree` tries again
        (path / first).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def size_of(path: Path) -> int:
    """Return a file's bytes; 0 when it is gone."""
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def names_in(path: Path) -> list[str]:
    """Return the names in a folder; none where there is no folder."""
    try:
        return os.listdir(path)  # noqa: PTH208 - names are all that is needed
    except OSError:
        return []
