"""A raylet whose workers are forked, and beside it the server of a first job, which imports before that job is there.

Without it, the first PrimeMaster and the first rank of each node wait for a server's imports. It is made for the
environment that Ray is going to give to workers of the first job without variables of their own. Where that is another
one, nobody asks this server, and it ends.
"""

from __future__ import annotations

import fcntl
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dljob.runtime.forked_workers import starter
from dljob.runtime.forked_workers.raylet_command import with_forked_workers

FIRST_JOB, JOB_OF_API = "01000000", "02000000"
"""The ids that Ray's GCS gives to a first job, and to the first by Ray's Job API, whose own actors are a job too: its
number in four bytes, the lowest first."""
FIRST_S = 120.0
"""Seconds that a server waits for its first worker: a pod's node is there before its job is."""


def start_raylet(start: Callable[[list[str]], Any], command: list[str], folder: Path, job: str = FIRST_JOB) -> Any:
    """Start a raylet with forked workers, and its first server; return what `start` does.

    Args:
        start: Starts a command, as Ray does; returns its `ProcessInfo`.
        command: The raylet's command.
        folder: A folder of this user alone, for the servers' sockets; its path must be short.
        job: The id of the job that is expected.
    """
    forking = with_forked_workers(command, folder)
    started = start(forking)
    if forking is not command:
        with suppress(OSError):  # without it, the first worker's starter makes a server
            start_first(folder, started.process.pid, job)
    return started


def start_first(folder: Path, raylet: int, job: str) -> None:
    """Start the server for workers of a job, beside a raylet. Raises OSError."""
    env = env_of_workers(environ_of(raylet), raylet, job)
    path = starter.socket_of(str(folder), env, raylet)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if Path(path).exists():
            return
        with starter.listening(path) as line:
            words = starter.words_of(line, path, FIRST_S, raylet)
            server = subprocess.Popen(
                words, env=env, pass_fds=[line.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )
    # It ends with its raylet, which may be before this process.
    threading.Thread(target=server.wait, name="dljob-first-server", daemon=True).start()


def environ_of(pid: int) -> dict[str, str]:
    """Return the environment with which a process was started. Raises OSError."""
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="surrogateescape").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def env_of_workers(raylet_env: Mapping[str, str], raylet: int, job: str) -> dict[str, str]:
    """Return the environment that a raylet gives to a job's workers that have no variables of their own.

    Source: Ray 2.60, src/ray/raylet/worker_pool.cc: jemalloc is the raylet's alone; setproctitle must not use the
    room of the environment.
    """
    env = {name: value for name, value in raylet_env.items() if name != "LD_PRELOAD"}
    return env | {"RAY_JOB_ID": job, "RAY_RAYLET_PID": str(raylet), "SPT_NOENV": "1"}
