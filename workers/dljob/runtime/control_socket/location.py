"""The path of a job's socket: in the job's folder if possible, else in a private folder of the user.

PrimeMaster writes the path that it bound into `job.json`, so a command does not guess.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from dljob.errors import UnreachableError
from dljob.linux.plain_files import read_json

ENTRY = "job.json"
NAME = "control.sock"
PATH_MAX = 107
"""Most bytes of a unix socket's path on Linux."""
_TEMPORARY = ".12345678"
"""Stands for the suffix of a socket's temporary name while it is being bound."""


def candidates(folder: Path, uid: str) -> Iterator[Path]:
    """Yield paths for the socket, the best first; the folder of each exists and is private.

    Raises:
        UnreachableError: After the last candidate, with the reason why the last place failed.
    """
    problem = f"{folder} takes no socket"
    if fits(own_path := folder / NAME):
        yield own_path
    else:
        problem = f"the path of {own_path} is longer than {PATH_MAX} bytes"
    for parent in private_folders():
        if not fits(place := parent / f"{uid[:8]}{_mark_of(folder)}"):
            continue
        try:
            private(parent)
        except (OSError, UnreachableError) as error:
            problem = error.message if isinstance(error, UnreachableError) else str(error)
            continue
        yield place
    raise UnreachableError(
        f"no place for the control socket: {problem}", hint="set XDG_RUNTIME_DIR to a folder of yours"
    )


def _mark_of(folder: Path) -> str:
    """Return the end of a socket's name outside a job's folder: of no other folder, even if that is a copy."""
    info = folder.stat()
    return f"-{info.st_dev:x}-{info.st_ino:x}.sock"


def socket_of(folder: Path, entry: Mapping[str, Any]) -> Path | None:
    """Return the socket that a job's entry names; None if it names none, or that of the folder it was copied from."""
    path = folder / str(entry.get("socket") or "")
    return path if path.parent == folder or path.name.endswith(_mark_of(folder)) else None


def fits(path: Path) -> bool:
    """Return whether a socket can be bound at a path, and at its longer temporary name."""
    return len(os.fsencode(path)) + len(_TEMPORARY) <= PATH_MAX


def private_folders() -> Iterator[Path]:
    """Yield the user's folders for sockets that do not fit into job folders; they may not exist yet."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_absolute():
        yield Path(runtime) / "dljob"
    name = f"dljob-{os.geteuid()}"
    try:
        best = tempfile.gettempdir()
    # No folder can be written to, as on a full disk; a socket of before may still lie there.
    except FileNotFoundError:
        best = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - as below
    # /tmp as well: TMPDIR may be too long a path for a socket.
    yield from dict.fromkeys((Path(best) / name, Path("/tmp") / name))  # noqa: S108 - checked below


def private(folder: Path) -> None:
    """Create a folder that only its owner can enter, or check an existing one.

    Raises:
        UnreachableError: It is a link, belongs to another user, or is open to others.
        OSError: It cannot be created.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    # lstat: a link must be seen as a link, whatever it leads to.
    status = folder.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise UnreachableError(f"{folder} is a link: its owner could put another folder in its place")
    if not stat.S_ISDIR(status.st_mode):
        raise UnreachableError(f"{folder} is not a folder")
    if status.st_uid != os.geteuid():
        raise UnreachableError(f"{folder} belongs to user {status.st_uid}, not to user {os.geteuid()}")
    if status.st_mode & 0o077:
        hint = f"chmod 700 {shlex.quote(str(folder))}"
        raise UnreachableError(f"{folder}, for control sockets, is open to other users", hint=hint)


def note(folder: Path, path: str, trouble: str = "") -> None:
    """Write the socket's path, or the reason why there is none, into `job.json`, if that file exists.

    Raises:
        OSError: It cannot be written.
        ValueError: `job.json` cannot be parsed.
    """
    entry = read(folder)
    if entry:
        # In the folder by its name alone: a copy of the folder must not lead to this job.
        socket = Path(path).name if Path(path).parent == folder else path
        write(folder / ENTRY, {**entry, "socket": socket, "socket_trouble": trouble})


def read(folder: Path) -> dict[str, Any]:
    """Return the content of `job.json`; empty without the file.

    Raises:
        ValueError: It is not a JSON object.
    """
    try:
        content = read_json(folder / ENTRY)
    except FileNotFoundError:
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"{folder / ENTRY} holds no object")
    return cast("dict[str, Any]", content)


def write(path: Path, content: dict[str, Any]) -> None:
    """Replace a file in one step by JSON that only its owner can read."""
    # Written beside it and renamed: a command never reads half of it.
    part = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
            json.dump(content, out, indent=1)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def remove(path: str | Path) -> None:
    """Remove a socket; leave any other kind of file alone."""
    with suppress(OSError):  # it, or its folder, is gone already
        if stat.S_ISSOCK(Path(path).lstat().st_mode):
            Path(path).unlink()
