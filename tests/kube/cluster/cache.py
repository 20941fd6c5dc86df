"""Where the programs of the test cluster are kept, and what it means that this machine lacks something."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import platformdirs

GO = Path(__file__).resolve().parent / "go"  # our module files and sources
ROOT = Path(__file__).resolve().parents[3]  # the repository


class MissingError(Exception):
    """What this machine lacks for a test cluster, and what it would take."""


def machine() -> str:
    """The processor, as the kernel names it."""
    return platform.machine()


def home() -> Path:
    """The project's cache folder of this user."""
    return platformdirs.user_cache_path("dljob")


def kube() -> Path:
    """The folder of the programs built from the module files and sources as they are now."""
    digest = hashlib.sha256(machine().encode())
    for file in sorted(p for p in GO.rglob("*") if p.is_file()):
        digest.update(f"{file.relative_to(GO)}\0".encode() + file.read_bytes())
    return home() / "kube" / digest.hexdigest()[:16]


def program(name: str) -> Path:
    """A built program.

    Raises:
        MissingError: it is not built.
    """
    path = kube() / "bin" / name
    if not path.exists():
        raise MissingError(f"{name} is not built: run `make kube-build` (needs Go and its module proxy; minutes, once)")
    return path


def images() -> list[Path]:
    """The archives of the project's own images, which the real node imports."""
    return sorted((home() / "images").glob("*.tar"))
