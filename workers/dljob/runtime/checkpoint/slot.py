"""A copy of a rank's state in memory without a name: it outlives the rank as long as the saver holds it.

The same bytes are the part on disk: a page of header, then the state. The header says whether the copy is whole, so a
process that dies while it copies leaves a copy that says that it is torn.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass, replace
from pathlib import Path

from dljob.errors import UsageError

PAGE = 4096
MAGIC = b"DLJCKPT1"
_HEAD = struct.Struct("<8sQQqQQQQQQ?7xQ")
_SAVED = struct.Struct("<Q")
_SAVED_AT = 512
"""Where the saver notes the last order that it has on disk."""
_SHUT_AT = 520
"""Where it notes that nothing more is to be saved here."""
EMPTY, WRITING, WHOLE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Head:
    """What a copy says of itself; `order` counts the saves of a process, `size` is the state's, in bytes."""

    state: int
    order: int
    step: int
    attempt: int
    number: int
    incarnation: int
    rank: int
    world: int
    index: int
    """Bytes of the index at the start of the state."""
    persist: bool
    """Whether it is to be on disk, also when nothing happens to the rank."""
    size: int

    @property
    def total(self) -> int:
        """Bytes of the header and the state."""
        return PAGE + self.size


def read_head(data: mmap.mmap | memoryview | bytes) -> Head | None:
    """The head of a copy; None when it is none."""
    if len(data) < PAGE:
        return None
    magic, *rest = _HEAD.unpack_from(data)
    return Head(*rest) if magic == MAGIC else None


def read_saved(data: mmap.mmap | memoryview | bytes) -> int:
    """The order that is on disk, as the saver noted it; 0: none."""
    return _SAVED.unpack_from(data, _SAVED_AT)[0]


class Slot:
    """A copy's memory, as the rank or the saver maps it."""

    def __init__(self, fd: int, *, fill: bool = False) -> None:
        self.fd = fd
        self.capacity = os.fstat(fd).st_size - PAGE
        flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if fill else 0)
        self.map = mmap.mmap(fd, 0, flags=flags)

    @classmethod
    def make(cls, capacity: int, name: str) -> Slot:
        """New memory, all of it there: no page is missing in the middle of a save."""
        fd = os.memfd_create(f"dljob-checkpoint-{name}", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, PAGE + capacity)
            return cls(fd, fill=True)
        except OSError as error:
            os.close(fd)
            raise UsageError(
                f"{name}: no {capacity >> 20} MiB of shared memory for a checkpoint: {error.strerror}", hint=_HINT
            ) from error

    @property
    def head(self) -> Head | None:
        """What is in it; None before the first save."""
        return read_head(self.map)

    @property
    def saved(self) -> int:
        """The order that is on disk; 0: none."""
        return read_saved(self.map)

    def begin(self) -> None:
        """From here on the copy is torn."""
        _HEAD.pack_into(self.map, 0, MAGIC, WRITING, *([0] * 8), False, 0)

    def finish(self, head: Head) -> None:
        """The copy is whole."""
        values = (head.order, head.step, head.attempt, head.number, head.incarnation, head.rank, head.world, head.index)
        _HEAD.pack_into(self.map, 0, MAGIC, WRITING, *values, head.persist, head.size)
        _HEAD.pack_into(self.map, 0, MAGIC, WHOLE, *values, head.persist, head.size)

    def note_saved(self, order: int) -> None:
        """The saver has that order on disk."""
        _SAVED.pack_into(self.map, _SAVED_AT, order)

    @property
    def shut(self) -> bool:
        """Whether the saver takes no more: what is copied now would be lost with the node."""
        return self.map[_SHUT_AT] != 0

    @shut.setter
    def shut(self, value: bool) -> None:
        self.map[_SHUT_AT] = value

    def clean_head(self, head: Head) -> bytes:
        """The header as it goes to disk, without the saver's notes."""
        page = bytearray(PAGE)
        whole = replace(head, state=WHOLE)
        values = (whole.state, whole.order, whole.step, whole.attempt, whole.number, whole.incarnation)
        _HEAD.pack_into(page, 0, MAGIC, *values, whole.rank, whole.world, whole.index, whole.persist, whole.size)
        return bytes(page)

    def close(self) -> None:
        """Give the memory back, as far as this process holds it."""
        try:
            self.map.close()
        except BufferError:  # somebody still reads it; it goes when they do
            return
        finally:
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1


_HINT = (
    "it counts as memory of the pod or container, twice the state for each rank: raise nodeGroups[].memory; "
    "nodeGroups[].sharedMemory, the size of /dev/shm, does not limit it"
)
_CGROUP = Path("/sys/fs/cgroup")


def room(cgroup: Path = _CGROUP, meminfo: Path = Path("/proc/meminfo")) -> tuple[int, str]:
    """Bytes of memory that may yet be taken, and where that is."""
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    left, where = int(lines["MemAvailable"].split()[0]) << 10, "on this machine"
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        if limit != "max":
            free = int(limit) - int((cgroup / "memory.current").read_text()) + _reclaimable(cgroup / "memory.stat")
            if free < left:
                left, where = free, "in this container"
    except (OSError, ValueError):  # no cgroup v2: what the machine says must do
        pass
    return left, where


def check_room(name: str, size: int, cgroup: Path = _CGROUP) -> None:
    """Whether two copies of `size` bytes fit: the kernel would kill the rank otherwise, without a word.

    Raises:
        UsageError: with what is needed and what is left.
    """
    left, where = room(cgroup)
    if 2 * size > left:
        raise UsageError(
            f"{name}: a checkpoint of {size >> 20} MiB needs {2 * size >> 20} MiB of shared memory for its two copies; "
            f"{left >> 20} MiB are left {where}",
            hint=_HINT,
        )


def _reclaimable(stat: Path) -> int:
    """Page cache, which the kernel gives up before it kills."""
    rows = dict(line.split() for line in stat.read_text().splitlines())
    return int(rows.get("inactive_file", 0))
