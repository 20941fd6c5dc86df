"""Serialization of calls' arguments and results: pickled once, in the thread that made the call."""

from __future__ import annotations

import pickle
import sys
from typing import Any

LARGE = 100_000
"""The size in bytes from which a payload goes through the object store, once for all ranks that get it."""


class WireError(TypeError):
    """A value that cannot travel between processes; the message names it and its type."""


def dump(value: Any, what: str, parts: tuple[tuple[str, Any], ...] = ()) -> bytes:
    """Pickle a value. Raises WireError, which names the part (of `parts`) that cannot be pickled, and its type."""
    try:
        return _dumps(value)
    except Exception as error:  # noqa: BLE001 - pickling runs users' __reduce__, which may raise anything
        # pickle's own error names neither the argument nor its type; each is tried alone, only after the whole has
        # failed.
        for name, part in parts:
            try:
                _dumps(part)
            except Exception as inner:  # noqa: BLE001 - the same
                raise WireError(_pickling_error(f"{what}: {name}", part, inner)) from None
        raise WireError(_pickling_error(what, value, error)) from None


def load(payload: bytes) -> Any:
    """Unpickle a payload of a peer of the same job."""
    return pickle.loads(payload)  # noqa: S301 - peers run the same user code with the same rights


class Apart:
    """A placeholder in arguments for one that is the same for all ranks and travels separately."""


def arguments(payload: bytes, common: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Unpickle the arguments of a call, with the separate ones put in their places."""
    args, kwargs = load(payload)
    if common:
        same, named = load(common)
        places = dict(same)
        args = tuple(places[n] if isinstance(value, Apart) else value for n, value in enumerate(args))
        kwargs = {k: named[k] if isinstance(value, Apart) else value for k, value in kwargs.items()}
    return args, kwargs


def _dumps(value: Any) -> bytes:
    """Pickle plainly; where that fails (lambdas, classes of `__main__`) by cloudpickle, which comes with Ray."""
    try:
        # pickle first: it is the faster of the two, and does for most arguments.
        return pickle.dumps(value, protocol=5)
    except Exception:  # cloudpickle raises the same again where it cannot do better
        # A script's process has no Ray, and must not import it for this.
        ray = sys.modules.get("ray")
        if ray is None:
            raise
        return ray.cloudpickle.dumps(value, protocol=5)


def _pickling_error(what: str, value: Any, error: BaseException) -> str:
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return f"{what}, a {kind}, cannot be pickled: {error}"
