"""The processes of a node of Ray, forked workers too: these are no descendants of its raylet."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from dljob.linux.descendants import below
from dljob.runtime.forked_workers import starter

SERVER = os.fspath(Path(starter.__file__).with_name("server.py"))


def of_raylet(raylet: int) -> list[int]:
    """Return the pids of a raylet and of all its processes, parents before children."""
    forked = (pid for server in servers(raylet) for pid in (server, *below(server)))
    # A worker that was just forked has the words of its server.
    return list(dict.fromkeys((raylet, *below(raylet), *forked)))


def servers(raylet: int) -> list[int]:
    """Return the servers beside a raylet."""
    pids: list[int] = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and _serves((folder / "cmdline").read_bytes().decode(errors="replace"), raylet):
                pids.append(int(folder.name))
    return pids


def _serves(command: str, raylet: int) -> bool:
    words = command.rstrip("\0").split("\0")
    return SERVER in words and words[-1] == str(raylet)
