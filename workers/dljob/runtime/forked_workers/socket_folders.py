"""Folders of the servers' sockets beside raylets of `ray start`, each for one raylet, and removed after it.

A server or template that lives when its raylet ends removes the folder. Where none does, as they end without work, the
user's next raylet does. That removes no folder of a living raylet: whoever makes one locks it until it ends itself, and
by then the raylet runs, whose command names the folder.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import tempfile
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

PLACE = Path("/tmp")  # noqa: S108 - the path of a socket is short, and TMPDIR may not be; `mkdtemp` chooses the name
PREFIX = "dljob-forks-"
YOUNG_S = 60.0
"""Seconds since the last change of a folder within which nobody else removes it."""
ASK_S = 1.0
"""Most seconds to connect to a socket."""
_FILE = re.compile(r"\d+-[0-9a-f]{16}\.sock(\.lock|\.unfit|\.ends)?")


def make() -> Path:
    """Return a new folder of this user alone, which is locked until this process ends. Raises OSError."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_prefix(), dir=PLACE))
        # Not closed: the kernel does so at the end of this process.
        fcntl.flock(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), fcntl.LOCK_SH)
        # Whoever removes dead ones may have had it before it was locked.
        if folder.is_dir():
            return folder


def _prefix() -> str:
    """Return how names of folders begin whose raylets can be seen from here."""
    try:
        # /tmp may be shared by containers, and processes of another one cannot be seen.
        boot_and_namespace = Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    except OSError:  # a sandbox without: nothing can be told of other processes
        return PREFIX
    return f"{PREFIX}{sha256(boot_and_namespace.encode()).hexdigest()[:8]}-"


def remove_dead() -> None:
    """Remove this user's folders whose raylet is gone; what is in use, or cannot be judged, stays."""
    prefix = _prefix()
    if prefix == PREFIX:
        return
    with suppress(OSError):  # as if there were none: the raylet that starts needs them not
        for folder in PLACE.glob(f"{prefix}*"):
            with suppress(OSError):  # another user's, locked, or gone meanwhile: it stays as it is
                _remove_dead(folder)


def _remove_dead(folder: Path) -> None:
    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        info = os.fstat(folder_fd)
        if info.st_uid != os.geteuid() or time.time() - info.st_mtime < YOUNG_S:
            return
        # In this order: once nobody has it locked, its raylet runs if it ever will.
        fcntl.flock(folder_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_named(folder) and all(map(_is_deaf, folder.glob("*.sock"))):
            clear(folder)
    finally:
        os.close(folder_fd)


def _is_named(folder: Path) -> bool:
    """Whether the command of a process names a folder: its raylet, a starter or a server. Raises OSError."""
    name = os.fsencode(folder)
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if name in (process / "cmdline").read_bytes():
                return True
    return False


def _is_deaf(path: Path) -> bool:
    """Whether a socket has no listener. Raises OSError where that cannot be told."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(ASK_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False


def clear(folder: Path) -> None:
    """Remove a folder whose raylet has ended; one of another kind, or with other files in it, stays. Raises OSError."""
    files = list(folder.iterdir())
    if folder.parent != PLACE or not folder.name.startswith(PREFIX) or not all(_FILE.fullmatch(f.name) for f in files):
        return
    for file in files:
        file.unlink(missing_ok=True)
    folder.rmdir()
