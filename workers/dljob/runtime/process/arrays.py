"""The array libraries that `shard` splits and `concat` joins. Each is imported only where such a value exists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dljob.calls.rows import register_rows


def _length(value: Any) -> int | None:
    """Return the number of rows; None for an array without dimensions."""
    return int(value.shape[0]) if len(value.shape) else None


def _cut(value: Any, begin: int, end: int) -> Any:
    return value[begin:end]


def _cut_copy(value: Any, begin: int, end: int) -> Any:
    """Copy the slice: pickling a slice of a tensor sends all of the storage behind it."""
    return value[begin:end].clone()


def _numpy_join(parts: Sequence[Any]) -> Any:
    import numpy as np

    # np.concatenate keeps a masked array's type and loses its mask.
    is_masked = any(isinstance(part, np.ma.MaskedArray) for part in parts)
    return np.ma.concatenate(parts) if is_masked else np.concatenate(parts)


def _numpy_maximum(a: Any, b: Any) -> Any:
    import numpy as np

    is_masked = isinstance(a, np.ma.MaskedArray) or isinstance(b, np.ma.MaskedArray)
    return np.ma.maximum(a, b) if is_masked else np.maximum(a, b)


def _torch_join(parts: Sequence[Any]) -> Any:
    import torch

    return torch.cat(list(parts))


def _torch_maximum(a: Any, b: Any) -> Any:
    import torch

    return torch.maximum(a, b)


def register() -> None:
    """Register the arrays of NumPy, the tensors of torch, and TensorDicts for `shard` and `concat`."""
    # By the types' names, so that no library is imported for it.
    register_rows("numpy.ndarray", count=_length, cut=_cut, join=_numpy_join, maximum=_numpy_maximum)
    register_rows("torch.Tensor", count=_length, cut=_cut_copy, join=_torch_join, maximum=_torch_maximum)
    register_rows("tensordict.base.TensorDictBase", count=_length, cut=_cut_copy, join=_torch_join)
