"""Checkpoints on disk: parts, one per rank; a manifest, written last; and what each life decided to restore.

    <folder>/step-000000000040.1-3/rank-00000.part     the copy's bytes, then a trailer with their CRC-32
                                   manifest.json       names the world and every part: now it counts
    <folder>/restore-1-4.json                          what life 1.4 went on from: a fence, made once

Every file comes under another name, is synced, and is then renamed. Whoever sees that all parts of a life are there
writes the manifest; two who do so write the same.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import shutil
import struct
import threading
import zlib
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from dljob.master.marks import Decision, Life, Mark, fence
from dljob.runtime.checkpoint.choice import Found, expired
from dljob.runtime.checkpoint.model import Place
from dljob.runtime.checkpoint.slot import PAGE, WHOLE, Head, read_head

CHUNK = 8 << 20
MANIFEST = "manifest.json"
DECISIONS = 4096
"""So many decisions are remembered as they were read, of all worlds that save on a node."""
_TRAILER = struct.Struct("<8sII")
_END = b"DLJCRC32"
_STEP = re.compile(r"step-(\d+)\.(\d+)-(\d+)")
_PART = re.compile(r"rank-\d+\.part")
_RESTORE = re.compile(r"restore-(\d+)-(\d+)\.json")


class TornError(Exception):
    """The copy changed while it was being written: it is no longer what was to be saved."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy in memory, header and all; `still()` says whether it is what it was."""

    data: mmap.mmap
    total: int
    still: Callable[[], bool]


class Folder:
    """The checkpoints of one world."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, place: Place) -> Folder:
        """Where a rank's world saves."""
        return cls(Path(place.folder))

    def at(self, mark: Mark) -> Path:
        """The folder of one checkpoint."""
        return self.path / f"step-{mark.step:012d}.{mark.life.attempt}-{mark.life.number}"

    def part(self, mark: Mark, rank: int) -> Path:
        """One rank's part."""
        return self.at(mark) / f"rank-{rank:05d}.part"

    def marks(self) -> list[Mark]:
        """All checkpoints there, whole or not, oldest first."""
        found = (_STEP.fullmatch(name) for name in _names(self.path))
        return sorted(Mark(Life(int(m[2]), int(m[3])), int(m[1])) for m in found if m)

    # -- writing

    def has_part(self, mark: Mark, rank: int) -> bool:
        """Whether that part is there, finished."""
        return _head_of(self.part(mark, rank)) is not None

    def write_part(self, mark: Mark, rank: int, head: bytes, copy: Copy, own: str = "") -> int:
        """Write one part; its CRC-32. `own` tells writers on several nodes apart, who write the same.

        Raises:
            TornError: when the copy is no longer what it was; nothing is left of the part.
            OSError: when the disk says no.
        """
        path = self.part(mark, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        crc = 0
        with _arriving(path, own) as file:
            with memoryview(copy.data) as view:
                for piece in (
                    memoryview(head),
                    *(view[n : min(n + CHUNK, copy.total)] for n in range(PAGE, copy.total, CHUNK)),
                ):
                    crc = zlib.crc32(piece, crc)
                    _write(file, piece)
                    piece.release()
            _write(file, _TRAILER.pack(_END, crc, copy.total & 0xFFFFFFFF))
            if not copy.still():
                raise TornError
        return crc

    def commit(self, mark: Mark, world: int, ask: Callable[[], str | None] = lambda: "") -> str:
        """Write the manifest when all parts of the world are there, and nobody who is asked then refuses it.

        `ask` says why it does not count, else ""; None: nobody can say now.

        Returns "committed", "waiting" for parts of others or for an answer, or "fenced: ..." with the reason.
        """
        if why := fence(mark, self.decisions()):
            return f"fenced: {why}"
        heads = [_head_of(self.part(mark, rank)) for rank in range(world)]
        if any(head is None for head in heads) or (why := ask()) is None:
            return "waiting"
        if why:
            return f"fenced: {why}"
        parts = [
            {"rank": n, "file": self.part(mark, n).name, "bytes": found[0].total, "crc32": found[1]}
            | {"incarnation": found[0].incarnation}
            for n, found in enumerate(heads)
            if found is not None
        ]
        life = {"attempt": mark.life.attempt, "number": mark.life.number}
        text = json.dumps({"version": 1, "step": mark.step, "life": life, "world": world, "parts": parts}, indent=1)
        with _arriving(self.at(mark) / MANIFEST, f".{threading.get_native_id()}") as file:  # two may write the same
            _write(file, text.encode())
        return "committed"

    def decide(self, decision: Decision) -> Decision:
        """Record what a life restores; what was recorded first counts, and is returned."""
        path = self.path / f"restore-{decision.life.attempt}-{decision.life.number}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        chosen = decision.chosen
        said = chosen and {"attempt": chosen.life.attempt, "number": chosen.life.number, "step": chosen.step}
        temp = path.with_name(f".{path.name}.{os.getpid()}.{id(decision)}")
        with temp.open("wb", buffering=0) as file:
            _write(file, json.dumps({"restored": said}).encode())
            os.fsync(file.fileno())
        try:
            os.link(temp, path)  # unlike a rename it fails when the other was first
            _sync_folder(path.parent)
        except FileExistsError:
            return _decided(path, decision.life)
        finally:
            temp.unlink()
        return decision

    def retain(self, keep: int) -> list[Mark]:
        """Delete what is expired; what was deleted."""
        there = self.marks()
        gone = expired(there, [m for m in there if self.manifest(m)], self.decisions(), keep)
        for mark in gone:
            with suppress(OSError):
                (self.at(mark) / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(self.at(mark), ignore_errors=True)
        return gone

    # -- reading

    def manifest(self, mark: Mark) -> dict[str, Any] | None:
        """What the manifest says; None without a readable one."""
        try:
            return json.loads((self.at(mark) / MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def decisions(self) -> list[Decision]:
        """All decisions of lives."""
        found = [(name, m) for name in _names(self.path) if (m := _RESTORE.fullmatch(name))]
        return [_decided(self.path / name, Life(int(m[1]), int(m[2]))) for name, m in found]

    def found(self) -> list[Found]:
        """What is there, newest first; of those with a manifest no byte has been checked yet."""
        told = [(mark, self.manifest(mark)) for mark in reversed(self.marks())]
        return [Found(m, int(said["world"])) if said else Found(m, 0, bad=self._unwhole(m)) for m, said in told]

    def unsaid(self) -> list[tuple[Mark, int]]:
        """(mark, world) of those of which a part is there and no manifest: who wrote the last part said nothing."""
        found = [mark for mark in self.marks() if MANIFEST not in _names(self.at(mark))]
        names = [(mark, name) for mark in found for name in _names(self.at(mark)) if _PART.fullmatch(name)]
        heads = {mark: head for mark, name in names if (head := _head_of(self.at(mark) / name))}
        return [(mark, head[0].world) for mark, head in heads.items()]

    def _unwhole(self, mark: Mark) -> str:
        names = _names(self.at(mark))
        if MANIFEST in names:
            return "its manifest cannot be read"
        parts = sum(_PART.fullmatch(name) is not None for name in names)
        return f"it is not whole: {parts} part{'s' * (parts != 1)} and no manifest"

    def check(self, mark: Mark) -> str:
        """Why a checkpoint cannot be used: a part that is not there, torn or corrupt. Reads every byte of it."""
        said = self.manifest(mark)
        if said is None:
            return "its manifest is gone"
        with ThreadPoolExecutor(4) as pool:
            whys = pool.map(lambda part: check_part(self.at(mark) / part["file"], part), said["parts"])
            return next((why for why in whys if why), "")


@lru_cache(DECISIONS)
def _decided(path: Path, life: Life) -> Decision:
    """A decision's file, read once: it is made once, and each save wants all of them."""
    said = json.loads(path.read_text(encoding="utf-8"))["restored"]
    return Decision(life, said and Mark(Life(said["attempt"], said["number"]), said["step"]))


def check_part(path: Path, said: dict[str, Any]) -> str:
    """Why a part is not what its manifest says; empty when it is."""
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size != said["bytes"] + _TRAILER.size:
                return f"{path.name} is torn: {size} bytes, {said['bytes'] + _TRAILER.size} were written"
            crc, left = 0, int(said["bytes"])
            while left:
                piece = file.read(min(CHUNK, left))
                if not piece:
                    return f"{path.name} is torn: {left} bytes are missing"
                crc, left = zlib.crc32(piece, crc), left - len(piece)
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"
    return "" if crc == said["crc32"] else f"{path.name} is corrupt: CRC-32 {crc:08x}, {said['crc32']:08x} was written"


def _head_of(path: Path) -> tuple[Head, int] | None:
    """A finished part's head and CRC; None when it is not there or not finished."""
    try:
        with path.open("rb") as file:
            head = read_head(file.read(PAGE))
            if head is None or head.state != WHOLE:
                return None
            file.seek(head.total)
            end, crc, _ = _TRAILER.unpack(file.read(_TRAILER.size))
    except (OSError, struct.error):
        return None
    return (head, crc) if end == _END else None


@contextmanager
def _arriving(path: Path, own: str = "") -> Generator[Any]:
    """A file that is there under its name only when it is whole and on the disk; nothing of it after an error."""
    temp = path.with_name(f".{path.name}.{os.getpid()}{own}")
    try:
        with temp.open("wb", buffering=0) as file:
            yield file
            os.fsync(file.fileno())
        temp.replace(path)
    except BaseException:
        with suppress(OSError):
            temp.unlink()
        raise
    _sync_folder(path.parent)


def _write(file: Any, piece: memoryview | bytes) -> None:
    """All of it: an unbuffered write may take less."""
    done, view = 0, memoryview(piece)
    while done < len(view):
        done += file.write(view[done:])
    view.release()


def _sync_folder(path: Path) -> None:
    with suppress(OSError):  # some network file systems refuse it; the rename is all they give
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _names(path: Path) -> list[str]:
    try:
        return os.listdir(path)  # noqa: PTH208 - names are all that is needed
    except OSError:
        return []
