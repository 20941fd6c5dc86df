"""The checkpoints below a folder, as `dljob checkpoint` lists them. Nothing is unpickled, and no link is followed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dljob.master.state.checkpoint_ids import CheckpointId, fence
from dljob.runtime.checkpoint.files import Folder
from dljob.runtime.checkpoint.sealed import DamagedError, NewerFormatError

DEPTH = 3
"""Levels of folders that are searched: job, role, rank."""


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """One checkpoint. `state`: whole, newer, void, torn, damaged."""

    world: str
    mark: CheckpointId
    ranks: int
    size: int
    saved_at: float | None
    state: str
    reason: str = ""


def worlds(root: Path) -> list[tuple[str, Folder]]:
    """List name and folder of each world that saved in a folder or below it."""
    folders = ((path, Folder(path)) for path in _folders(root, DEPTH))
    return [
        (root.resolve().name if path == root else str(path.relative_to(root)), folder)
        for path, folder in folders
        if folder.used()
    ]


def rows(world: str, folder: Folder, *, read_all: bool = False) -> Iterator[CheckpointRow]:
    """Yield the checkpoints of a world, newest first. `read_all`: read every byte of the whole ones."""
    decisions = folder.decisions()
    for mark in reversed(folder.marks()):
        try:
            manifest = folder.manifest(mark)
        except NewerFormatError as error:
            yield CheckpointRow(world, mark, 0, folder.size(mark), folder.saved_at(mark), "newer", str(error))
            continue
        except DamagedError as error:
            reason = str(error)
            # What cannot be read cannot be replaced either, a folder for example.
            if read_all and not isinstance(error.__cause__, OSError) and not fence(mark, decisions):
                reason += "; its parts are whole: a load repairs it" if folder.has_whole_parts(mark) else ""
            yield CheckpointRow(world, mark, 0, folder.size(mark), None, "damaged", reason)
            continue
        if manifest is None:
            state = "newer" if folder.newer(mark) else "torn"
            yield CheckpointRow(world, mark, 0, folder.size(mark), None, state, folder.check(mark))
            continue
        state, reason = "whole", ""
        if fault := fence(mark, decisions):
            state, reason = "void", fault
        if read_all and (fault := folder.check(mark)):
            state, reason = "damaged", fault
        yield CheckpointRow(world, mark, manifest.world, folder.size(mark), folder.saved_at(mark), state, reason)


def _folders(path: Path, depth: int) -> Iterator[Path]:
    """Yield a folder and those below it, without the checkpoints' own; an unreadable folder has none."""
    yield path
    try:
        with os.scandir(path) as entries:
            below = sorted(
                e.name for e in entries if e.is_dir(follow_symlinks=False) and not e.name.startswith("step-")
            )
    except OSError:
        return
    for name in below if depth else ():
        yield from _folders(path / name, depth - 1)
