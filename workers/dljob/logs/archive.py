"""Whole logs of ranks on the volume of the job's checkpoints, where they outlive pods; copied there from time to time.

    <checkpoint path>/<job>-<uid8>/logs/attempt-1/<role>-<rank>.<incarnation>.log
    <checkpoint path>/<job>-<uid8>/calls/attempt-1/<role>-<rank>.<process>.jsonl     traced calls, beside them

A rank writes to a file of its pod, so that a hanging volume stops nobody. A file beside the log records where each
incarnation begins. The node's agent appends the missing part to the volume every half minute, and the preStop command
(`dljob.runtime.leave`) at the pod's end; so this module imports as little as that command.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path

from dljob.logs import cut

CHECKPOINT = "DLJOB_CHECKPOINT"
"""The variable with the mount point of spec.checkpoint; not set on a laptop."""
CUT = f"\n[dljob] {cut.MOST_BYTES >> 20} MiB of a process's log are kept here; the rest was only in its pod\n".encode()
"""The last line of a log on a volume that cannot punch holes, and so keeps only the beginning."""
FREE_SHARE, FREE_BYTES = 20, 10 << 30
"""Free space that a volume must keep, as a share (1/20) or in bytes, whichever is less: checkpoints matter more."""
PIECE = 1 << 20
PARTS = ".parts"
_PART = re.compile(r"(\d{1,18}) (\d{1,18}) (/[^\0]*)")
"""A line of such a file: incarnation, offset of its beginning, and the folder on the volume."""
CALLS, PLACE = "calls", ".place"
"""The folder of traced calls in a job's folder, and the file in it that names the folder on the volume."""
CALLS_BYTES = 50_000_000
"""Most bytes of a job's traced calls, on a volume those of all attempts together."""


def root(path: str, name: str, uid: str) -> Path:
    """Return a job's folder on its checkpoint volume."""
    return Path(path) / f"{name}-{uid[:8]}"


def checkpoints(name: str, uid: str, folder: Path) -> Path:
    """Return where a job's ranks save and its cuts lie: on the volume, else below the job's own folder."""
    volume = os.environ.get(CHECKPOINT)
    return root(volume, name, uid) if volume else folder / "checkpoints"


def begins(log: Path, incarnation: int, size: int, place: Path) -> None:
    """Record that a rank's process begins to write to a log of `size` bytes, which is to be kept at `place`."""
    line = f"{incarnation} {size} {place}\n".encode()
    with suppress(OSError), log.with_suffix(PARTS).open("ab", buffering=0) as parts:
        before = parts.tell()
        if parts.write(line) < len(line):  # a full disk: the next line must not join half of this one
            parts.truncate(before)


def keep_all(home: Path) -> str:
    """Append the logs of all jobs of a pod to their volumes. Returns why not all were kept; empty if they were."""
    problems = [keep(folder) for folder in sorted(home.glob("jobs/*/logs"))]
    return "; ".join(filter(None, problems))


def keep(folder: Path) -> str:
    """Append the logs in a job's folder to the volume. Returns why not all were kept; empty if they were."""
    problems = list[str]()
    with _noted(problems), _folder_lock(folder):
        for parts in sorted(folder.glob(f"*{PARTS}")):
            with _noted(problems):
                _keep_log(parts)
        with _noted(problems):
            _keep_calls(folder.parent / CALLS)
    return f"logs are not kept: {'; '.join(problems)}" if problems else ""


@contextmanager
def _noted(problems: list[str]) -> Generator[None]:
    """Note what an error says, once: one file must not cost the others their place."""
    try:
        yield
    except OSError as error:
        if (words := error.strerror or str(error)) not in problems:
            problems.append(words)


def newest(root: Path, name: str) -> Path | None:
    """Return the kept log of a rank's last process (`<role>-<rank>`); None if there is none."""
    log_by_attempt = {
        (int(path.parent.name.rpartition("-")[2]), int(path.name.split(".")[-2])): path
        for path in root.glob(f"logs/attempt-*/{name}.*.log")
    }
    return log_by_attempt[max(log_by_attempt)] if log_by_attempt else None


@contextmanager
def _folder_lock(folder: Path) -> Generator[None]:
    """Hold a lock of the folder: the node's agent and the preStop command append to the same files."""
    with (folder / ".keeping").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _keep_log(parts: Path) -> None:
    log = parts.with_suffix(".log")
    for place, incarnation, start, end in _ranges(log, parts):
        place.mkdir(parents=True, exist_ok=True)
        _append(log, start, end, place / f"{log.stem}.{incarnation}.log")


def _ranges(log: Path, parts: Path) -> list[tuple[Path, int, int, int]]:
    """Return (kept where, incarnation, start, end) for each incarnation in a log; none once it was removed."""
    # The last line may be torn. What an incarnation without a line has written is kept with the one before.
    lines = parts.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    parts_found = [match.groups() for match in map(_PART.fullmatch, lines) if match]
    try:
        starts = [int(start) for _, start, _ in parts_found] + [log.stat().st_size]
    except FileNotFoundError:
        return []
    return [
        (Path(place), int(incarnation), starts[n], starts[n + 1])
        for n, (incarnation, _, place) in enumerate(parts_found)
    ]


def _append(log: Path, start: int, end: int, target: Path) -> None:
    """Append new bytes to the volume, each at its own offset, so that a cut part is a hole there, too."""
    out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # The size on the volume tells which bytes are there already: no other record could get out of step with it.
        have, most = os.fstat(out).st_size, end - start
        is_whole = most <= cut.MOST_BYTES or cut.can_cut(out)
        if not is_whole:
            most = cut.MOST_BYTES
        if have < most:
            check_room(target, min(most - have, cut.MOST_BYTES))
            with log.open("rb") as source:
                _copy(source.fileno(), out, start, have, most)
        if not is_whole and have <= most:
            os.pwrite(out, CUT, most)
    finally:
        os.close(out)
    if is_whole:
        cut.cut(target, 0)


def _copy(source: int, out: int, start: int, have: int, most: int) -> None:
    """Copy the bytes after `start` of a log, from offset `have` to `most`, without the parts that were cut out."""
    at = have
    while at < most:
        begin, end = cut.next_data(source, start + at, start + most)
        at = begin - start
        piece = os.pread(source, min(PIECE, end - begin), begin)
        if not piece:
            break
        os.pwrite(out, piece, at)
        at += len(piece)


def register_calls(folder: Path, place: Path) -> None:
    """Record that the traced calls in a folder are to be kept at `place`."""
    folder.mkdir(parents=True, exist_ok=True)
    # Replaced as a whole: all processes of a node write it, and its agent may read meanwhile.
    part = folder / f"{PLACE}.{os.getpid()}"
    part.write_text(str(place), encoding="utf-8")
    part.replace(folder / PLACE)


def _keep_calls(folder: Path) -> None:
    with suppress(FileNotFoundError):  # the job's calls are not traced
        place = Path((folder / PLACE).read_text(encoding="utf-8"))
        place.mkdir(parents=True, exist_ok=True)
        for source in sorted(folder.glob("*.jsonl")):
            with suppress(FileNotFoundError):  # to make room
                _follow(source, place / source.name)
        trim(place.parent.glob("*/*.jsonl"), CALLS_BYTES)


def _follow(source: Path, target: Path) -> None:
    """Append the new bytes of a file; one that was thinned since is copied whole."""
    out = os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with source.open("rb") as source_file:
            have, size = os.fstat(out).st_size, os.fstat(source_file.fileno()).st_size
            # Rows have times, so no two ends are the same.
            before = max(0, have - 64)
            if os.pread(out, have - before, before) != os.pread(source_file.fileno(), have - before, before):
                os.ftruncate(out, 0)
                have = 0
            if have < size:
                check_room(target, size - have)
                _copy(source_file.fileno(), out, 0, have, size)
    finally:
        os.close(out)


def trim(files: Iterable[Path], most: int) -> None:
    """Delete the files that were written longest ago, until all take at most `most` bytes."""
    dated_files: list[tuple[float, int, Path]] = []
    for file in files:
        with suppress(FileNotFoundError):  # another process makes room, too
            stat = file.stat()
            dated_files.append((stat.st_mtime, stat.st_size, file))
    total = sum(size for _, size, _ in dated_files)
    for _, size, file in sorted(dated_files):
        if total <= most:
            return
        file.unlink(missing_ok=True)
        total -= size


def check_room(target: Path, needed_bytes: int) -> None:
    """Check that a volume has room for so many bytes more, beside what checkpoints need. Raises OSError if not."""
    room = os.statvfs(target)
    spare = min(room.f_blocks * room.f_frsize // FREE_SHARE, FREE_BYTES)
    if room.f_bavail * room.f_frsize - needed_bytes < spare:
        raise OSError(f"less than {spare >> 20} MiB would be free on the volume")
