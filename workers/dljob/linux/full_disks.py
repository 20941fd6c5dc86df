"""File systems of this process without room, where its log says that something could not be written.

Each alone proves nothing: a disk may be full of what nobody needs, and a log is user output. Both together say why a
file is cut off or missing, which is what the code notices that reads it.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
WORDS = ("no space left on device", "[errno 28]", "os error 28", "database or disk is full")
"""What libraries and runtimes write for ENOSPC."""
WITHIN_S = 2.0
"""Seconds to look at the file systems: a server of NFS that is gone does not answer."""
LEFT_SHARE, LEFT_BYTES = 50, 64 << 20
"""A file system is full with less than a fiftieth of it free, and less than these bytes."""
LOG_BYTES = 64 << 10
"""Free bytes below which a log takes no output, as `VolumeFull` counts them."""
LINE = 200
"""Characters of a line of the log that are shown."""
_VIRTUAL = frozenset(
    ("proc", "sysfs", "cgroup", "cgroup2", "devpts", "devtmpfs", "mqueue", "securityfs", "debugfs", "tracefs", "bpf")
)


def describe(log: str) -> str:
    """Return that a file system is full and the log's own words, the newest; empty unless both are there.

    Args:
        log: The end of the process's log.
    """
    lines = (line.strip() for line in reversed(log.splitlines()))
    complaint = next((line for line in lines if any(word in line.lower() for word in WORDS)), "")
    full = full_disks() if complaint else []
    return f"no room is left on {', '.join(full[:3])}; its log says: {complaint[-LINE:]}" if full else ""


def describe_log(log: int | str) -> str:
    """Return that no room is left for a log, so that a program that writes to it fails and cannot say why; or nothing.

    Args:
        log: Its descriptor or path.
    """
    with suppress(OSError):
        usage = os.statvfs(log)
        free = (usage.f_bavail if os.geteuid() else usage.f_bfree) * usage.f_frsize
        if usage.f_blocks and free < LOG_BYTES:
            return f"no room is left on the volume of its log ({free >> 10} KiB free): programs that write to it fail"
    return ""


def full_disks(mounts: Path = MOUNTS) -> list[str]:
    """Return the full file systems that this process may write to, as `/data (ext4, 0 of 20 MiB free)`."""
    full: list[str] = []
    looking = threading.Thread(target=_look, args=(mounts, full), name="dljob-disks", daemon=True)
    with suppress(RuntimeError):  # no thread is left
        looking.start()
        looking.join(WITHIN_S)
    return list(full)


def _look(mounts: Path, full: list[str]) -> None:
    with suppress(OSError):
        for row in mounts.read_text(errors="replace").splitlines():
            before, _, after = row.partition(" - ")
            folder, options = before.split()[4:6]
            kind = after.split()[0]
            if kind in _VIRTUAL or "rw" not in options.split(","):
                continue
            with suppress(OSError):
                folder = folder.replace(r"\040", " ")
                if room_text := _describe_scarce_room(folder):
                    full.append(f"{folder} ({kind}, {room_text})")


def _describe_scarce_room(folder: str) -> str:
    """Return what is left of a full file system; empty: there is room."""
    usage = os.statvfs(folder)
    total = usage.f_blocks * usage.f_frsize
    free = (usage.f_bavail if os.geteuid() else usage.f_bfree) * usage.f_frsize
    if total and free < min(total // LEFT_SHARE, LEFT_BYTES):
        return f"{free >> 20} of {total >> 20} MiB free"
    return "0 inodes free" if usage.f_files and not usage.f_favail else ""
