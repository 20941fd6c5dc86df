"""Which code decides here. Journals are marked with it: other code may make another state of the same events."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import metadata
from pathlib import Path

PACKAGES = ("master", "plan", "spec", "telemetry")
"""What `transition` is made of, and reads its numbers from."""


@cache
def code_version() -> str:
    """Version and digest of the sources, as "0.1.0 4be1c02d9a7f".

    The version alone does not tell: images are built from a branch, and a patched file has the version of the whole.
    """
    return named(Path(__file__).parents[2])


def named(root: Path) -> str:
    """The same, of the package in a folder. An installation without sources has its version alone."""
    made = hashlib.sha256()
    files = sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))
    for path in files:
        made.update(f"{path.relative_to(root)}\n".encode())
        made.update(path.read_bytes())
    try:
        version = metadata.version("dljob")
    except metadata.PackageNotFoundError:
        version = "unknown"
    return f"{version} {made.hexdigest()[:12]}" if files else version
