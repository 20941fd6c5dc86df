"""Processes that this one has started and that SIGKILL has ended, as the frames of an exception hold them.

The exception of a parent rarely says which child it misses: a queue stays empty, or a pool is broken. The objects of
its frames know it: those of `subprocess` and `multiprocessing`, and what holds them. The kernel's log then tells
whether it was memory.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, cast

from dljob.linux.broken_connection import frames_of

MOST = 100
"""Most values of a container or an object that are looked at."""
_MODULES = ("subprocess", "multiprocessing", "concurrent.futures", "torch.utils.data")


def pids(error: BaseException) -> tuple[int, ...]:
    """Return the pids of the killed children that the frames of an error hold."""
    killed: dict[int, None] = {}
    for local_names in frames_of(error.__traceback__):
        for value in list(local_names.values()):
            with suppress(Exception):  # user code's objects are looked at
                killed |= dict.fromkeys(_killed_in(value, 3))
    return tuple(killed)


def _killed_in(value: object, depth: int) -> Iterator[int]:
    module = type(value).__module__
    if isinstance(value, (list, tuple, set, frozenset)):
        parts: Iterable[object] = cast("Iterable[object]", value)
    elif isinstance(value, dict):
        parts = cast("dict[object, object]", value).values()
    elif module.startswith(_MODULES) or not module.startswith(("builtins", "torch", "numpy")):
        fields: Any = getattr(value, "__dict__", None)
        parts = cast("dict[str, object]", fields).values() if isinstance(fields, dict) else ()
        pid = getattr(value, "pid", None) if module.startswith(_MODULES) else None
        if isinstance(pid, int) and pid > 0 and _was_killed(value, pid):
            yield pid
    else:
        return
    for part in list(parts)[:MOST] if depth else ():
        yield from _killed_in(part, depth - 1)


def _was_killed(process: object, pid: int) -> bool:
    code = getattr(process, "returncode", None)
    if code is None:
        code = getattr(process, "exitcode", None)
    if code is not None:
        return code == -signal.SIGKILL
    with suppress(OSError):  # nobody has asked for its end yet, and the user's code still may
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return end is not None and (end.si_code, end.si_status) == (os.CLD_KILLED, signal.SIGKILL)
    return False
