"""Files of a folder that others may have written: a job's ranks, or whoever sent a copy of it.

Only regular files are opened, since a FIFO would block for ever, and only so much of them is read as the program that
usually writes them can have written: a sparse file of 10 GiB takes no room on the disk of its sender.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

DOCUMENT_BYTES = 32 << 20
"""Most bytes of a file that is read whole: the status of 10,000 ranks has a few MB."""
DEPTH = 64
"""Most levels of lists and objects in JSON: code that walks deeper ones would exhaust Python's stack."""
SKIPPED_BYTES = 512 << 20
"""Most bytes that are read to find the end of a line that is too long."""
_PIECE = 1 << 20


def open_plain(file: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        OSError: it cannot be opened, or is a FIFO, a device, a socket or a folder.
    """
    # Looked at before it is opened: opening alone starts some devices, such as a watchdog.
    _check_kind(file, file.stat())
    opened = os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    try:
        _check_kind(file, os.fstat(opened.fileno()))
    except OSError:
        opened.close()
        raise
    return opened


def _check_kind(file: Path, info: os.stat_result) -> None:
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "Not a regular file", str(file))


def read_plain(file: Path, most: int = DOCUMENT_BYTES) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: it cannot be read, is no regular file, or has more than `most` bytes.
    """
    with open_plain(file) as opened:
        data = opened.read(min(most, os.fstat(opened.fileno()).st_size) + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"Larger than {most >> 20} MiB", str(file))
    return data


def read_json(file: Path) -> Any:  # noqa: ANN401 - as json.loads
    """Return the value in a file of JSON.

    Raises:
        OSError: as of `read_plain`.
        ValueError: it is no JSON, or nested too deep.
    """
    return parse_json(read_plain(file))


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401 - as json.loads
    """Return the value of a JSON text; bytes are UTF-8.

    Raises:
        ValueError: it is no JSON, or nested too deep.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"nested deeper than {DEPTH} levels") from None
    # Only a text with so many brackets can be so deep.
    if text.count("[") + text.count("{") > DEPTH and _is_deeper(value):
        raise ValueError(f"nested deeper than {DEPTH} levels")
    return value


def _is_deeper(value: object) -> bool:
    level: list[Any] = [value]
    for _ in range(DEPTH):
        inner: list[Any] = []
        for container in level:
            values = cast("Iterable[Any]", container.values() if isinstance(container, dict) else container)
            inner += [value for value in values if isinstance(value, dict | list)]
        if not inner:
            return False
        level = inner
    return True


def bounded_lines(stream: IO[bytes], most: int) -> Iterator[bytes]:
    """Yield the lines of a stream with their ends; of a longer one the first `most` bytes, which have no end.

    What follows a line of more than SKIPPED_BYTES is not read.
    """
    while line := stream.readline(most):
        yield line
        skipped = 0
        while not line.endswith(b"\n") and (line := stream.readline(_PIECE)):
            skipped += len(line)
            if skipped > SKIPPED_BYTES:
                return
