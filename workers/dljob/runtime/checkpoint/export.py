"""Export of a checkpoint to formats of other tools: safetensors, and PyTorch's distributed checkpoint (DCP)."""

from __future__ import annotations

import importlib
import mmap
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, cast

from dljob.errors import CheckpointError, UsageError
from dljob.master.state.checkpoint_ids import CheckpointId
from dljob.runtime.checkpoint import disk
from dljob.runtime.checkpoint.client import without_beside
from dljob.runtime.checkpoint.files import Folder
from dljob.runtime.checkpoint.listed import listed_unpacker
from dljob.runtime.checkpoint.pack import Unpacker, unpack
from dljob.runtime.checkpoint.shards import TensorPiece, any_in, read_tensor, walk
from dljob.runtime.checkpoint.slot import PAGE, read_head

Format = Literal["safetensors", "dcp"]
SHOWN = 10
"""Number of names in the message about entries that a format cannot hold."""


def read_state(folder: Folder, mark: CheckpointId, rank: int, *, trust: bool, say: Callable[[str], None]) -> Any:
    """Return the state of one rank, sharded tensors joined from all ranks; every byte is checked first.

    Args:
        folder: The folder of the world.
        mark: The checkpoint.
        rank: The rank whose state is read.
        trust: Import classes that are not on the allow-list, too.
        say: Called with the names of these classes before any of them is imported.

    Raises:
        CheckpointError: The checkpoint is damaged, or pieces are missing.
        UsageError: There is no such rank, or the state needs classes that are not on the allow-list.
    """
    # Before anything is unpickled: a corrupt index may name any class.
    if fault := folder.check(mark):
        raise CheckpointError(f"{mark} cannot be exported: {fault}", hint="see dljob checkpoint verify")
    manifest = folder.manifest(mark)
    world = manifest.world if manifest else 0
    if not 0 <= rank < world:
        raise UsageError(f"{mark} has no rank {rank}: {world} saved it, counted from 0")
    # The rank itself first: without sharded tensors the other parts are never read.
    state = _load_part(folder.part(mark, rank), trust=trust, say=say)
    if not any_in(state):
        return state
    parts = [_mapped(folder.part(mark, n)) for n in range(world)]
    # Never with `--trust`'s unpickler: only the pieces of the other ranks are wanted, not their objects.
    part_states = [_unpickle(part, listed_unpacker()[0], tensors=False) for part in parts]
    pieces: dict[str, list[tuple[TensorPiece, mmap.mmap]]] = {}
    for part, part_state in zip(parts, part_states, strict=True):
        for path, leaf in walk(part_state):
            if isinstance(leaf, TensorPiece):
                pieces.setdefault(path, []).append((leaf, part))
    return _joined(state, "state", pieces)


def _load_part(path: Path, *, trust: bool, say: Callable[[str], None]) -> Any:
    part = _mapped(path)
    # A first pass with stubs only learns the names. It may fail on them; only an error without any is the checkpoint's.
    unpacker, names = listed_unpacker()
    try:
        state = _unpickle(part, unpacker, tensors=True)
    except CheckpointError:
        if not names:
            raise
        state = None
    if not names:
        return state
    class_names = ", ".join(sorted(names))
    if not trust:
        raise UsageError(
            f"the state needs code that is not on the allow-list: {class_names}",
            hint="unpickling runs it: add --trust only where you know who wrote the checkpoint",
        )
    say(f"unpickling runs this code: {class_names}")
    return _unpickle(part, Unpacker, tensors=True)


def _unpickle(part: mmap.mmap, unpacker: type[Unpacker], *, tensors: bool) -> Any:
    head = read_head(part)
    try:
        state = unpack(part, PAGE, head.index if head else 0, tensors=tensors, unpacker=unpacker)
        return without_beside(state)[0]
    except Exception as error:
        raise CheckpointError(f"the state cannot be unpickled: {type(error).__name__}: {error}") from error


def _mapped(path: Path) -> mmap.mmap:
    fd = disk.open_file(path)
    try:
        return mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(fd)


def _joined(state: Any, path: str, pieces: Mapping[str, list[tuple[TensorPiece, mmap.mmap]]]) -> Any:
    """Return the state with whole tensors in the place of sharded ones."""
    if isinstance(state, TensorPiece):
        return _assemble(path, pieces[path])
    if isinstance(state, Mapping):
        return {key: _joined(value, f"{path}[{key!r}]", pieces) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [_joined(value, f"{path}[{n}]", pieces) for n, value in enumerate(state)]
    return state


def _assemble(path: str, pieces: list[tuple[TensorPiece, mmap.mmap]]) -> Any:
    import torch

    first = pieces[0][0]
    tensor = torch.empty(first.layout[0], dtype=getattr(torch, first.dtype))
    # A mask, since replicas overlap: counting elements would accept a tensor with a hole.
    filled = torch.zeros(first.layout[0], dtype=torch.bool)
    for piece, data in pieces:
        at = tuple(slice(start, start + size) for start, size in zip(piece.layout[1], piece.shape, strict=True))
        tensor[at] = read_tensor(data, piece.at, piece.dtype, piece.shape)
        filled[at] = True
    if not bool(filled.all()):
        raise CheckpointError(f"{path}: the saved pieces do not fill the tensor")
    return tensor


def selected(state: Any, path: str) -> Any:
    """Return the part of a state under a dotted path, such as `model` or `optimizer.state`.

    All of it for an empty path.

    Raises:
        UsageError: The path names nothing.
    """
    for key in path.split(".") if path else ():
        if isinstance(state, Mapping):
            part = next((value for name, value in cast("Mapping[Any, Any]", state).items() if str(name) == key), None)
        elif isinstance(state, (list, tuple)) and key.isdecimal() and int(key) < len(state):
            part = cast("list[Any]", state)[int(key)]
        else:
            part = None
        if part is None:
            keys = ", ".join(map(str, cast("Mapping[Any, Any]", state))) if isinstance(state, Mapping) else "nothing"
            raise UsageError(f"--only {path}: there is no {key!r}; there is {keys}")
        state = part
    return state


def write(state: Any, out: Path, form: Format) -> list[str]:
    """Write a state to a new file (safetensors) or folder (DCP); return the names of its tensors.

    Raises:
        UsageError: `out` exists, or the format cannot hold all of the state.
    """
    # lexists: a link that leads nowhere would be written through.
    if os.path.lexists(out):
        raise UsageError(f"{out} exists and stays as it is", hint="name a file or folder that does not exist yet")
    if not isinstance(state, Mapping):
        raise UsageError(f"the state is a {type(state).__name__}; {form} holds a dict of names")
    leaves = dict(_leaves(cast("Mapping[Any, Any]", state), form))
    disk.make_folder(out.absolute().parent)
    if form == "safetensors":
        _write_safetensors(leaves, out)
    else:
        _write_dcp(cast("Mapping[Any, Any]", state), out)
    return list(leaves)


def _leaves(state: Mapping[Any, Any], form: Format) -> Iterator[tuple[str, Any]]:
    """Yield dotted name and value of each leaf.

    Raises:
        UsageError: Two leaves have the same name, or the format cannot hold a value.
    """
    refused, used_names = list[str](), set[str]()
    for name, value in _flat(state, ""):
        if name in used_names:
            refused.append(f"{name} (two entries have this name)")
        elif form == "safetensors" and (kind := _no_tensor(value)):
            refused.append(f"{name} ({kind})")
        else:
            yield name, value
        used_names.add(name)
    if refused:
        more = f", and {len(refused) - SHOWN} more" if len(refused) > SHOWN else ""
        raise UsageError(
            f"{form} cannot hold {', '.join(refused[:SHOWN])}{more}",
            hint="--only PATH exports one part of the state, such as --only model; --to dcp holds numbers and text too",
        )


def _flat(state: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(state, Mapping) and state:
        for key, value in cast("Mapping[Any, Any]", state).items():
            yield from _flat(value, f"{name}.{key}" if name else str(key))
    elif isinstance(state, (list, tuple)) and state:
        for number, value in enumerate(cast("list[Any]", state)):
            yield from _flat(value, f"{name}.{number}")
    else:
        yield name, state


def _no_tensor(value: Any) -> str:
    """Return why safetensors cannot hold a value; empty if it can."""
    tensor = _tensor(value)
    if tensor is None:
        return type(value).__name__
    return "" if str(tensor.dtype).removeprefix("torch.") in _DTYPES else f"tensor of {tensor.dtype}"


_DTYPES = {
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "bool"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
}
"""The types that every version of safetensors holds."""


def _tensor(value: Any) -> Any:
    """Return a tensor or an array as a tensor; None for other values."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach() if value.layout is torch.strided and not value.is_quantized else None
    if type(value).__module__ == "numpy" and type(value).__name__ == "ndarray":
        with suppress(TypeError):  # an array of objects or of text, which is no tensor
            return torch.from_numpy(value)
    return None


def _write_safetensors(leaves: Mapping[str, Any], out: Path) -> None:
    try:
        library = importlib.import_module("safetensors.torch")
    except ImportError as error:
        raise UsageError(
            "safetensors is not installed", hint="pip install 'dljob[safetensors]', or --to dcp"
        ) from error
    # Cloned: safetensors refuses tensors that share memory, such as tied weights.
    tensors = {name: _tensor(value).contiguous().clone() for name, value in leaves.items()}
    temp = disk.temporary(out)
    try:
        library.save_file(tensors, temp, metadata={"format": "pt"})
        try:
            os.link(temp, out)  # unlike a rename it never overwrites
        except FileExistsError as error:
            raise UsageError(f"{out} exists and stays as it is", hint="name a file that does not exist yet") from error
    finally:
        temp.unlink(missing_ok=True)


def _write_dcp(state: Mapping[Any, Any], out: Path) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    # Not with exist_ok: a folder that exists must stay as it is.
    out.mkdir()
    try:
        with warnings.catch_warnings():  # it is meant: one process writes the checkpoint of all ranks
            warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
            save(dict(state), storage_writer=FileSystemWriter(out), no_dist=True)
    except BaseException as error:
        shutil.rmtree(out, ignore_errors=True)
        if isinstance(error, ValueError):
            raise UsageError(f"dcp cannot hold the state: {error}") from error
        raise
