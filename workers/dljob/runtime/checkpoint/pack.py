"""Pickling of a state into an index and flat bytes: tensors and buffers lie apart, so a save copies each byte once.

Everything else in the state (numbers, dicts, random states) is pickled into the index. Torch is used only when the
state can hold tensors, that is, when something has imported it.
"""

from __future__ import annotations

import ctypes
import io
import mmap
import os
import pickle
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dljob.errors import UsageError
from dljob.runtime.checkpoint import shards
from dljob.runtime.process import wire

ALIGN = 64
PAGE = 4096
PIECE = 8 << 20
THREADS = 4


def _round(size: int, to: int) -> int:
    return -(-size // to) * to


@dataclass(frozen=True, slots=True)
class Packed:
    """A state that is ready to be copied. `size` counts all its bytes, index included."""

    index: bytes
    sources: Sequence[Any]
    """Tensors, and memory views of buffers."""
    offsets: Sequence[int]
    size: int
    plain: Sequence[int]
    """Indices of the sources that are no tensors."""
    stream: bytes
    """The pickle of the state without its sources."""
    pieces: bool
    """Whether a source is this rank's piece of a DTensor."""

    @property
    def on_gpu(self) -> bool:
        """Whether a source lies in the memory of a GPU."""
        return any(not isinstance(source, memoryview) and source.is_cuda for source in self.sources)

    def copy_into(self, target: mmap.mmap, at: int, *, locked: bool = False) -> None:
        """Copy index and sources to offset `at` of the mapped memory; the one copy that a save makes.

        Args:
            target: The memory.
            at: Where the state begins.
            locked: Whether its pages are locked: a GPU then writes them by itself, while this thread copies the rest.
        """
        target[at : at + len(self.index)] = self.index
        # `here` exports the mmap's buffer, which keeps it from being closed while threads copy; hence the `del` at the
        # end.
        buffer = ctypes.c_char.from_buffer(target)
        base = ctypes.addressof(buffer) + at
        pieces: list[tuple[int, int, int]] = []
        streams = list[Any]()
        for source, offset in zip(self.sources, self.offsets, strict=True):
            if isinstance(source, memoryview):
                target[at + offset : at + offset + source.nbytes] = source
            elif (
                # memmove for plain CPU memory: 256 MiB take 38 ms in one thread, with torch's `copy_` 55 ms (ADR 22).
                source.device.type == "cpu" and source.is_contiguous() and not source.is_conj() and not source.is_neg()
            ):
                size, start = source.numel() * source.element_size(), source.data_ptr()
                pieces += [
                    (base + offset + done, start + done, min(PIECE, size - done)) for done in range(0, size, PIECE)
                ]
            elif source.numel():
                # torch copies what memmove cannot: other devices, strided tensors, lazy conjugates and negations.
                part = shards.flat(target, source.dtype, source.numel(), at + offset).view(source.shape)
                part.copy_(source, non_blocking=locked and source.is_cuda)
                if locked and source.is_cuda:
                    streams.append(sys.modules["torch"].cuda.current_stream(source.device))
        _move(pieces)
        for stream in dict.fromkeys(streams):
            stream.synchronize()
        del buffer


def _move(pieces: list[tuple[int, int, int]]) -> None:
    """Copy memory with a few threads: one core does not saturate the memory bus, and the rank waits meanwhile."""
    # The affinity, not the machine's count: a rank bound to a NUMA node, or in a container, has fewer cores.
    many = min(THREADS, len(os.sched_getaffinity(0)), len(pieces))
    threads = [threading.Thread(target=_run, args=(pieces[n::many],)) for n in range(1, many)]
    for thread in threads:
        thread.start()
    _run(pieces[:: max(1, many)])
    for thread in threads:
        thread.join()


def _run(pieces: list[tuple[int, int, int]]) -> None:
    """Copy pieces one after the other. ctypes releases the GIL during each."""
    for target, source, size in pieces:
        ctypes.memmove(target, source, size)


class _Packer(pickle.Pickler):
    """Pickler that takes tensors and out-of-band buffers out of the stream."""

    def __init__(self, stream: io.BytesIO) -> None:
        sources, plain = list[Any](), list[int]()

        # No method: with one the packer would hold itself, and the whole state until Python looks for cycles.
        def take(buffer: pickle.PickleBuffer) -> None:
            plain.append(len(sources))
            sources.append(buffer.raw())

        super().__init__(stream, protocol=5, buffer_callback=take)
        self.sources, self.plain = sources, plain
        self.pieces = False
        self._seen: dict[Any, int] = {}
        # Not imported: without it nothing can have made a tensor, and the import takes seconds.
        self._torch: Any = sys.modules.get("torch")

    def persistent_id(self, obj: Any) -> Any:
        torch = self._torch
        if torch is None or not isinstance(obj, torch.Tensor):
            return None
        if shards.is_shard(obj):
            self.pieces = True
            local = shards.local(obj)
            return "shard", self._add(local), _dtype(local), tuple(local.shape), shards.layout(obj)
        plain = type(obj) in (torch.Tensor, torch.nn.Parameter) and obj.layout is torch.strided
        # Subclasses, sparse and quantized tensors pickle themselves: their bytes alone do not restore them.
        if not plain or obj.is_quantized or obj.is_meta:
            return None
        kind = "parameter" if isinstance(obj, torch.nn.Parameter) else "tensor"
        return kind, self._add(obj.detach()), _dtype(obj), tuple(obj.shape), obj.requires_grad

    def _add(self, tensor: Any) -> int:
        """Return the number of a tensor. Memory that was seen before, as with tied weights, keeps its number."""
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device)
        # Empty tensors all have the address 0, so the key does not tell them apart.
        if tensor.numel() == 0 or key not in self._seen:
            self._seen[key] = len(self.sources)
            self.sources.append(tensor)
        return self._seen[key]


class Unpacker(pickle.Unpickler):
    """Unpickler that puts copies of the tensors back."""

    def __init__(
        self, stream: io.BytesIO, data: mmap.mmap, at: list[int], buffers: list[bytearray], *, tensors: bool
    ) -> None:
        super().__init__(stream, buffers=buffers)
        self._tensors = tensors
        self._data = data
        self._at = at
        self._made: dict[int, Any] = {}

    def persistent_load(self, pid: Any) -> Any:
        """Return the tensor, or the piece of one, that the stream refers to."""
        kind, number, dtype, shape, more = pid
        if kind == "shard":
            return shards.TensorPiece(self._at[number], dtype, shape, more)
        if not self._tensors:
            return None
        # Tied weights share a number: they must be one tensor again after the load.
        if number not in self._made:
            tensor = shards.read_tensor(self._data, self._at[number], dtype, shape)
            if kind == "parameter":
                tensor = sys.modules["torch"].nn.Parameter(tensor, requires_grad=more)
            self._made[number] = tensor.requires_grad_(more) if more else tensor
        return self._made[number]


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def pack(state: Any, caller: str = "checkpoint.save") -> Packed:
    """Index a state without copying a tensor. `what` names the caller in errors.

    Raises:
        UsageError: Something in the state cannot be pickled; the message says where.
    """
    stream = io.BytesIO()
    packer = _Packer(stream)
    try:
        with wire.RefusedRefs():
            packer.dump(state)
    except (pickle.PicklingError, TypeError, AttributeError, BufferError) as error:
        raise UsageError(
            f"{caller}: {_culprit(state, 'state')} cannot be saved: {error}",
            hint="a state is made of tensors, arrays and what pickle takes: keep open files, locks and lambdas out",
        ) from error
    # The data starts on a page of its own, and each source at a multiple of 64 bytes, as torch aligns CPU memory.
    sizes = [_size(source) for source in packer.sources]
    relative, end = list[int](), 0
    for size in sizes:
        relative.append(end)
        end += _round(size, ALIGN)
    index = pickle.dumps((relative, sizes, packer.plain, stream.getvalue()), protocol=5)
    start = _round(len(index), PAGE)
    offsets = [start + at for at in relative]
    return Packed(index, packer.sources, offsets, start + end, packer.plain, stream.getvalue(), packer.pieces)


class _IndexUnpickler(pickle.Unpickler):
    """Unpickler for an index: lists of numbers, and bytes. No class is imported."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise pickle.UnpicklingError(f"an index has no {module_name}.{global_name}")


def unpack(
    data: mmap.mmap, at: int, index_size: int, *, tensors: bool = True, unpacker: type[Unpacker] = Unpacker
) -> Any:
    """Return the state in a mapped part whose index begins at `at`. All values are copies, except pieces of DTensors.

    Args:
        data: The mapped part.
        at: Offset of the index.
        index_size: Bytes of the index.
        tensors: False puts None in the place of tensors, for parts of which only the pieces are wanted.
        unpacker: Decides which classes are imported.

    Raises whatever the user's own classes raise when they are unpickled.
    """
    # No class is imported for the index, so that a damaged one can run nothing.
    relative, sizes, plain, stream = _IndexUnpickler(io.BytesIO(data[at : at + index_size])).load()
    start = at + _round(index_size, PAGE)
    offsets = [start + offset for offset in relative]
    buffers = [bytearray(data[offsets[n] : offsets[n] + sizes[n]]) for n in plain]
    return unpacker(io.BytesIO(stream), data, offsets, buffers, tensors=tensors).load()


def _size(source: Any) -> int:
    """Return the bytes of a tensor or of a view."""
    return source.nbytes if isinstance(source, memoryview) else source.numel() * source.element_size()


def _culprit(state: Any, path: str) -> str:
    """Return the path of the deepest value at which pickling fails."""
    if isinstance(state, dict):
        parts = [(f"{path}[{key!r}]", value) for key, value in state.items()]
    elif isinstance(state, (list, tuple)):
        parts = [(f"{path}[{n}]", value) for n, value in enumerate(state)]
    else:
        return path
    for inner, value in parts:
        try:
            with wire.RefusedRefs():
                _Packer(io.BytesIO()).dump(value)
        except Exception:  # noqa: BLE001 - whatever it is, it is in there
            return _culprit(value, inner)
    return path
