"""Versions as files that any program can read: safetensors in anonymous memory, named by links in a folder.

The memory belongs to the process that made it, and is gone with it: nothing is left in /dev/shm, however it dies.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from dljob.errors import UsageError

MOST_WRITTEN = 1 << 30
"""Bytes of one write: the kernel takes no more than 2 GiB."""
SUFFIX = ".safetensors"
_linking = threading.Lock()
_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint64": "U64",
    "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL", "complex64": "C64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A tensor or array of a state: its type in the words of torch and NumPy, its shape and its bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


class _TensorReader(pickle.Unpickler):
    """An unpickler that needs no torch: it puts NamedTensors in the place of tensors."""

    def __init__(self, stream: bytes, sources: Sequence[memoryview], plain: Sequence[int]) -> None:
        super().__init__(io.BytesIO(stream), buffers=[sources[n].toreadonly() for n in plain])
        self._sources = sources

    def persistent_load(self, pid: Any) -> Any:
        _, number, dtype, shape, _ = pid
        return NamedTensor(dtype, tuple(shape), self._sources[number])


def named(index: bytes, buckets: Sequence[Sequence[memoryview]]) -> dict[str, NamedTensor]:
    """Return name -> tensor of a published state, by name: the keys on the way to a tensor, joined by ".".

    Raises:
        UsageError: The state has something that is no tensor or array, or a type that files do not have.
    """
    plain, stream = pickle.loads(index)  # noqa: S301 - a peer of the same job wrote it
    state = _TensorReader(stream, [view for bucket in buckets for view in bucket], plain).load()
    tensors = dict(_walk(state, ""))
    return {name: tensors[name] for name in sorted(tensors)}


def _walk(value: Any, name: str) -> Iterator[tuple[str, NamedTensor]]:
    if isinstance(value, Mapping):
        items: Iterable[tuple[Any, Any]] = cast("Mapping[Any, Any]", value).items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(cast("Sequence[Any]", value))
    else:
        yield name, _tensor(value, name)
        return
    for key, inner in items:
        yield from _walk(inner, f"{name}.{key}" if name else str(key))


def _tensor(value: Any, name: str) -> NamedTensor:
    if isinstance(value, NamedTensor):
        tensor = value
    elif hasattr(value, "dtype") and hasattr(value, "tobytes") and value.dtype.byteorder in "=|<":
        # A copy only where the array is not contiguous.
        data = value.reshape(-1).view("uint8").data if value.nbytes else memoryview(b"")
        tensor = NamedTensor(value.dtype.name, value.shape, data)
    else:
        hint = "publish tensors and arrays alone on a channel that servers load"
        raise UsageError(f"{name or 'the state'} is {type(value).__name__}, which no file of weights holds", hint=hint)
    if tensor.dtype not in _DTYPES:
        raise UsageError(f"{name or 'the state'} has the type {tensor.dtype}, which no file of weights holds")
    return tensor


def digest(tensors: Mapping[str, NamedTensor]) -> str:
    """Return the SHA-256 over name and bytes of each tensor, in the order of the names."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        sha.update(name.encode())
        sha.update(tensors[name].data)
    return sha.hexdigest()


def written(tensors: Mapping[str, NamedTensor]) -> int:
    """Write tensors to anonymous memory as a safetensors file; return its descriptor."""
    header, at = dict[str, Any](), 0
    for name, tensor in tensors.items():
        size = tensor.data.nbytes
        offsets = [at, at + size]
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data is aligned
    fd = os.memfd_create("dljob-weights", os.MFD_CLOEXEC)
    try:
        _write(fd, memoryview(len(text).to_bytes(8, "little") + text))
        for tensor in tensors.values():
            _write(fd, tensor.data)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _write(fd: int, data: memoryview) -> None:
    data = data.cast("B")
    while data.nbytes:
        data = data[os.write(fd, data[:MOST_WRITTEN]) :]


@contextmanager
def weight_files(folder: Path, channels: Mapping[str, Mapping[str, NamedTensor]]) -> Generator[dict[str, str]]:
    """Make a file for each channel in a folder; yield channel -> path. The files are gone after the block."""
    descriptors: list[int] = []
    links: dict[Path, Path] = {}
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for channel, tensors in channels.items():
            descriptors.append(written(tensors))
            link = folder / f"{quote(channel, safe='')}{SUFFIX}"
            target = Path(f"/proc/{os.getpid()}/fd/{descriptors[-1]}")
            with _linking:
                link.unlink(missing_ok=True)  # of a host that was killed, or of a load for an earlier incarnation
                link.symlink_to(target)
            links[link] = target
        yield {channel: str(link) for channel, link in zip(channels, links, strict=True)}
    finally:
        for link, target in links.items():
            # The rank's next incarnation may load already: its files stay.
            with _linking, suppress(FileNotFoundError):
                if link.readlink() == target:
                    link.unlink()
        for descriptor in descriptors:
            os.close(descriptor)
