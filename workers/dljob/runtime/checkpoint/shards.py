"""Sharded tensors (DTensor): saved as the piece that each rank has, restored under any other sharding and world size.

The pieces lie in the parts as all tensors do. What fits where is decided by torch's own planner
(`torch.distributed.checkpoint`), which sees the parts through a storage reader of ours.
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
class Shard:
    """A rank's piece of a tensor, still in its part: where it begins, its shape, and its place in the whole."""

    at: int
    dtype: str
    shape: tuple[int, ...]
    layout: tuple[tuple[int, ...], tuple[int, ...]]
    """(the whole's shape, this piece's offsets)."""


def is_shard(tensor: Any) -> bool:
    """Whether it is a DTensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Any) -> Tensor:
    """The piece that this rank has."""
    return tensor.to_local().detach()


def layout(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(the whole's shape, this piece's offsets)."""
    chunks = tensor.__create_chunk_list__()
    offsets = tuple(chunks[0].offsets) if chunks else (0,) * tensor.dim()
    return tuple(tensor.shape), offsets


def walk(state: Any, path: str = "state") -> Iterator[tuple[str, Any]]:
    """All leaves of nested dicts and lists, with where they are."""
    if isinstance(state, Mapping):
        for key, value in state.items():
            yield from walk(value, f"{path}[{key!r}]")
    elif isinstance(state, (list, tuple)):
        for number, value in enumerate(state):
            yield from walk(value, f"{path}[{number}]")
    else:
        yield path, state


def any_in(state: Any) -> bool:
    """Whether a loaded state has pieces in it."""
    return any(isinstance(leaf, Shard) for _, leaf in walk(state))


def fit(states: Sequence[tuple[Any, mmap.mmap]], into: Any) -> None:
    """Fill the DTensors of `into` from the pieces of all ranks: (state with its Shards, mapped part) of each.

    Raises:
        CheckpointError: without `into`, or when a tensor is not there or of another shape.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_loader import load

    if into is None:
        raise CheckpointError(
            "the checkpoint has sharded tensors, and nothing says how they are to be sharded now",
            hint="load(into=state) fills the DTensors of a state of the same shape",
        )
    wanted = {path: leaf for path, leaf in walk(into) if is_shard(leaf)}
    pieces = [(path, leaf, data) for state, data in states for path, leaf in walk(state) if isinstance(leaf, Shard)]
    whole = {path: leaf.layout[0] for path, leaf, _ in pieces}
    for path, tensor in wanted.items():
        if whole.get(path) != tuple(tensor.shape):
            raise CheckpointError(
                f"{path}: {whole.get(path, 'nothing')} was saved, {tuple(tensor.shape)} is to be filled"
            )
    try:
        with warnings.catch_warnings():  # it is meant: each rank reads for itself, without a word to its peers
            warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
            load(wanted, storage_reader=_reader(pieces), no_dist=True)
    except CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        raise CheckpointError(f"the saved pieces do not fill the state: {first}") from error


def _metadata(pieces: Sequence[tuple[str, Shard, mmap.mmap]]) -> Metadata:
    import torch
    from torch.distributed.checkpoint import metadata as md

    entries: dict[str, Any] = {}
    places: dict[Any, tuple[Shard, mmap.mmap]] = {}
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


def _reader(pieces: Sequence[tuple[str, Shard, mmap.mmap]]) -> Any:
    """A StorageReader over mapped parts. Made here, since torch is there only when it is used."""
    from torch.distributed.checkpoint.storage import StorageReader
    from torch.futures import Future

    from dljob.runtime.checkpoint.pack import read_tensor

    known = _metadata(pieces)

    class Reader(StorageReader):
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

    return Reader()
