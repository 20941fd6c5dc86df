"""A raylet whose workers are forked, and beside it a first template, which imports before there is a job.

Without it, the first PrimeMaster and the first rank of each node wait for a template's imports. It is made for the
environment that Ray is going to give to workers without variables of their own. Where that is another one, nobody asks
this template, and it ends.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dljob.runtime.forked_workers import starter
from dljob.runtime.forked_workers.raylet_command import with_forked_workers

FIRST_S = 120.0
"""Seconds that a template waits for its first job: a pod's node is there before its job is."""


def start_raylet(start: Callable[[list[str]], Any], command: list[str], folder: Path) -> Any:
    """Start a raylet with forked workers, and its first template; return what `start` does.

    Args:
        start: Starts a command, as Ray does; returns its `ProcessInfo`.
        command: The raylet's command.
        folder: A folder of this user alone, for the servers' sockets; its path must be short.
    """
    forking = with_forked_workers(command, folder)
    started = start(forking)
    if forking is not command:
        with suppress(OSError):  # without it, the first worker's starter makes a template
            start_first(folder, started.process.pid)
    return started


def start_first(folder: Path, raylet: int) -> None:
    """Start a template beside a raylet. Raises OSError."""
    env = env_of_workers(environ_of(raylet), raylet)
    path = starter.socket_of(str(folder), env, raylet)
    with starter.locked(path):
        if Path(path).exists():
            return
        with starter.listening(path) as line:
            words = starter.words_of(line, path, FIRST_S, raylet)
            # Not the files of this process: they may be closed, or a pipe whose reader waits for its end.
            files = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            template = subprocess.Popen(words, env=env, pass_fds=[line.fileno()], start_new_session=True, **files)
    # It ends with its raylet, which may be before this process.
    threading.Thread(target=template.wait, name="dljob-first-template", daemon=True).start()


def environ_of(pid: int) -> dict[str, str]:
    """Return the environment with which a process was started. Raises OSError."""
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="surrogateescape").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def env_of_workers(raylet_env: Mapping[str, str], raylet: int) -> dict[str, str]:
    """Return the environment that a raylet gives to workers without variables of their own, but the id of their job.

    Source: Ray 2.60, src/ray/raylet/worker_pool.cc: jemalloc is the raylet's alone; setproctitle must not use the
    room of the environment.
    """
    env = {name: value for name, value in raylet_env.items() if name != "LD_PRELOAD"}
    return env | {"RAY_RAYLET_PID": str(raylet), "SPT_NOENV": "1"}
