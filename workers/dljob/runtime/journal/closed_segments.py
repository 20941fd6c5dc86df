"""Superseded segments of a journal, kept beside it for people: compressed and bounded. No start reads them."""

from __future__ import annotations

import gzip
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

log = logging.getLogger(__package__)

WORTH_BYTES, WORTH_FILES = 2**20, 16
"""Below this size in all, and this number of files, superseded segments stay as they are."""
KEPT_BYTES = 512 * 2**20
"""Most compressed bytes that are kept of a job; beyond that the oldest segments are dropped."""
RATIO = 64
"""No segment compresses better than this: one so many times larger than KEPT_BYTES would be dropped at once."""


def archive(old: Sequence[Path], folder: Path) -> str:
    """Compress superseded segments, oldest first, into a folder; return a message about dropped ones, or an empty text.

    A death at any line leaves a segment in one place or in both, and the next call continues with those that are left.
    """
    if len(old) < WORTH_FILES and sum(path.stat().st_size for path in old) < WORTH_BYTES:
        return ""
    folder.mkdir(mode=0o700, exist_ok=True)
    sync_folder(folder.parent)  # the originals are deleted below: the folder of their copies must not be lost
    for part in folder.glob(".*.gz.*"):
        part.unlink(missing_ok=True)  # its writer was killed
    dropped: list[str] = []
    for path in old:
        # Compressing it first would take minutes, only to drop the result.
        if path.stat().st_size > RATIO * KEPT_BYTES:
            dropped.append(path.name)
        else:
            _compress(path, folder / f"{path.name}.gz")
        path.unlink(missing_ok=True)  # only now: a death before it leaves the segment twice, never nowhere
    archived = sorted(folder.glob("*.gz"))
    sizes = {path: path.stat().st_size for path in archived}
    while archived and sum(sizes[path] for path in archived) > KEPT_BYTES:
        dropped.append(archived[0].name.removesuffix(".gz"))
        archived.pop(0).unlink(missing_ok=True)
    if not dropped:
        return ""
    first, last = min(dropped), max(dropped)
    which = first if first == last else f"{first} to {last}"
    return f"{which} in {folder}, which keeps {KEPT_BYTES >> 20} MiB; no restart needs them"


def _compress(path: Path, target: Path) -> None:
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with path.open("rb") as source, part.open("wb") as file:
            with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=1, mtime=0) as packed:
                shutil.copyfileobj(source, packed, 2**20)
            # Synced before the rename, and the folder after it: the original is deleted next.
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
        sync_folder(target.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make the name of a new file as durable as its bytes."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
