"""Sharded tensors (DTensor): saved as the piece of each rank, restored under any other sharding and world size.

The pieces lie in the parts as all tensors do. Which piece goes where is decided by torch's own planner
(`torch.distributed.checkpoint`), which reads the parts through a storage reader defined here.
"""

from __future__ import annotations

import mmap
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dljob.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.checkpoint.metadata import Metadata


@dataclass(frozen=True, slots=True)
class TensorPiece:
    """A rank's piece of a tensor, still in its part: its offset there, its shape, and its place in the whole tensor."""

    at: int
    dtype: str
    shape: tuple[int, ...]
    layout: tuple[tuple[int, ...], tuple[int, ...]]
    """(shape of the whole tensor, offsets of this piece)."""


def is_shard(tensor: Any) -> bool:
    """Return whether a tensor is a DTensor."""
    # No import: it takes seconds, and without it no DTensor can exist.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Any) -> Tensor:
    """Return the piece of this rank."""
    return tensor.to_local().detach()


def layout(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (shape of the whole tensor, offsets of this piece)."""
    # The protocol that torch's own checkpoints use; a rank beyond the last chunk has none.
    chunks = tensor.__create_chunk_list__()
    offsets = tuple(chunks[0].offsets) if chunks else (0,) * tensor.dim()
    return tuple(tensor.shape), offsets


def walk(state: Any, path: str = "state") -> Iterator[tuple[str, Any]]:
    """Yield (path, leaf) for all leaves of nested dicts and lists."""
    if isinstance(state, Mapping):
        for key, value in state.items():
            yield from walk(value, f"{path}[{key!r}]")
    elif isinstance(state, (list, tuple)):
        for number, value in enumerate(state):
            yield from walk(value, f"{path}[{number}]")
    else:
        yield path, state


def any_in(state: Any) -> bool:
    """Return whether a loaded state contains pieces."""
    return any(isinstance(leaf, TensorPiece) for _, leaf in walk(state))


def fit(states: Sequence[tuple[Any, mmap.mmap]], into: Any) -> None:
    """Fill the DTensors of `into` from the pieces of all ranks.

    `states` has (state with its pieces, mapped part) of each.

    Raises:
        CheckpointError: `into` is None, or a tensor is missing or of another shape.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_loader import load

    if into is None:
        raise CheckpointError(
            "the checkpoint has sharded tensors, and nothing says how they are to be sharded now",
            hint="load(into=state) fills the DTensors of a state of the same shape",
        )
    # Only what this rank holds is read: the planner finds the overlaps with the saved pieces.
    targets = {path: leaf for path, leaf in walk(into) if is_shard(leaf)}
    pieces = [
        (path, leaf, data) for state, data in states for path, leaf in walk(state) if isinstance(leaf, TensorPiece)
    ]
    saved_shapes = {path: leaf.layout[0] for path, leaf, _ in pieces}
    for path, tensor in targets.items():
        if saved_shapes.get(path) != tuple(tensor.shape):
            raise CheckpointError(
                f"{path}: {saved_shapes.get(path, 'nothing')} was saved, {tuple(tensor.shape)} is to be filled"
            )
    try:
        with warnings.catch_warnings():  # it is meant: each rank reads for itself, without a word to its peers
            warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
            load(targets, storage_reader=_reader(pieces), no_dist=True)
    except CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        raise CheckpointError(f"the saved pieces do not fill the state: {first}") from error


def _metadata(pieces: Sequence[tuple[str, TensorPiece, mmap.mmap]]) -> Metadata:
    import torch
    from torch.distributed.checkpoint import metadata as md

    entries: dict[str, Any] = {}
    places: dict[Any, tuple[TensorPiece, mmap.mmap]] = {}
    for path, piece, data in pieces:
        index = md.MetadataIndex(path, piece.layout[1])
        if index in places:  # replicas hold the same piece
            continue
        places[index] = piece, data
        if path not in entries:
            properties = md.TensorProperties(dtype=getattr(torch, piece.dtype))
            entries[path] = md.TensorStorageMetadata(properties, torch.Size(piece.layout[0]), [])
        chunk = md.ChunkStorageMetadata(torch.Size(piece.layout[1]), torch.Size(piece.shape))
        entries[path].chunks.append(chunk)
    return md.Metadata(entries, storage_data=places)


def _reader(pieces: Sequence[tuple[str, TensorPiece, mmap.mmap]]) -> Any:
    """Return a StorageReader over mapped parts.

    The class is defined here, since torch is imported only when it is used.
    """
    from torch.distributed.checkpoint.storage import StorageReader
    from torch.futures import Future

    known = _metadata(pieces)

    class TensorReader(StorageReader):
        def reset(self, checkpoint_id: Any = None) -> None:
            pass

        def read_metadata(self, *_: Any, **__: Any) -> Metadata:
            return known

        def set_up_storage_reader(self, *_: Any, **__: Any) -> None:
            pass

        def prepare_local_plan(self, plan: Any) -> Any:
            return plan

        def prepare_global_plan(self, plans: Any) -> Any:
            return plans

        @classmethod
        def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
            del checkpoint_id
            return True

        def read_data(self, plan: Any, planner: Any) -> Future[None]:
            for item in plan.items:
                piece, data = known.storage_data[item.storage_index]
                source = read_tensor(data, piece.at, piece.dtype, piece.shape)
                for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                    source = source.narrow(dim, start, length)
                target = planner.resolve_tensor(item).detach()
                target.copy_(source)
                planner.commit_tensor(item, target)
            done: Future[None] = Future()
            done.set_result(None)
            return done

    return TensorReader()


def read_tensor(data: mmap.mmap, at: int, dtype: str, shape: Sequence[int]) -> Any:
    """Return a tensor of its own, copied from a mapped part."""
    import torch

    kind = getattr(torch, dtype)
    tensor = torch.empty(tuple(shape), dtype=kind)
    if tensor.numel():
        tensor.copy_(flat(data, kind, tensor.numel(), at).view(tuple(shape)))
    return tensor


def flat(data: mmap.mmap, dtype: Any, count: int, at: int) -> Any:
    """Return a one-dimensional tensor over mapped bytes, without a copy."""
    import torch

    return torch.frombuffer(data, dtype=dtype, count=count, offset=at)


def fill(state: Any, into: Any, path: str) -> Any:
    """Copy the tensors of `state` into those of `into`.

    Return the state with these, all other values as they were saved.

    Raises:
        CheckpointError: A tensor has another shape, or an entry of `into` was not saved.
    """
    if isinstance(state, TensorPiece):  # `shards.fit` has filled it, from all parts
        return into
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(into, torch.Tensor):
        if not isinstance(state, torch.Tensor) or state.shape != into.shape:
            saved_shape = tuple(state.shape) if isinstance(state, torch.Tensor) else type(state).__name__
            raise CheckpointError(f"{path}: {saved_shape} was saved, {tuple(into.shape)} is to be filled")
        with torch.no_grad():
            into.copy_(state)
        return into
    if isinstance(into, Mapping) and isinstance(state, Mapping):
        lost = [key for key in into if key not in state]
        if lost:
            raise CheckpointError(f"{path}[{lost[0]!r}] was not saved")
        return {
            key: fill(value, into[key], f"{path}[{key!r}]") if key in into else value for key, value in state.items()
        }
    if isinstance(into, (list, tuple)) and isinstance(state, (list, tuple)) and len(into) == len(state):
        return type(state)(fill(a, b, f"{path}[{n}]") for n, (a, b) in enumerate(zip(state, into, strict=True)))
    return state
