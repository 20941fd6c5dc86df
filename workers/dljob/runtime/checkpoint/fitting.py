"""Restoring into an existing state: its tensors are filled in place."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from dljob.errors import CheckpointError
from dljob.runtime.checkpoint.shards import TensorPiece


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
            was = tuple(state.shape) if isinstance(state, torch.Tensor) else type(state).__name__
            raise CheckpointError(f"{path}: {was} was saved, {tuple(into.shape)} is to be filled")
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
