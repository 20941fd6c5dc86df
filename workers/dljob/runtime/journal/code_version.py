"""The version of the code that decides here, which marks each journal.

Other code may make another state of the same events.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import metadata
from pathlib import Path

PACKAGES = ("master", "plan", "spec", "telemetry")
"""The packages that `transition` consists of, and reads its constants from."""


@cache
def code_version() -> str:
    """Return version and digest of the sources, as "0.1.0 4be1c02d9a7f".

    The version alone is not enough: images are built from branches, and a patched file has the version of its package.
    """
    return named(Path(__file__).parents[2])


def named(root: Path) -> str:
    """Return version and digest of the package in a folder. An installation without sources has only its version."""
    sha = hashlib.sha256()
    files = sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))
    for path in files:
        sha.update(f"{path.relative_to(root)}\n".encode())
        sha.update(path.read_bytes())
    try:
        version = metadata.version("dljob")
    except metadata.PackageNotFoundError:
        version = "unknown"
    return f"{version} {sha.hexdigest()[:12]}" if files else version
