"""The place of a job's socket: in the job's folder where that takes one, else in a private folder of the user.

PrimeMaster writes the path that it bound into `job.json`, so a command needs no guess.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from dljob.errors import UnreachableError

ENTRY = "job.json"
NAME = "control.sock"
PATH_MAX = 107
"""Linux takes no longer path for a unix socket, in bytes."""
_TEMPORARY = ".12345678"
"""As much as is added to the name of a socket that is being bound."""


def candidates(folder: Path, uid: str) -> Iterator[Path]:
    """Where a socket may lie, the best place first; each one's folder is there and private.

    Raises:
        UnreachableError: no place is left, with the reason of the last one; raised after the last candidate.
    """
    why = f"{folder} takes no socket"
    if fits(own := folder / NAME):
        yield own
    else:
        why = f"the path of {own} is longer than {PATH_MAX} bytes"
    for parent in private_folders():
        if not fits(place := parent / f"{uid}.sock"):
            continue
        try:
            private(parent)
        except (OSError, UnreachableError) as error:
            why = str(error)
            continue
        yield place
    raise UnreachableError(f"no place for the control socket: {why}", hint="set XDG_RUNTIME_DIR to a folder of yours")


def fits(path: Path) -> bool:
    """Whether a socket can be bound at a path, under its temporary name too."""
    return len(os.fsencode(path)) + len(_TEMPORARY) <= PATH_MAX


def private_folders() -> Iterator[Path]:
    """The user's own folders for sockets whose job folder takes none; they need not be there."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_absolute():
        yield Path(runtime) / "dljob"
    name = f"dljob-{os.geteuid()}"
    yield from dict.fromkeys((Path(tempfile.gettempdir()) / name, Path("/tmp") / name))  # noqa: S108 - checked below


def private(folder: Path) -> None:
    """Make a folder that only its owner enters, or check that it is one.

    Raises:
        UnreachableError: it is a link, or somebody else's, or open to others.
        OSError: it cannot be made.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise UnreachableError(f"{folder} is a link, and whoever made it could put another folder there")
    if not stat.S_ISDIR(found.st_mode):
        raise UnreachableError(f"{folder} is not a folder")
    if found.st_uid != os.geteuid():
        raise UnreachableError(f"{folder} belongs to user {found.st_uid}, not to user {os.geteuid()}")
    if found.st_mode & 0o077:
        raise UnreachableError(f"{folder} is open to other users", hint=f"chmod 700 {folder}")


def note(folder: Path, path: str, trouble: str = "") -> None:
    """Write into `job.json` where the socket is, or why there is none; where there is no `job.json` nothing is written.

    Raises:
        OSError: it cannot be written.
        ValueError: `job.json` is not readable.
    """
    said = read(folder)
    if said:
        write(folder / ENTRY, {**said, "socket": path, "socket_trouble": trouble})


def read(folder: Path) -> dict[str, Any]:
    """What `job.json` says; empty when it is not there.

    Raises:
        ValueError: it is no JSON object.
    """
    try:
        said = json.loads((folder / ENTRY).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    if not isinstance(said, dict):
        raise ValueError(f"{folder / ENTRY} holds no object")
    return cast("dict[str, Any]", said)


def write(path: Path, said: dict[str, Any]) -> None:
    """Replace a file at once with JSON that only its owner reads."""
    part = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
            json.dump(said, out, indent=1)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def remove(path: str | Path) -> None:
    """Remove a socket, if it is one; a path of another kind is left alone."""
    with suppress(OSError):  # gone already, or in a folder that is: there is nothing to remove
        if stat.S_ISSOCK(Path(path).lstat().st_mode):
            Path(path).unlink()
