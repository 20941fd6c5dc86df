"""Cache folders of the test cluster's programs, and the error for what this machine lacks."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import platformdirs

GO = Path(__file__).resolve().parent / "go"  # our module files and sources
ROOT = Path(__file__).resolve().parents[3]  # the repository


class MissingError(Exception):
    """This machine lacks something for a test cluster; the message says what and how to get it."""


def machine() -> str:
    """Return the kernel's name of the processor architecture."""
    return platform.machine()


def home() -> Path:
    """Return this user's cache folder of the project."""
    return platformdirs.user_cache_path("dljob")


def kube() -> Path:
    """Return the folder of the programs built from the present module files and sources."""
    digest = hashlib.sha256(machine().encode())
    for file in sorted(p for p in GO.rglob("*") if p.is_file()):
        digest.update(f"{file.relative_to(GO)}\0".encode() + file.read_bytes())
    return home() / "kube" / digest.hexdigest()[:16]


def program(name: str) -> Path:
    """Return the path of a built program.

    Raises:
        MissingError: it is not built.
    """
    path = kube() / "bin" / name
    if not path.exists():
        raise MissingError(f"{name} is not built: run `make kube-build` (needs Go and its module proxy; minutes, once)")
    return path


def images() -> list[Path]:
    """Return the archives of the project's own images, which the real node imports."""
    return sorted((home() / "images").glob("*.tar"))
