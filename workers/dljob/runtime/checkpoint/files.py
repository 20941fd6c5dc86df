"""Checkpoints on disk: a part per rank, a manifest that is written last, and the decision of each run to restore one.

    <folder>/step-000000000040.1-3/rank-00000.part     the copy's bytes, then a trailer with their CRC-32
                                   manifest.json       names the world and every part: now it counts; sealed
    <folder>/step-000000000040.1-3.r7/...              the same step, saved once more by the same run
    <folder>/restore-1-4.json                          the checkpoint that run 1.4 restored: a fence, made once; sealed

Every file is written under a temporary name, synced, and renamed. Whoever finds all parts of a run writes the
manifest; two writers write the same bytes. Every read is verified: metadata whose checksum fails is skipped, with the
reason. What a later version wrote is neither read, nor changed, nor deleted.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from dljob.errors import CheckpointError
from dljob.master.state.checkpoint_ids import CheckpointId, RestoreDecision, RunId, fence
from dljob.runtime.checkpoint import disk
from dljob.runtime.checkpoint.choice import Candidate, expired_checkpoints, unneeded_decisions, void_checkpoints
from dljob.runtime.checkpoint.model import KEEP, CheckpointLocation
from dljob.runtime.checkpoint.sealed import DamagedError, NewerFormatError, newer_format, seal, unseal
from dljob.runtime.checkpoint.slot import FORMAT, PAGE, WHOLE, CopyHeader, later_format, read_head
from dljob.telemetry.wording import counted

CHUNK = 8 << 20
"""Bytes that are read or written at once, so that no copy of a whole part is made in Python."""
MANIFEST = "manifest.json"
VERSION = 2
"""Version of manifests and decisions."""
DECISIONS = 4096
"""Number of parsed decisions in the cache, for all worlds that save on this node."""
RUNS = 64
"""Number of decisions that a world keeps in its folder.

Checkpoints of runs before these are older than any restored one.
"""
MAY_PASS = (errno.EIO, errno.EACCES, errno.EPERM, errno.ESTALE, errno.ETIMEDOUT)
"""Errors of a read that say nothing about the file: it may be read again once the disk is mended."""
_TRAILER = struct.Struct("<8sII")
_END = b"DLJCRC32"
_STEP = re.compile(r"step-([0-9]{12,19})\.([0-9]{1,10})-([0-9]{1,10})(?:\.r([0-9]{1,19}))?")
_PART = re.compile(r"rank-[0-9]{5,10}\.part")
_RESTORE = re.compile(r"restore-([0-9]{1,10})-([0-9]{1,10})\.json")
NEWER_HINT = "run the job with the dljob that wrote it, or move it out of that folder to go on without it"


class TornError(Exception):
    """The copy changed while it was written to disk: the rank has started a newer save in the same memory."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy in memory, header included; `still()` tells whether it is unchanged."""

    data: mmap.mmap
    total: int
    still: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class PartRecord:
    """A manifest's entry for one part: its bytes without the trailer, and their CRC-32."""

    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The file that makes a checkpoint count; it names one part per rank."""

    mark: CheckpointId
    parts: tuple[PartRecord, ...]

    @property
    def world(self) -> int:
        """Number of ranks that saved it."""
        return len(self.parts)


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decisions in a folder.

    `damaged` has the reasons for skipping others; `newer` those of a later format, which may fence any checkpoint.
    """

    decisions: tuple[RestoreDecision, ...] = ()
    damaged: tuple[str, ...] = ()
    newer: tuple[str, ...] = ()


class Folder:
    """The checkpoints of one world."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, place: CheckpointLocation) -> Folder:
        """Return the folder of a rank's world."""
        return cls(Path(place.folder))

    def at(self, mark: CheckpointId) -> Path:
        """Return the path of one checkpoint."""
        return self.path / _name(mark)

    def part(self, mark: CheckpointId, rank: int) -> Path:
        """Return the path of one rank's part."""
        return self.at(mark) / f"rank-{rank:05d}.part"

    def marks(self) -> list[CheckpointId]:
        """List all checkpoints in the folder, whole or not, oldest first; foreign names are ignored."""
        matches = ((name, m) for name in disk.names_in(self.path) if (m := _STEP.fullmatch(name)))
        marks = ((name, CheckpointId(RunId(int(m[2]), int(m[3])), int(m[1]), int(m[4] or 0))) for name, m in matches)
        # Only the one spelling that we write: `step-0000...` with other leading zeros would be a second folder for the
        # same mark.
        return sorted(mark for name, mark in marks if _name(mark) == name)

    # -- writing

    def has_part(self, mark: CheckpointId, rank: int) -> bool:
        """Return whether a rank's part is there and finished."""
        return head_of(self.part(mark, rank)) is not None

    def write_part(self, mark: CheckpointId, rank: int, head: bytes, copy: Copy) -> int:
        """Write a rank's part of a checkpoint to its file, and return the CRC-32 of head and copy.

        Raises:
            TornError: The rank overwrote the copy meanwhile. The new file is dropped; an older part stays.
            OSError: The disk refused, with the same effect.
        """
        path = self.part(mark, rank)
        disk.make_folder(path.parent)
        crc = 0
        with disk.replacing(path) as file:
            with memoryview(copy.data) as view:
                for piece in (
                    memoryview(head),
                    *(view[n : min(n + CHUNK, copy.total)] for n in range(PAGE, copy.total, CHUNK)),
                ):
                    crc = zlib.crc32(piece, crc)
                    disk.write_all(file, piece)
                    # The memory cannot be unmapped while a view of it is left.
                    piece.release()
            disk.write_all(file, _TRAILER.pack(_END, crc, copy.total & 0xFFFFFFFF))
            # Last of all: the rank may have begun to overwrite the copy at any moment before. What was read then is a
            # mixture, though its CRC-32 is right. Inside the `with`, so that the temporary file never gets the part's
            # name.
            if not copy.still():
                raise TornError
        return crc

    def commit(
        self,
        mark: CheckpointId,
        world: int,
        ask: Callable[[], str | None] = lambda: "",
        needed: Callable[[], Sequence[CheckpointId]] = tuple,
    ) -> str:
        """Write the manifest once all parts of the world are there, unless the journal refuses the checkpoint.

        Args:
            mark: The checkpoint.
            world: Number of ranks whose parts make it whole.
            ask: Returns why the checkpoint does not count, "" if it counts, None if nobody can answer now.
            needed: Returns the checkpoints that may not be deleted to make room, once `ask` has returned.

        Returns:
            "committed"; "waiting" for parts of other ranks or for an answer; "fenced: ..." with the reason.

        Raises:
            OSError: The disk refused the manifest.
        """
        # The files first: they are cheaper to ask than PrimeMaster.
        decisions = self.decisions()
        if reason := fence(mark, decisions) or _forgotten(mark, decisions):
            return f"fenced: {reason}"
        part_heads = [head_of(self.part(mark, rank)) for rank in range(world)]
        # Headers alone: a part gets its name only when it is complete, and `load` checks every byte.
        is_complete = all(
            part is not None and _fits(part[0], mark, rank, world) for rank, part in enumerate(part_heads)
        )
        # The journal first, and only once all parts are there: a frozen process of an earlier run may wake up between
        # the check of the files above and the manifest below, and only PrimeMaster orders it against the newer decision
        # (ADR 28).
        if not is_complete or (reason := ask()) is None:
            return "waiting"
        if reason:
            return f"fenced: {reason}"
        parts = [
            {"rank": n, "file": self.part(mark, n).name, "bytes": part_head[0].total, "crc32": part_head[1]}
            | {"incarnation": part_head[0].incarnation}
            for n, part_head in enumerate(part_heads)
            if part_head is not None
        ]
        run = {"attempt": mark.run_id.attempt, "number": mark.run_id.number}
        body = {"version": VERSION, "step": mark.step, "revision": mark.revision, "life": run, "world": world}
        text = seal({**body, "parts": parts})
        try:
            self._write_manifest(mark, text)
        except OSError:  # the volume may be full of what no run will restore
            self.retain(KEEP, needed())
            self._write_manifest(mark, text)
        return "committed"

    def _write_manifest(self, mark: CheckpointId, text: bytes) -> None:
        with disk.replacing(self.at(mark) / MANIFEST) as file:
            disk.write_all(file, text)

    def decide(self, decision: RestoreDecision) -> RestoreDecision:
        """Record the checkpoint that a run restores. The first record counts and is returned.

        A damaged one is replaced.

        Raises:
            CheckpointError: A later dljob has recorded it, in a format that this one cannot read.
            OSError: The disk refused.
        """
        run_id, chosen = decision.run_id, decision.chosen
        path = self.path / _decision_name(run_id)
        disk.make_folder(path.parent)
        run = {"attempt": run_id.attempt, "number": run_id.number}
        text = seal({"version": VERSION, "life": run, "restored": chosen and chosen.json()})
        try:
            created = disk.create(path, text)
        except OSError:  # the volume may be full of what this very decision voids
            self._remove(self._torn(void_checkpoints(self.marks(), [decision])))
            created = disk.create(path, text)
        if not created:
            try:
                # Another saver of the same run came first: its word holds for both, else ranks would restore different
                # steps.
                return _read_decision(path, run_id)
            except NewerFormatError as error:
                raise CheckpointError(f"{path.name}: {error} ({path.parent})", hint=NEWER_HINT) from error
            except (OSError, DamagedError):
                with disk.replacing(path) as file:
                    disk.write_all(file, text)
        return decision

    def retain(self, keep: int, needed: Sequence[CheckpointId] = ()) -> list[CheckpointId]:
        """Delete checkpoints that no run will restore.

        These are the ones older than the newest `keep` that are not `needed`, and torn ones that a later run voided.
        """
        marks, decisions = self.marks(), self.decisions()
        whole_marks = self._newest_whole(marks, decisions, keep)
        old = [mark for mark in expired_checkpoints(marks, whole_marks, decisions, keep) if mark not in needed]
        return self._remove([*old, *self._torn(void_checkpoints(marks, decisions))])

    def collect(self) -> list[CheckpointId]:
        """Delete torn checkpoints that a later run has voided; runs that crash would fill the volume with them."""
        return self._remove(self._torn(void_checkpoints(self.marks(), self.decisions())))

    def forget(self) -> list[RestoreDecision]:
        """Delete unneeded decisions: each crash of a restart loop leaves one, and every save reads all of them."""
        unneeded = unneeded_decisions(self.decisions(), RUNS)
        for decision in unneeded:
            with suppress(OSError):  # it is read as ever, and the next decision tries again
                (self.path / _decision_name(decision.run_id)).unlink()
        return unneeded

    def _torn(self, marks: Iterable[CheckpointId]) -> list[CheckpointId]:
        """Keep only the marks without a manifest.

        A checkpoint that once counted may be unreadable just now, so newer ones replace it first.
        """
        return [mark for mark in marks if self.torn(mark)]

    def _remove(self, marks: Iterable[CheckpointId]) -> list[CheckpointId]:
        # What this version cannot read may be all that a later one has, and whether it is needed cannot be known here.
        deletable = sorted(mark for mark in set(marks) if self._deletable(mark))
        for mark in deletable:
            disk.remove_folder(self.at(mark), MANIFEST)
        return deletable

    # -- reading

    def manifest(self, mark: CheckpointId) -> Manifest | None:
        """Return a checkpoint's manifest; None when there is none.

        Raises:
            NewerFormatError: A later dljob wrote it.
            DamagedError: It cannot be read or trusted.
        """
        try:
            data = disk.read_file(self.at(mark) / MANIFEST)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DamagedError(f"its manifest cannot be read: {error.strerror}") from error
        try:
            return Manifest(mark, tuple(_records(unseal(data, version=VERSION), mark)))
        except NewerFormatError:
            raise
        except DamagedError as error:
            raise DamagedError(f"its manifest is damaged: {error}") from error

    def newer(self, mark: CheckpointId) -> str:
        """Return that a later dljob wrote a checkpoint, which may be whole; empty for any other."""
        try:
            return "" if self.manifest(mark) else self._newer_part(mark)
        except NewerFormatError as error:
            return str(error)
        except DamagedError:
            return ""

    def _deletable(self, mark: CheckpointId) -> bool:
        """Return whether this version knows what a checkpoint is: only then can it be said that nobody needs it."""
        try:
            self.manifest(mark)
        except NewerFormatError:
            return False
        except DamagedError as error:
            # A file that the disk refuses to read now may be readable tomorrow; a failed checksum stays.
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in MAY_PASS:
                return False
        return not self._newer_part(mark)

    def _newer_part(self, mark: CheckpointId) -> str:
        """Return that the parts are of a later format; the first of them tells, since one version wrote them all."""
        name = next((name for name in disk.names_in(self.at(mark)) if _PART.fullmatch(name)), None)
        if name is None:
            return ""
        try:
            with os.fdopen(disk.open_file(self.at(mark) / name), "rb") as file:
                version = later_format(file.read(PAGE))
        except OSError:
            return ""
        return newer_format(version, FORMAT) if version else ""

    def torn(self, mark: CheckpointId) -> bool:
        """Return whether a checkpoint has no manifest, not even a damaged one: it has never counted."""
        return not os.path.lexists(self.at(mark) / MANIFEST)

    def oldest(self) -> CheckpointId | None:
        """Return the oldest of the checkpoints that stay on disk; None without one."""
        whole_marks = self._newest_whole(self.marks(), self.decisions(), KEEP)
        return whole_marks[-1] if whole_marks else None

    def _newest_whole(
        self, marks: Sequence[CheckpointId], decisions: Sequence[RestoreDecision], most: int
    ) -> list[CheckpointId]:
        """List the newest `most` checkpoints that count, the newest first."""
        whole_marks = list[CheckpointId]()
        for mark in reversed(marks):
            if not fence(mark, decisions) and self._counts(mark):
                whole_marks.append(mark)
            # Stop at the newest `most`: each further manifest would be a read on a shared volume at every save.
            if len(whole_marks) == most:
                break
        return whole_marks

    def _counts(self, mark: CheckpointId) -> bool:
        try:
            return self.manifest(mark) is not None
        except DamagedError:
            return False

    def decisions(self) -> list[RestoreDecision]:
        """List the decisions that can be trusted."""
        return list(self.records().decisions)

    def records(self) -> Decisions:
        """Read all decisions in the folder, and the reasons for skipping damaged ones."""
        decisions, damaged, newer = list[RestoreDecision](), list[str](), list[str]()
        named = ((name, m) for name in disk.names_in(self.path) if (m := _RESTORE.fullmatch(name)))
        for name, m in named:
            try:
                decisions.append(_read_decision(self.path / name, RunId(int(m[1]), int(m[2]))))
            # `forget` of another saver may delete a file between the listing and the read.
            except FileNotFoundError:
                continue
            except OSError as error:
                damaged.append(f"{name} is passed over: {error.strerror}")
            except NewerFormatError as error:
                newer.append(f"{name}: {error}")
            except DamagedError as error:
                damaged.append(f"{name} is passed over, it is damaged: {error}")
        return Decisions(tuple(decisions), tuple(damaged), tuple(newer))

    def candidates(self) -> Iterator[Candidate]:
        """Yield the checkpoints, newest first. Of those with a manifest, no byte of a part has been checked yet."""
        for mark in reversed(self.marks()):
            try:
                manifest = self.manifest(mark)
                world, fault = (manifest.world, "") if manifest else (0, self._describe_incomplete(mark))
                yield Candidate(mark, world, bad=fault)
            except DamagedError as error:
                yield Candidate(mark, 0, bad=str(error))

    def uncommitted(self, enough: int = KEEP) -> list[tuple[CheckpointId, int]]:
        """List (mark, world) of checkpoints that have a part but no valid manifest, oldest first.

        The writer of the last part died before the manifest, or the manifest is damaged. Checkpoints older than the
        newest `enough` that count are left out: nobody would restore them.
        """
        uncommitted = list[tuple[CheckpointId, int]]()
        for mark in reversed(self.marks()):
            if self._counts(mark):
                enough -= 1
                if not enough:
                    break
                continue
            if self.newer(mark):
                continue
            names = (name for name in disk.names_in(self.at(mark)) if _PART.fullmatch(name))
            if head := next((head for name in names if (head := head_of(self.at(mark) / name))), None):
                uncommitted.append((mark, head[0].world))
        return uncommitted[::-1]

    def used(self) -> bool:
        """Return whether a world has saved or loaded here."""
        return any(_STEP.fullmatch(name) or _RESTORE.fullmatch(name) for name in disk.names_in(self.path))

    def size(self, mark: CheckpointId) -> int:
        """Return the bytes of the parts that are there."""
        parts = [self.at(mark) / name for name in disk.names_in(self.at(mark)) if _PART.fullmatch(name)]
        return sum(disk.size_of(path) for path in parts)

    def saved_at(self, mark: CheckpointId) -> float | None:
        """Return when the manifest was written, in unix seconds; None if it was deleted."""
        try:
            return (self.at(mark) / MANIFEST).stat().st_mtime
        except OSError:  # it was deleted meanwhile
            return None

    def _describe_incomplete(self, mark: CheckpointId) -> str:
        if newer_part := self._newer_part(mark):
            return newer_part
        parts = sum(_PART.fullmatch(name) is not None for name in disk.names_in(self.at(mark)))
        return f"it is not whole: {counted(parts, 'part')} and no manifest"

    def check(self, mark: CheckpointId) -> str:
        """Return why a checkpoint cannot be used: a part is missing, torn or corrupt; empty if it can.

        Reads every byte of it.
        """
        try:
            manifest = self.manifest(mark)
        except DamagedError as error:
            return str(error)
        if manifest is None:
            return self._describe_incomplete(mark)
        if manifest.world == 1:
            return self.check_part(mark, 0, 1, manifest.parts[0])
        # zlib.crc32 and reads release the GIL, so four threads check parts at the speed of the volume.
        with ThreadPoolExecutor(4) as pool:
            faults = pool.map(
                lambda n: self.check_part(mark, n, manifest.world, manifest.parts[n]), range(manifest.world)
            )
            return next((fault for fault in faults if fault), "")

    def has_whole_parts(self, mark: CheckpointId) -> bool:
        """Return whether each rank's part is whole, without a manifest's word; reads every byte."""
        names = (name for name in disk.names_in(self.at(mark)) if _PART.fullmatch(name))
        head = next((head for name in names if (head := head_of(self.at(mark) / name))), None)
        return head is not None and not any(self.check_part(mark, n, head[0].world) for n in range(head[0].world))

    def check_part(self, mark: CheckpointId, rank: int, world: int, record: PartRecord | None = None) -> str:
        """Return why a part differs from what was written, or from its manifest's record; empty when it does not."""
        path = self.part(mark, rank)
        try:
            with os.fdopen(disk.open_file(path), "rb", buffering=0) as file:
                return f"{path.name} {fault}" if (fault := _find_fault(file, (mark, rank, world), record)) else ""
        except OSError as error:
            return f"{path.name} cannot be read: {error.strerror}"


def _name(mark: CheckpointId) -> str:
    again = f".r{mark.revision}" if mark.revision else ""
    return f"step-{mark.step:012d}.{mark.run_id.attempt}-{mark.run_id.number}{again}"


def _decision_name(run_id: RunId) -> str:
    return f"restore-{run_id.attempt}-{run_id.number}.json"


def _forgotten(mark: CheckpointId, decisions: Sequence[RestoreDecision]) -> str:
    """Return why a checkpoint older than all kept decisions does not count; empty: it may count."""
    oldest = min((decision.run_id for decision in decisions), default=mark.run_id)
    # `forget` has deleted the decision that fenced this run, so the mark would look unfenced.
    forgotten = len(decisions) >= RUNS and mark.run_id < oldest
    return f"run {mark.run_id} is longer ago than the last {RUNS} that saved" if forgotten else ""


def _records(body: Mapping[str, Any], mark: CheckpointId) -> Iterator[PartRecord]:
    """Yield the parts that a manifest names.

    Raises:
        DamagedError: It belongs to another checkpoint, or its members are not those of a manifest.
    """
    try:
        manifest_mark = CheckpointId(RunId(**body["life"]), body["step"], body.get("revision", 0))
        # A manifest that was copied to another folder would vouch for parts that it never saw.
        if manifest_mark != mark:
            raise DamagedError(f"it belongs to {manifest_mark}")
        if body["world"] < 1 or len(body["parts"]) != body["world"]:
            raise DamagedError(f"{counted(len(body['parts']), 'part')} for {counted(body['world'], 'rank')}")
        for n, part in enumerate(body["parts"]):
            if (part["rank"], part["file"]) != (n, f"rank-{n:05d}.part"):
                raise DamagedError(f"part {n} is {part['file']} of rank {part['rank']}")
            yield PartRecord(int(part["bytes"]), int(part["crc32"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedError(f"it is no complete manifest: {error!r}") from error


def _read_decision(path: Path, run_id: RunId) -> RestoreDecision:
    """Return a decision. Raises OSError, DamagedError."""
    file_stat = path.stat()
    # A replaced file has another inode, so the cache never returns the damaged one that it replaced.
    return _decision(path, run_id, (file_stat.st_ino, file_stat.st_size, file_stat.st_mtime_ns))


@lru_cache(DECISIONS)
def _decision(path: Path, run_id: RunId, of: tuple[int, int, int]) -> RestoreDecision:
    """Parse a decision's file. Cached: the file is written once, and each save reads all decisions."""
    del of  # the file that was read
    body = unseal(disk.read_file(path), version=VERSION)
    try:
        if RunId(**body["life"]) != run_id:
            raise DamagedError(f"it belongs to run {RunId(**body['life'])}")
        chosen = body["restored"] and CheckpointId.of(body["restored"])
        if chosen is not None and not all(type(n) is int for n in chosen.json().values()):
            raise DamagedError("its checkpoint has no numbers")
        return RestoreDecision(run_id, chosen)
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"it is no complete decision: {error!r}") from error


def _fits(head: CopyHeader, mark: CheckpointId, rank: int, world: int) -> bool:
    return (head.mark, head.rank, head.world) == (mark, rank, world)


def _find_fault(file: Any, expected: tuple[CheckpointId, int, int], record: PartRecord | None) -> str:
    """Return what is wrong with a part; empty if nothing is. `of` is the (mark, rank, world) that it must belong to."""
    size = os.fstat(file.fileno()).st_size
    if record is not None and size != record.size + _TRAILER.size:
        return f"is torn: {size} bytes, {record.size + _TRAILER.size} were written"
    crc, bytes_left, head, version = 0, size - _TRAILER.size, None, None
    while bytes_left > 0:
        piece = file.read(min(CHUNK, bytes_left))
        if not piece:
            return f"is torn: {bytes_left} bytes are missing"
        if bytes_left == size - _TRAILER.size:
            head, version = read_head(piece), later_format(piece)
        crc, bytes_left = zlib.crc32(piece, crc), bytes_left - len(piece)
    tail = file.read(_TRAILER.size)
    # A flipped bit in the magic number is no later format.
    if version is not None and record is not None and record.crc == crc:
        return f"is of a later dljob: {newer_format(version, FORMAT)}"
    if head is None or len(tail) != _TRAILER.size:
        return f"is torn: {size} bytes"
    end, tail_crc, low = _TRAILER.unpack(tail)
    if record is not None and record.crc != crc:
        return f"is corrupt: CRC-32 {crc:08x}, {record.crc:08x} was written"
    if (end, tail_crc, low) != (_END, crc, (size - _TRAILER.size) & 0xFFFFFFFF) or head.total != size - _TRAILER.size:
        return f"is corrupt: CRC-32 {crc:08x}, its trailer says {tail_crc:08x}"
    # A file under another part's name has a right CRC-32: only its header tells that it was moved or copied.
    return "" if head.state == WHOLE and _fits(head, *expected) else "is another rank's or another checkpoint's"


def head_of(path: Path) -> tuple[CopyHeader, int] | None:
    """Return a finished part's header and CRC-32; None when it is missing or not finished."""
    try:
        with os.fdopen(disk.open_file(path), "rb") as file:
            head = read_head(file.read(PAGE))
            if head is None or head.state != WHOLE:
                return None
            file.seek(head.total)
            end, crc, _ = _TRAILER.unpack(file.read(_TRAILER.size))
    except (OSError, struct.error, OverflowError, ValueError):
        return None
    return (head, crc) if end == _END else None
