"""Unpickling by an allow-list: containers, numbers, text, tensors, arrays. Unpickling anything else runs its code."""

from __future__ import annotations

from typing import Any

from dljob.runtime.checkpoint.pack import Unpacker

_ALLOWED = {
    "builtins": {"set", "frozenset", "bytearray", "complex", "range", "slice"},
    "collections": {"OrderedDict", "defaultdict", "deque"},
    "_codecs": {"encode"},
    "numpy": {"ndarray", "dtype"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy.core.numeric": {"_frombuffer"},
    "torch": {"Size", "device"},
}
_BUILTINS = {"int", "float", "bool", "str", "bytes", "list", "dict", "tuple", "object"}
"""Factories of a defaultdict, and classes that copyreg names."""


class _Stub:
    """Stands in for an object of a class that is not imported: it accepts every call and does nothing."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def __setstate__(self, _: Any) -> None: ...
    def __setitem__(self, *_: Any) -> None: ...
    def __call__(self, *_: Any, **__: Any) -> _Stub:
        return self

    def append(self, _: Any) -> None:
        """Accept and drop an item, as a list would keep it."""

    def extend(self, _: Any) -> None:
        """Accept and drop an item, as a list would keep it."""

    def add(self, _: Any) -> None:
        """Accept and drop an item, as a set would keep it."""


def allowed(module: str, name: str) -> bool:
    """Return whether a global is imported without --trust."""
    if module == "builtins" and name in _BUILTINS:
        return True
    if module == "torch" and _is_dtype(name):
        return True
    return name in _ALLOWED.get(module, ())


def _is_dtype(name: str) -> bool:
    import torch

    return isinstance(getattr(torch, name, None), torch.dtype)


class _ListedUnpacker(Unpacker):
    """Unpickler that imports allowed globals; it notes the names of all others, and puts stubs in their place."""

    foreign: set[str]

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if allowed(module_name, global_name):
            return super().find_class(module_name, global_name)
        self.foreign.add(f"{module_name}.{global_name}")
        # Not an error: one pass is to find all names, so that the message lists them together.
        return type(global_name.rpartition(".")[2], (_Stub,), {})


def listed_unpacker() -> tuple[type[Unpacker], set[str]]:
    """Return an unpickler for one state, and the set in which it notes the names that it did not import."""
    names = set[str]()
    return type("ListedUnpacker", (_ListedUnpacker,), {"foreign": names}), names
