"""The words by which a raylet of ours starts its workers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from dljob.runtime.forked_workers import starter

SWITCH = "DLJOB_FORKED_WORKERS"
"""Variable of who starts Ray: with 0 each worker is started as Ray does it."""
WANTED = "DLJOB_FORK_IMPORTS"
"""Variable of a worker with the modules that its server imports beside its own list."""
_FLAG = "--python_worker_command="


def with_forked_workers(command: list[str], folder: Path, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return a raylet's command whose workers begin with `starter`; unchanged where it looks unfamiliar.

    Args:
        command: The raylet's command.
        folder: A folder of this user alone, for the servers' sockets; its path must be short.
        environ: The environment of the process that starts it.
    """
    at = next((at for at, word in enumerate(command) if word.startswith(_FLAG)), None)
    if at is None or environ.get(SWITCH) == "0":
        return command
    words = command[at].removeprefix(_FLAG)
    python = f"{sys.executable} "
    # Another Ray may start its workers in another way: that costs more, but it works.
    if not words.startswith(python) or starter.SETUP not in words.split()[1]:
        return command
    starter_command = subprocess.list2cmdline([sys.executable, "-I", "-S", starter.__file__, str(folder)])
    return [*command[:at], f"{_FLAG}{starter_command} {words.removeprefix(python)}", *command[at + 1 :]]


def is_forked(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process is a worker that was forked."""
    return environ.get(SWITCH) == "1"


def imports_env(modules: Sequence[str], environ: Mapping[str, str] = os.environ) -> tuple[tuple[str, str], ...]:
    """Return the variables of workers that are to find modules imported; none where this process was not forked itself.

    Without modules there is nothing to say, and workers have one server with all others of the same environment.
    """
    return ((WANTED, ",".join(modules)),) if modules and is_forked(environ) else ()
