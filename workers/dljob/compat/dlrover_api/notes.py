"""Notes about calls and settings of DLRover that have no effect here: each is told once in a process."""

from __future__ import annotations

import sys
from typing import NoReturn

from dljob.errors import UsageError

_told_names: set[str] = set()


def tell_once(name: str, reason: str) -> None:
    """Say on stderr that `name` has no effect, and why; the second time nothing."""
    if name in _told_names:
        return
    _told_names.add(name)
    sys.stderr.write(f"dljob.compat: {name} has no effect: {reason}\n")


def refuse(name: str, way: str) -> NoReturn:
    """Raise the error of a name that is refused when it is used.

    Raises:
        UsageError: always.
    """
    raise UsageError(f"{name} of DLRover is not carried over", hint=way)
