"""Serialization of calls' arguments and results: pickled once, in the thread that made the call."""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
import threading
from collections import ChainMap
from collections.abc import Iterable
from typing import Any, ClassVar, NoReturn

from dljob.errors import UsageError
from dljob.linux import memory_limit

LARGE = 100_000
"""The size in bytes from which a payload goes through the object store, once for all ranks that get it."""


HUGE = 1 << 30
"""The size in bytes from which an array is compared with the free memory before it is pickled."""
COPIES = 4
"""Copies of a value on its way: pickled and stored, here and, perhaps on the same machine, where it is read."""


class WireError(TypeError):
    """A value that cannot travel between processes; the message names it and its type."""


def dump(value: Any, subject: str, parts: tuple[tuple[str, Any], ...] = ()) -> bytes:
    """Pickle a value.

    Raises:
        WireError: It cannot be pickled; names the part (of `parts`) that cannot, and its type.
        UsageError: An array in it is larger than the free memory allows, or the memory did not suffice.
    """
    try:
        return _dumps(value)
    except UsageError as error:
        raise UsageError(f"{subject}: {error.message}", hint=error.hint) from None
    except MemoryError:
        raise UsageError(f"{subject}: there is no memory to pickle it", hint=_INSTEAD) from None
    except Exception as error:  # noqa: BLE001 - pickling runs users' __reduce__, which may raise anything
        # pickle's own error names neither the argument nor its type; each is tried alone, only after the whole has
        # failed.
        for name, part in parts:
            try:
                _dumps(part)
            except Exception as inner:  # noqa: BLE001 - the same
                raise WireError(_pickling_error(f"{subject}: {name}", part, inner)) from None
        raise WireError(_pickling_error(subject, value, error)) from None


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
    # A script's process has no Ray, and must not import it for this.
    ray = sys.modules.get("ray")
    try:
        if "torch" in sys.modules:
            _look_at_tensors(value)
        with RefusedRefs():
            # pickle first: it is the faster of the two, and does for most arguments.
            return pickle.dumps(value, protocol=5, buffer_callback=_looked_at)
    except (UsageError, MemoryError):
        raise
    except Exception:  # cloudpickle raises the same again where it cannot do better
        if ray is None:
            raise

    class CloudPickler(ray.cloudpickle.CloudPickler):
        # Ray's own reducer would keep the object until this process ends.
        dispatch_table: ClassVar[Any] = ChainMap(
            {ray.ObjectRef: _refuse_ref}, ray.cloudpickle.CloudPickler.dispatch_table
        )

    stream = io.BytesIO()
    CloudPickler(stream, protocol=5).dump(value)
    return stream.getvalue()


_thread_state = threading.local()


class RefusedRefs:
    """A block in which pickle refuses references of Ray in this thread.

    pickle takes a reference's number without its owner's address, and whoever reads it waits for ever. A table of a
    pickler's own would do the same, but `pickle.dumps` takes none, and is the fastest.
    """

    def __enter__(self) -> None:
        # Absent in a script's process, and while another thread imports Ray.
        ref_type = getattr(sys.modules.get("ray"), "ObjectRef", None)
        if ref_type is not None and ref_type not in copyreg.dispatch_table:
            copyreg.pickle(ref_type, _reduce_ref)
        _thread_state.refuses_refs = True

    def __exit__(self, *_: object) -> None:
        _thread_state.refuses_refs = False


def _reduce_ref(ref: Any) -> tuple[Any, ...]:
    return _refuse_ref(ref) if getattr(_thread_state, "refuses_refs", False) else ref.__reduce__()


def _refuse_ref(ref: Any) -> NoReturn:
    raise TypeError(f"it holds {ref}, whose owner would not learn of its new reader; pass the value, ray.get(ref)")


def _looked_at(buffer: pickle.PickleBuffer) -> bool:
    """Have pickle take a buffer along; it asks for each, before it copies its bytes."""
    _check_memory(memoryview(buffer).nbytes)
    return True


def _look_at_tensors(value: Any) -> None:
    """Look at the tensors among the arguments of a call, or in an answer: torch shows pickle no buffers."""
    for part in _parts(value):
        for inner in _parts(part):
            for element in _parts(inner):
                if type(element).__module__ == "torch":
                    _check_memory(element.nbytes)


def _parts(value: Any) -> Iterable[Any]:
    if type(value) in (tuple, list):
        return value
    return value.values() if type(value) is dict else (value,)


def _check_memory(size: int) -> None:
    if size < HUGE:
        return
    free, place = memory_limit.free()
    if free is not None and COPIES * size > free:
        raise UsageError(
            f"an array of {size >> 20} MiB is too large for a call, which makes up to {COPIES} copies: "
            f"{free >> 20} MiB of memory are free {place}",
            hint=_INSTEAD,
        )


_INSTEAD = "send it in parts, as weights by a WeightChannel, or the path of a file that has it"


def _pickling_error(subject: str, value: Any, error: BaseException) -> str:
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return f"{subject}, a {kind}, cannot be pickled: {error}"
