"""Observations of a job's savers from outside: their processes and the checkpoints in their shared memory."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from dljob.runtime.checkpoint.slot import PAGE, WHOLE, read_head


def savers(uid: str) -> dict[int, str]:
    """Return pid -> address of a job's savers."""
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                mine = (word.decode() for word in words if word.startswith(f"@dljob-saver-{uid[:8]}".encode()))
                found.update({int(entry.name): address for address in mine})
    return found


def saver_on(uid: str, node: str) -> tuple[int, int]:
    """Return the pids of a node's saver and of its saver agent."""
    import ray
    from ray._private.state import state

    name = f"{uid[:8]}/saver/{node[:12]}"
    address = ray.get(ray.get_actor(name, "dljob").address.remote(), timeout=60)
    (saver,) = [pid for pid, own in savers(uid).items() if own == address]
    rows = state.actor_table(None).values()
    (actor,) = [row["Pid"] for row in rows if row["Name"] == name and row["State"] == "ALIVE"]
    return saver, actor


def whole_in(pid: int) -> set[int]:
    """Return the steps of which a process holds complete copies in memory."""
    steps: set[int] = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if "memfd:dljob-checkpoint" in os.readlink(entry):  # noqa: PTH115 - its target is no path
                with entry.open("rb") as file:
                    head = read_head(file.read(PAGE))
                if head is not None and head.state == WHOLE:
                    steps.add(head.step)
    return steps
