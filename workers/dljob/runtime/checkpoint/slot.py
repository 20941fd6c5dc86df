"""A copy of a rank's state in anonymous memory (a memfd), which outlives the rank as long as the saver holds it.

The same bytes are the part on disk: a page of header, then the state. The header says whether the copy is whole, so the
copy of a process that dies while it copies is marked as torn.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from dataclasses import dataclass, replace
from pathlib import Path

from dljob.errors import UsageError
from dljob.linux import memory_limit
from dljob.master.state.checkpoint_ids import CheckpointId, RunId

PAGE = 4096
_KIND = b"DLJCKPT"
FORMAT = 1
"""Format of copies and parts; its digit ends their magic number."""
MAGIC = b"%s%d" % (_KIND, FORMAT)
_HEAD = struct.Struct("<8sQQqQQQQQQ?7xQQ")
_SAVED = struct.Struct("<Q")
_SAVED_AT = 512
"""Offset of the order of the last save on disk; written by the saver."""
_SHUT_AT = 520
"""Offset of the flag that forbids further saves; written by the saver."""
EMPTY, WRITING, WHOLE = 0, 1, 2
"""States of a copy: memory before its first save; a save that began and has not ended (torn); a save that ended."""


@dataclass(frozen=True, slots=True)
class CopyHeader:
    """The header of a copy. `order` counts the saves of a process; `size` is the state's, in bytes."""

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
    """Whether the copy goes to disk even if the rank lives on."""
    size: int
    revision: int = 0
    """0 for a step's first save in a run; parts of two saves of one step never make a checkpoint together."""

    @property
    def mark(self) -> CheckpointId:
        """The checkpoint that the copy is a part of."""
        return CheckpointId(RunId(self.attempt, self.number), self.step, self.revision)

    @property
    def total(self) -> int:
        """Bytes of the header and the state."""
        return PAGE + self.size


def read_head(data: mmap.mmap | memoryview | bytes) -> CopyHeader | None:
    """Return the header of a copy; None when there is none."""
    if len(data) < PAGE:
        return None
    magic, *rest = _HEAD.unpack_from(data)
    return CopyHeader(*rest) if magic == MAGIC else None


def later_format(data: memoryview | bytes) -> int | None:
    """Return the format of a part that a later dljob wrote; None for any other file."""
    digit = bytes(data[len(_KIND) : len(MAGIC)])
    later = bytes(data[: len(_KIND)]) == _KIND and digit.isdigit() and int(digit) > FORMAT
    return int(digit) if later else None


def read_saved(data: mmap.mmap | memoryview | bytes) -> int:
    """Return the order of the last save on disk, as the saver noted it; 0 for none."""
    return _SAVED.unpack_from(data, _SAVED_AT)[0]


class Slot:
    """The memory of one copy, mapped by the rank or the saver."""

    def __init__(self, fd: int, *, fill: bool = False) -> None:
        self.fd = fd
        self.capacity = os.fstat(fd).st_size - PAGE
        flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if fill else 0)
        self.map = mmap.mmap(fd, 0, flags=flags)
        self._locked: bool | None = None

    @classmethod
    def make(cls, capacity: int, name: str) -> Slot:
        """Allocate memory with all its pages, so that no save stops for page faults.

        Raises:
            UsageError: There is no memory of this size.
        """
        fd = os.memfd_create(f"dljob-checkpoint-{name}", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, PAGE + capacity)
            return cls(fd, fill=True)
        except OSError as error:
            os.close(fd)
            raise UsageError(
                f"{name}: no {capacity >> 20} MiB of shared memory for a checkpoint: {error.strerror}", hint=_HINT
            ) from error

    def lock_for_gpu(self) -> bool:
        """Lock the pages for copies from a GPU, if that was not tried yet; return whether they are locked.

        Into other memory the driver copies through a buffer of its own, at a fraction of the speed of the bus. Where it
        refuses the lock, for want of memory or rights, copies are slower and as right.
        """
        if self._locked is None:
            self._locked = self._cuda("cudaHostRegister", len(self.map), 0)
        return self._locked

    def _cuda(self, function: str, *args: int) -> bool:
        """Call a function of CUDA's runtime with the address of this memory; return whether it succeeded."""
        import torch

        buffer = ctypes.c_char.from_buffer(self.map)
        address = ctypes.addressof(buffer)
        del buffer  # it keeps the mapping from being closed
        try:
            return int(getattr(torch.cuda.cudart(), function)(address, *args)) == 0
        except (RuntimeError, AttributeError, TypeError):  # a context that is broken, or a build without the function
            return False

    @property
    def head(self) -> CopyHeader | None:
        """The header; None before the first save."""
        return read_head(self.map)

    @property
    def saved(self) -> int:
        """The order of the last save on disk; 0 for none."""
        return read_saved(self.map)

    def begin(self) -> None:
        """Mark the copy as torn, before its bytes change."""
        _HEAD.pack_into(self.map, 0, MAGIC, WRITING, *([0] * 8), False, 0, 0)

    def take_back(self, before: CopyHeader | None) -> None:
        """Undo `begin` while no byte of the copy has changed; `before`: the header that it had."""
        if before is not None and before.state == WHOLE:
            self.finish(before)
        else:
            _HEAD.pack_into(self.map, 0, MAGIC, EMPTY, *([0] * 8), False, 0, 0)

    def finish(self, head: CopyHeader) -> None:
        """Write the header and mark the copy as whole."""
        values = (head.order, head.step, head.attempt, head.number, head.incarnation, head.rank, head.world, head.index)
        # Twice: a reader, or a death, between the two sees all fields of a copy that is still torn, never a whole one
        # with fields of the save before.
        _HEAD.pack_into(self.map, 0, MAGIC, WRITING, *values, head.persist, head.size, head.revision)
        _HEAD.pack_into(self.map, 0, MAGIC, WHOLE, *values, head.persist, head.size, head.revision)

    def note_saved(self, order: int) -> None:
        """Note that the save of this order is on disk; called by the saver."""
        _SAVED.pack_into(self.map, _SAVED_AT, order)

    @property
    def shut(self) -> bool:
        """Whether saves are forbidden: the node is being drained, and a new copy would be lost with it."""
        return self.map[_SHUT_AT] != 0

    @shut.setter
    def shut(self, value: bool) -> None:
        self.map[_SHUT_AT] = value

    def clean_head(self, head: CopyHeader) -> bytes:
        """Return the header page as it goes to disk, without the saver's notes."""
        page = bytearray(PAGE)
        head = replace(head, state=WHOLE)
        values = (head.state, head.order, head.step, head.attempt, head.number, head.incarnation)
        rest = (head.rank, head.world, head.index, head.persist, head.size, head.revision)
        _HEAD.pack_into(page, 0, MAGIC, *values, *rest)
        return bytes(page)

    def close(self) -> None:
        """Release this process's mapping and descriptor."""
        if self._locked:
            self._cuda("cudaHostUnregister")
        try:
            self.map.close()
        except BufferError:  # a reader still has a view; the mapping ends with it
            return
        finally:
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1


_HINT = (
    "it counts as memory of the pod or container, twice the state for each rank: raise nodeGroups[].memory; "
    "nodeGroups[].sharedMemory, the size of /dev/shm, does not limit it"
)


def check_room(name: str, size: int, cgroups: Path = memory_limit.CGROUPS) -> None:
    """Check that two copies of `size` bytes fit; otherwise the kernel would kill the rank without a message.

    Raises:
        UsageError: They do not; the message has the needed and the free MiB.
    """
    free_bytes, scope = memory_limit.free(cgroups)
    if free_bytes is not None and 2 * size > free_bytes:
        raise UsageError(
            f"{name}: a checkpoint of {size >> 20} MiB needs {2 * size >> 20} MiB of shared memory for its two copies; "
            f"{free_bytes >> 20} MiB are left {scope}",
            hint=_HINT,
        )
