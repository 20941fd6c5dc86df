"""The memory that this machine's processes may use: limits of the machine and of each control group they are in.

Source: docs.kernel.org/admin-guide/cgroup-v2.html and cgroup-v1/memory.html. A group's limit covers all groups below
it, so the tightest of a group and its ancestors holds: a slice of systemd, a pod around a container. Inside a container
the group's own folder is the root of /sys/fs/cgroup, whatever /proc/self/cgroup says.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")
_VERSION_1 = "memory"
"""The folder of version 1's memory controller; where both versions are mounted, version 2 lies beside it."""
_LIMITS = (
    ("memory.max", "memory.current", "memory.peak"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.max_usage_in_bytes"),
)
"""Files with the limit, the usage and the highest usage, in version 2 and in version 1."""
_NO_LIMIT = 1 << 60
"""From here on a limit is none: version 1 writes a number of this size instead."""
_CACHE = ("inactive_file", "active_file")


def groups(cgroups: Path = CGROUPS, proc: Path = PROC) -> tuple[Path, ...]:
    """Return the folders of our memory control groups: our own, then its ancestors."""
    rows: list[list[str]] = []
    with suppress(OSError):  # without /proc only the root is known
        rows = [line.split(":", 2) for line in (proc / "self/cgroup").read_text().splitlines()]
    # A row is "number:controllers:path"; version 2 has the number 0 and no controllers.
    version_1_path = next((path for _, kinds, path in rows if "memory" in kinds.split(",")), None)
    version_2_path = next((path for number, _, path in rows if number == "0"), "/")
    return (*_chain(cgroups / _VERSION_1, version_1_path or "/"), *_chain(cgroups, version_2_path))


def _chain(root: Path, path: str) -> Iterator[Path]:
    """Yield the folders of a group and its ancestors that exist and belong to the memory controller."""
    inside = root / path.lstrip("/")
    for folder in (inside, *inside.parents):
        if any((folder / f"memory.{file}").exists() for file in ("max", "limit_in_bytes", "events", "oom_control")):
            yield folder
        if folder == root:
            return


def own_group(cgroups: Path = CGROUPS, proc: Path = PROC) -> Path:
    """Return the folder of our own memory control group."""
    return next(iter(groups(cgroups, proc)), cgroups)


def limits(cgroups: Path = CGROUPS, proc: Path = PROC) -> Iterator[tuple[Path, int, int]]:
    """Yield (folder, limit, usage without cache), in bytes, for each of our groups that has a limit."""
    for folder in groups(cgroups, proc):
        for most, used, _ in _LIMITS:
            with suppress(OSError, ValueError):  # "max" means no limit
                limit = int((folder / most).read_text())
                if limit < _NO_LIMIT:
                    yield folder, limit, int((folder / used).read_text()) - _cache(folder)


def free(cgroups: Path = CGROUPS, proc: Path = PROC, meminfo: Path | None = None) -> tuple[int | None, str]:
    """Return the bytes that can still be allocated, and where the bound is; None if it is unknown."""
    bounds = [(limit - use, "in this container") for _, limit, use in limits(cgroups, proc)]
    with suppress(OSError, StopIteration, ValueError):
        lines = (meminfo or proc / "meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
        bounds.append((available << 10, "on this machine"))
    return min(bounds) if bounds else (None, "")


def peak(folder: Path) -> str:
    """Describe a group's highest usage and its limit; empty if the kernel does not report them."""
    for most, _, highest in _LIMITS:
        with suppress(OSError):
            return f"peak {(folder / highest).read_text().strip()} of {(folder / most).read_text().strip()} bytes"
    return ""


def _cache(folder: Path) -> int:
    """Return the bytes of page cache in a group, which the kernel reclaims before it kills a process."""
    with suppress(OSError, ValueError):
        rows = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return sum(int(rows.get(f"total_{name}", rows.get(name, 0))) for name in _CACHE)
    return 0
