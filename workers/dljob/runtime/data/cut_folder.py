"""The folder of a job's cuts: one folder each, with the files of the queues and a sealed manifest, for later attempts.

    <checkpoints of the job>/cuts/cut-12/4f0c....queue
                                         manifest.json

The journal commits a cut; the manifest repeats it. An attempt whose head is gone has no journal, and reads these.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dljob.master.start import shards
from dljob.master.state.checkpoint_ids import CheckpointId
from dljob.master.state.cuts import MAX_KEPT_CUTS, Cut, CutQueue
from dljob.master.state.shard_table import ShardTable
from dljob.runtime.checkpoint import disk
from dljob.runtime.checkpoint.sealed import DamagedError, NewerFormatError, seal, unseal
from dljob.runtime.queues.cut_file import check

MANIFEST = "manifest.json"
VERSION = 1
"""Version of the manifests. A cut of a later one is neither restored nor deleted."""


class FoundCuts(NamedTuple):
    """What an earlier attempt has left of its cuts."""

    readable: tuple[Cut, ...] = ()
    damaged: tuple[tuple[int, str], ...] = ()
    """(number, why)."""
    worlds: tuple[str, ...] = ()
    """Where no cut is whole: the worlds whose checkpoints do not fit empty queues."""
    feeds: tuple[tuple[str, ShardTable], ...] = ()
    """The positions in the data, as of the newest of them or later, each marked with the checkpoint it belongs to."""


def damage_of(cut: Cut) -> str:
    """Return which queue file of a cut cannot be restored, and why; empty: all of them can."""
    return next(
        (f"queue {queue.name}: {damage}" for queue in cut.queues if (damage := check(Path(queue.path), queue.crc))), ""
    )


class CutFolder:
    """The cuts of one job on its checkpoint volume, or in its own folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def queue(self, number: int, name: str) -> Path:
        """Return the path of a queue's file; a hash, since the user's name may not be a file name."""
        return self.path / f"cut-{number}" / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.queue"

    def sync(self, number: int) -> None:
        """Put the names of a cut's files on the disk, where their bytes are; and those of the folders on the way."""
        root = self.path.parent
        for folder in (self.path / f"cut-{number}", self.path, root, root.parent):
            disk.sync_folder(folder)

    def keep(self, cuts: Iterable[Cut], data: Mapping[str, Any] | None = None) -> None:
        """Write the manifests of these cuts that have none, and delete all other cuts.

        `data`: the positions in the data (`shards.carry_positions`), of now.

        Raises:
            OSError: The disk refused.
        """
        cut_by_name = {f"cut-{cut.number}": cut for cut in cuts}
        for name, cut in cut_by_name.items():
            path = self.path / name / MANIFEST
            if not path.exists():
                disk.make_folder(path.parent)
                with disk.replacing(path) as file:
                    disk.write_all(file, seal({**_body(cut), "data": data or {}}))
        for path in self.path.glob("cut-*"):
            if path.name not in cut_by_name and not _is_newer(path / MANIFEST):
                shutil.rmtree(path, ignore_errors=True)

    def find(self) -> FoundCuts:
        """Return the last cuts whose manifests can be read, the newest last, and those whose manifests cannot."""
        cuts, damaged = list[Cut](), list[tuple[int, str]]()
        feeds = dict[int, tuple[tuple[str, ShardTable], ...]]()
        for path in self.path.glob(f"cut-*/{MANIFEST}"):
            if not (number := path.parent.name.removeprefix("cut-")).isdecimal():
                continue
            try:
                body = _read(path)
                marks = tuple((str(world), CheckpointId.of(mark)) for world, mark in body["marks"])
                queues = tuple(CutQueue(*row) for row in body["queues"])
                feeds[int(number)] = shards.read_carried_positions(body.get("data", {}))
                cuts.append(Cut(int(body["number"]), float(body["at"]), marks, queues))
            except FileNotFoundError:  # just deleted
                continue
            except (OSError, DamagedError, ValueError, TypeError, KeyError) as error:
                damaged.append((int(number), f"{path} cannot be read: {error}"))
        readable = tuple(sorted(cuts, key=lambda row: row.number)[-MAX_KEPT_CUTS:])
        worlds = () if readable or not damaged else self._worlds()
        return FoundCuts(readable, tuple(sorted(damaged)), worlds, feeds[readable[-1].number] if readable else ())

    def _worlds(self) -> tuple[str, ...]:
        """Return the worlds with checkpoints beside the cuts, unless one of them is all that the cuts consisted of."""
        root = self.path.parent
        steps = (*root.glob("*/step-*"), *root.glob("*/*/step-*"))
        worlds = tuple(sorted({path.parent.relative_to(root).as_posix() for path in steps}))
        return worlds if len(worlds) > 1 or any(self.path.glob("cut-*/*.queue")) else ()


def _read(manifest: Path) -> Mapping[str, Any]:
    return unseal(manifest.read_bytes(), version=VERSION)


def _is_newer(manifest: Path) -> bool:
    """Return whether a later dljob wrote a cut's manifest, or the disk refuses it: it may be needed."""
    try:
        _read(manifest)
    except NewerFormatError:
        return True
    except FileNotFoundError:
        return False
    except OSError:
        return True
    except DamagedError:
        return False
    return False


def _body(cut: Cut) -> dict[str, object]:
    queues = [[queue.name, queue.path, queue.items, queue.bytes, queue.crc] for queue in cut.queues]
    marks = [[world, mark.json()] for world, mark in cut.checkpoints]
    return {"version": VERSION, "number": cut.number, "at": cut.at, "marks": marks, "queues": queues}
