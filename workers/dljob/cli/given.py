"""A job as a command was given it: the file, and what flags say over it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dljob.spec.model import DLJobManifest


def manifest_of(file: Path, *, name: str | None = None, backend: str | None = None) -> DLJobManifest:
    """The one job of a file, under another name or backend when given.

    Raises:
        UsageError: the file cannot be read.
        SpecError: with every problem.
    """
    from dljob.spec.load import load_file, parse

    manifest = load_file(file)
    if name is None and backend is None:
        return manifest
    data = manifest.model_dump(mode="json", by_alias=True, exclude_none=True)
    if name is not None:
        data["metadata"]["name"] = name
    if backend is not None:
        data["spec"]["backend"] = {**(data["spec"].get("backend") or {}), "name": backend}
    return parse(data)


def folder_of(file: Path, manifest: DLJobManifest) -> Path:
    """Where the code of a job is: `code.workingDir`, else the folder of its file."""
    return file.resolve().parent / (manifest.spec.code.working_dir or "")
