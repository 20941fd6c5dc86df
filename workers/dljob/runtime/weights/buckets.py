"""Conversion of a state into buckets of flat buffers, which a WeightChannel carries, and back.

Received arrays are read-only views of the memory that the buckets came in; received tensors are copies.
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
from dljob.runtime.checkpoint.pack import ALIGN, pack

BUCKET = 64 << 20
"""Bytes from which a bucket takes no further buffer; a larger buffer is a bucket of its own."""
PIECE = 1 << 20
"""Bytes whose words are summed into one number of a checksum."""
_WORD_MASK = (1 << 64) - 1


class StateBuckets(Sequence[Sequence[memoryview]]):
    """The buffers of a state in buckets. Only device tensors and non-contiguous ones are copied, as a bucket is taken.

    Buffers on a GPU pass through one bucket of page-locked memory, so that no second copy of a large state is held: a
    bucket is valid until the next one is taken. `views_of_all` returns buckets that stay.
    """

    def __init__(self, sources: Sequence[Sequence[Any]]) -> None:
        self._sources = sources
        self._room: Any = None

    def __len__(self) -> int:
        return len(self._sources)

    def __getitem__(self, number: Any) -> Any:
        sources = self._sources[number]
        if not any(_on_gpu(source) for source in sources):
            return [_view(source) for source in sources]
        return self._passed(sources)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(source.nbytes for sources in self._sources for source in sources)

    def views_of_all(self) -> list[list[memoryview]]:
        """Return all buckets at once, each in memory of its own."""
        return [[_view(source) for source in sources] for sources in self._sources]

    def _passed(self, sources: Sequence[Any]) -> list[memoryview]:
        """Copy the buffers of a bucket that lie on a GPU into page-locked memory, at the speed of the GPU's bus."""
        torch = sys.modules["torch"]
        if self._room is None:
            most = max(sum(_room_of(source) for source in bucket) for bucket in self._sources)
            try:
                self._room = torch.empty(most, dtype=torch.uint8, pin_memory=True)
            except RuntimeError:  # no memory can be locked here: slower, and as right
                self._room = torch.empty(most, dtype=torch.uint8)
        views, at = list[memoryview](), 0
        for source in sources:
            if not _on_gpu(source):
                views.append(_view(source))
                continue
            part = self._room[at : at + source.numel() * source.element_size()]
            at += _room_of(source)
            if part.numel():
                part.view(source.dtype).view(source.shape).copy_(source.detach(), non_blocking=True)
            views.append(bytes_of(part))
        for device in {source.device for source in sources if _on_gpu(source)}:
            torch.cuda.current_stream(device).synchronize()
        return views


def bytes_in(buckets: Sequence[Sequence[memoryview]]) -> int:
    """Return the bytes of all buckets, without making them."""
    if isinstance(buckets, StateBuckets):
        return buckets.nbytes
    return sum(view.nbytes for bucket in buckets for view in bucket)


def _on_gpu(source: Any) -> bool:
    return not isinstance(source, memoryview) and source.is_cuda


def _room_of(source: Any) -> int:
    """Return the bytes of a buffer on a GPU, rounded up so that the next one is aligned; 0 for any other."""
    return -(-source.numel() * source.element_size() // ALIGN) * ALIGN if _on_gpu(source) else 0


def flat(state: Any, subject: str, bucket: int = BUCKET) -> tuple[bytes, StateBuckets]:
    """Return the index of a state, and its buffers in buckets.

    Raises:
        UsageError: A part cannot be pickled, or is a piece of a DTensor; the message names it.
    """
    packed = pack(state, subject)
    # A piece of this rank alone is no weight: readers have another sharding, or none.
    if packed.pieces:
        hint = "publish value.full_tensor(), from all ranks of its mesh together"
        raise UsageError(f"{subject}: the state has DTensors, and this rank has only a piece of each", hint=hint)
    buckets: list[list[Any]] = []
    room = 0
    for source in packed.sources:
        size = source.nbytes
        # A buffer is never cut, so that readers can map it in place.
        if not buckets or size > room:
            buckets.append([])
            room = bucket
        buckets[-1].append(source)
        room -= size
    return pickle.dumps((packed.plain, packed.stream), protocol=5), StateBuckets(buckets)


def _view(source: Any) -> memoryview:
    """Return the bytes of a tensor or buffer, in place where they are contiguous in host memory."""
    if isinstance(source, memoryview):
        return source
    host_tensor = source.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return bytes_of(host_tensor)


def bytes_of(tensor: Any) -> memoryview:
    """Return the memory of a contiguous CPU tensor, readable and writable."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return memoryview(b"")
    memory: Any = (ctypes.c_char * size).from_address(tensor.data_ptr())
    memory.tensor = tensor  # keeps the tensor, which owns the memory, alive with the view
    return pickle.PickleBuffer(memory).raw()


class _Reader(pickle.Unpickler):
    """An unpickler that puts tensors back, as copies."""

    def __init__(self, stream: bytes, sources: Sequence[memoryview], plain: Sequence[int]) -> None:
        super().__init__(io.BytesIO(stream), buffers=[sources[n].toreadonly() for n in plain])
        self._sources = sources
        self._made: dict[int, Any] = {}

    def persistent_load(self, pid: Any) -> Any:
        import torch

        kind, number, dtype, shape, gradient = pid
        # A tensor that occurs twice has one number, and is restored as one.
        if number not in self._made:
            # A copy: the memory that came is shared with other readers, and a tensor may be written to.
            tensor = torch.empty(tuple(shape), dtype=getattr(torch, dtype))
            if tensor.numel():
                bytes_of(tensor)[:] = self._sources[number]
            if kind == "parameter":
                tensor = torch.nn.Parameter(tensor, requires_grad=gradient)
            self._made[number] = tensor.requires_grad_(gradient) if gradient else tensor
        return self._made[number]


def load_state(index: bytes, buckets: Sequence[Sequence[memoryview]]) -> Any:
    """Return the state of an index and its buffers.

    Raises whatever the user's own classes raise in unpickling.
    """
    plain, stream = pickle.loads(index)  # noqa: S301 - a peer of the same job wrote it
    return _Reader(stream, [view for bucket in buckets for view in bucket], plain).load()


def joined(bucket: Sequence[memoryview]) -> Any:
    """Copy a bucket into one tensor of bytes, which owns its memory."""
    import torch

    tensor = torch.empty(sum(view.nbytes for view in bucket), dtype=torch.uint8)
    memory, at = bytes_of(tensor), 0
    for view in filter(None, bucket):
        memory[at : at + view.nbytes] = view
        at += view.nbytes
    return tensor


def parted(bucket: memoryview, sizes: Sequence[int]) -> list[memoryview]:
    """Split a bucket that came as one piece of memory into its buffers, by their sizes in bytes."""
    if bucket.nbytes != sum(sizes):
        raise ValueError(f"a bucket came with {bucket.nbytes} bytes instead of {sum(sizes)}")
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    return [bucket[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def parcel(bucket: Sequence[memoryview]) -> list[Any]:
    """Return a bucket as Ray stores it: `ray.put` copies each buffer once, and readers map it without a copy.

    Arrays are used instead of PickleBuffers of views: when such a pair is garbage in a reference cycle, CPython 3.11
    ends with a segmentation fault.
    """
    try:
        import numpy as np
    except ImportError:  # Ray does not need NumPy; without it readers copy, too
        return [bytes(view) for view in bucket]
    return [np.frombuffer(view, dtype=np.uint8) if view.nbytes else b"" for view in bucket]


def checksum(bucket: Sequence[memoryview]) -> int:
    """Return a checksum of a bucket, at the speed of memory.

    It is a CRC over the sums of the 64-bit words of each MiB: it detects a changed byte, and two MiB in each other's
    place.
    """
    crc = 0
    for view in bucket:
        words = view.nbytes // 8 * 8
        for at in range(0, words, PIECE):
            total = _sum(view[at : min(words, at + PIECE)])
            # Each sum enters in its order, so that two pieces in each other's place are noticed.
            crc = zlib.crc32(total.to_bytes(8, "little"), crc)
        crc = zlib.crc32(view[words:], crc)
    return crc


def _sum(view: memoryview) -> int:
    """Return the sum of 64-bit words, modulo 2 ** 64."""
    # NumPy is used where it is loaded already; importing it for a sum would cost more than it saves.
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        return int(numpy.frombuffer(view, dtype=numpy.uint64).sum(dtype=numpy.uint64))
    return sum(view.cast("Q")) & _WORD_MASK
