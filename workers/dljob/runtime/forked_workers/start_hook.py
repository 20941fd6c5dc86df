"""Hook of `ray start`: the raylet that it starts has forked workers, as that of `dljob run` has.

    RAY_START_HOOK=dljob.runtime.forked_workers.start_hook.install ray start ...

Ray calls the function of that name before it starts a node's processes (ray/scripts/scripts.py, 2.60).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from dljob import ray_private
from dljob.runtime.forked_workers import socket_folders
from dljob.runtime.forked_workers.first_template import start_raylet


def install(params: object, head: object) -> None:
    """Start raylets of this process with forked workers. Without the hook, or after an error in it, Ray starts them."""
    del params, head
    try:
        socket_folders.remove_dead()
        ray_private.start_processes_by(_started)
    except Exception as error:  # noqa: BLE001 - a Ray without it is slower, and one that does not start is nothing
        _say(error)


def _started(start: Callable[..., Any], command: list[str], process_type: str, *args: Any, **more: Any) -> Any:
    """Start one of Ray's processes; a raylet with a folder for the sockets of the servers that fork."""
    if process_type != "raylet":
        return start(command, process_type, *args, **more)
    try:
        folder = socket_folders.make()
    except OSError as error:
        _say(error)
        return start(command, process_type, *args, **more)
    return start_raylet(lambda forking: start(forking, process_type, *args, **more), command, folder)


def _say(error: Exception) -> None:
    print(f"[dljob] Ray starts its workers itself: {error!r}", file=sys.stderr)  # noqa: T201 - `ray start` prints
