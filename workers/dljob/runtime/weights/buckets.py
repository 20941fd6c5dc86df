"""A state as buckets of flat buffers, and back: what a WeightChannel carries.

Arrays come out as read-only views of the memory in which they came, tensors as copies of their own.
"""

from __future__ import annotations

import ctypes
import io
import pickle
import sys
import zlib
from collections.abc import Sequence
from typing import Any

from dljob.errors import UsageError
from dljob.runtime.checkpoint.pack import pack

BUCKET = 64 << 20
"""Bytes from which a bucket takes no further buffer; a larger buffer is one by itself."""
PIECE = 1 << 20
_WORD = (1 << 64) - 1


def flat(state: Any, what: str, bucket: int = BUCKET) -> tuple[bytes, list[list[memoryview]]]:
    """The index of a state, and its buffers in buckets; copies only what is on a device, or not contiguous.

    Raises:
        UsageError: when something in it cannot be pickled, or is a piece of a DTensor; it says where.
    """
    packed = pack(state, what)
    if packed.pieces:
        hint = "publish value.full_tensor(), from all ranks of its mesh together"
        raise UsageError(f"{what}: the state has DTensors, of which this rank has a piece each", hint=hint)
    buckets: list[list[memoryview]] = []
    left = 0
    for source in packed.sources:
        view = _view(source)
        if not buckets or view.nbytes > left:
            buckets.append([])
            left = bucket
        buckets[-1].append(view)
        left -= view.nbytes
    return pickle.dumps((packed.plain, packed.stream), protocol=5), buckets


def _view(source: Any) -> memoryview:
    """The bytes of a tensor or a buffer, where they are."""
    if isinstance(source, memoryview):
        return source
    whole = source.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return bytes_of(whole)


def bytes_of(tensor: Any) -> memoryview:
    """The memory of a contiguous tensor on the CPU, to read and to write."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return memoryview(b"")
    memory: Any = (ctypes.c_char * size).from_address(tensor.data_ptr())
    memory.tensor = tensor  # which has the memory
    return pickle.PickleBuffer(memory).raw()


class _Reader(pickle.Unpickler):
    """Puts tensors back, as copies."""

    def __init__(self, stream: bytes, sources: Sequence[memoryview], plain: Sequence[int]) -> None:
        super().__init__(io.BytesIO(stream), buffers=[sources[n].toreadonly() for n in plain])
        self._sources = sources
        self._made: dict[int, Any] = {}

    def persistent_load(self, pid: Any) -> Any:
        import torch

        kind, number, dtype, shape, gradient = pid
        if number not in self._made:
            made = torch.empty(tuple(shape), dtype=getattr(torch, dtype))
            if made.numel():
                bytes_of(made)[:] = self._sources[number]
            if kind == "parameter":
                made = torch.nn.Parameter(made, requires_grad=gradient)
            self._made[number] = made.requires_grad_(gradient) if gradient else made
        return self._made[number]


def whole(index: bytes, buckets: Sequence[Sequence[memoryview]]) -> Any:
    """The state of an index and its buffers.

    Raises whatever the user's own classes raise when they are unpickled.
    """
    plain, stream = pickle.loads(index)  # noqa: S301 - a peer of the same job wrote it
    return _Reader(stream, [view for bucket in buckets for view in bucket], plain).load()


def joined(bucket: Sequence[memoryview]) -> Any:
    """A bucket as one tensor of bytes, which has them for itself."""
    import torch

    made = torch.empty(sum(view.nbytes for view in bucket), dtype=torch.uint8)
    memory, at = bytes_of(made), 0
    for view in filter(None, bucket):
        memory[at : at + view.nbytes] = view
        at += view.nbytes
    return made


def parted(whole: memoryview, sizes: Sequence[int]) -> list[memoryview]:
    """The buffers of a bucket that came as one, by their sizes."""
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    return [whole[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def parcel(bucket: Sequence[memoryview]) -> list[Any]:
    """A bucket as Ray stores it: each buffer is copied once, and whoever gets it maps it.

    Not as PickleBuffers of views: where such a pair is garbage of a cycle, CPython 3.11 ends with a segmentation fault.
    """
    try:
        import numpy as np
    except ImportError:  # Ray can do without it: then readers copy too
        return [bytes(view) for view in bucket]
    return [np.frombuffer(view, dtype=np.uint8) if view.nbytes else b"" for view in bucket]


def checksum(bucket: Sequence[memoryview]) -> int:
    """Of the bytes of a bucket and where they are; reads them as fast as memory gives them.

    A CRC over the sums of 64-bit words of each MiB: a byte that changed, and a MiB in another's place, are seen.
    """
    found = 0
    for view in bucket:
        words = view.nbytes // 8 * 8
        for at in range(0, words, PIECE):
            total = _sum(view[at : min(words, at + PIECE)])
            found = zlib.crc32(total.to_bytes(8, "little"), found)
        found = zlib.crc32(view[words:], found)
    return found


def _sum(view: memoryview) -> int:
    """The sum of 64-bit words, modulo 2 ** 64."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        return int(numpy.frombuffer(view, dtype=numpy.uint64).sum(dtype=numpy.uint64))
    return sum(view.cast("Q")) & _WORD
