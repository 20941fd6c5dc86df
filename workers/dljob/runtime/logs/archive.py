"""Whole logs of ranks on the volume of the job's checkpoints, where they outlive pods: appended to, now and then.

    <checkpoint path>/<job>-<uid8>/logs/attempt-1/<role>-<rank>.<incarnation>.log

A rank writes to a file of its pod, so a volume that hangs stops nobody. Beside it stands where each incarnation begins;
what the volume does not have yet is appended by the node's agent every half minute, and at the pod's end by what runs
before SIGTERM (`dljob.runtime.leave`), so this module is as light as that one.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from dljob.runtime.logs import cut

CHECKPOINT = "DLJOB_CHECKPOINT"
"""Where spec.checkpoint is mounted; not set on a laptop."""
CUT = f"\n[dljob] {cut.MOST_BYTES >> 20} MiB are kept of a process's log; the rest was in its pod alone\n".encode()
"""The end of a log on a volume that cannot give the middle of a file back."""
FREE_SHARE, FREE_BYTES = 20, 10 << 30
"""Of a volume one part in so many stays free, or so many bytes where that is less: checkpoints are worth more."""
PIECE = 1 << 20
PARTS = ".parts"


def root(path: str, name: str, uid: str) -> Path:
    """What a job has below its checkpoint path."""
    return Path(path) / f"{name}-{uid[:8]}"


def begins(log: Path, incarnation: int, size: int, place: Path) -> None:
    """A process of a rank begins to write to its log, which has `size` bytes; `place` is where it is to be kept."""
    with suppress(OSError), log.with_suffix(PARTS).open("a", encoding="utf-8") as parts:
        parts.write(f"{incarnation} {size} {place}\n")


def keep_all(home: Path) -> str:
    """Bring the logs of all jobs of a pod to their volumes; why not all are there, else empty."""
    said = [keep(folder) for folder in sorted(home.glob("jobs/*/logs"))]
    return "; ".join(filter(None, said))


def keep(folder: Path) -> str:
    """Bring the logs in a job's folder to the volume; why not all are there, else empty."""
    try:
        with _alone(folder):
            for parts in sorted(folder.glob(f"*{PARTS}")):
                log = parts.with_suffix(".log")
                for place, incarnation, start, end in _ranges(log, parts):
                    place.mkdir(parents=True, exist_ok=True)
                    _append(log, start, end, place / f"{log.stem}.{incarnation}.log")
    except OSError as error:
        return f"logs are not kept: {error.strerror or error}"
    return ""


def newest(root: Path, name: str) -> Path | None:
    """The log of a rank's last process (`<role>-<rank>`) that is kept of a job; None when there is none."""
    found = {
        (int(path.parent.name.rpartition("-")[2]), int(path.name.split(".")[-2])): path
        for path in root.glob(f"logs/attempt-*/{name}.*.log")
    }
    return found[max(found)] if found else None


@contextmanager
def _alone(folder: Path) -> Generator[None]:
    """The agent and what runs at the pod's end append to the same files: one after the other."""
    with (folder / ".keeping").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _ranges(log: Path, parts: Path) -> list[tuple[Path, int, int, int]]:
    """(where to keep it, incarnation, where it begins, where it ends) of what is in a log."""
    lines = [line.split(" ", 2) for line in parts.read_text(encoding="utf-8").splitlines()]
    starts = [int(line[1]) for line in lines] + [log.stat().st_size]
    return [(Path(line[2]), int(line[0]), starts[n], starts[n + 1]) for n, line in enumerate(lines)]


def _append(log: Path, start: int, end: int, kept: Path) -> None:
    """Bring what is new to the volume, each byte to its own place: what was cut out here is a hole there, too."""
    out = os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        have, most = os.fstat(out).st_size, end - start
        whole = most <= cut.MOST_BYTES or cut.can_cut(out)
        if not whole:
            most = cut.MOST_BYTES
        if have < most:
            _check_room(kept, min(most - have, cut.MOST_BYTES))
            with log.open("rb") as source:
                _copy(source.fileno(), out, start, have, most)
        if not whole and have <= most:
            os.pwrite(out, CUT, most)
    finally:
        os.close(out)
    if whole:
        cut.cut(kept, 0)


def _copy(source: int, out: int, start: int, have: int, most: int) -> None:
    """Copy what lies behind `start` in a log, from `have` to `most`, without what was cut out of it."""
    at = have
    while at < most:
        begin, end = cut.next_data(source, start + at, start + most)
        at = begin - start
        piece = os.pread(source, min(PIECE, end - begin), begin)
        if not piece:
            break
        os.pwrite(out, piece, at)
        at += len(piece)


def _check_room(kept: Path, wanted: int) -> None:
    room = os.statvfs(kept)
    spare = min(room.f_blocks * room.f_frsize // FREE_SHARE, FREE_BYTES)
    if room.f_bavail * room.f_frsize - wanted < spare:
        raise OSError(f"less than {spare >> 20} MiB would be free on the volume")
