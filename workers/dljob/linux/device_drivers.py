"""Libraries of device drivers in this process: after a fork they may not find their devices.

Only the standard library is needed: fork servers of any interpreter ask.
"""

from __future__ import annotations

from pathlib import Path

LIBRARIES = (
    "libcuda.so",
    "libnvidia-ml.so",
    "libamdhip64.so",
    "libhsa-runtime64.so",
    "libascendcl.so",
    "libze_loader.so",
)
"""How the names of libraries begin through which a process first sees its devices. Even if it finds none and opens
nothing, torch keeps what it counted, and a rank would see no device; with CUDA begun, each rank's use of it fails."""


def loaded() -> set[str]:
    """Return the names of those that are loaded."""
    files = {line.rpartition("/")[2] for line in Path("/proc/self/maps").read_text().splitlines()}
    return {name for name in files if name.startswith(LIBRARIES)}
