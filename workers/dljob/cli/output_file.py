"""Files that a command writes: in one step, and never over one that is there, unless the user says so."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from dljob.errors import UsageError

_ELSEWHERE = "choose another file with -o"


def refuse_existing(file: Path, *, force: bool) -> None:
    """Refuse a file that is there, before the work: the content may take a while.

    Raises:
        UsageError: it is there, and is not to be replaced.
    """
    if file.exists() and not force:
        raise _exists(file)


def write(file: Path, pieces: Iterable[str], *, force: bool, hint: str = _ELSEWHERE) -> int:
    """Write a file in one step: who opens it sees all of it, or none. Returns its size in bytes.

    `hint` says what to do where it cannot be written.

    Raises:
        UsageError: it cannot be written, or somebody has written it meanwhile.
    """
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        # Half characters, in names that are not UTF-8, have no bytes.
        with part.open("w", encoding="utf-8", errors="replace") as out:
            out.writelines(pieces)
        size = part.stat().st_size
        if force:
            part.replace(file)
        else:
            # Unlike a rename, a link never replaces a file that somebody wrote meanwhile.
            os.link(part, file)
    except FileExistsError:
        raise _exists(file) from None
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}", hint=hint) from error
    finally:
        part.unlink(missing_ok=True)
    return size


def _exists(file: Path) -> UsageError:
    return UsageError(f"{file} exists", hint="choose another name with -o, or add --force")
