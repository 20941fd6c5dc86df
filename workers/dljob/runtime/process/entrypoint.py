"""Resolution of `roles[].entrypoint.class`, a dotted path, to a class or function."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable
from typing import Any

ACCEPTED_TARGETS = "wanted: a class or function that takes no argument, or one: the worker's context (current_worker())"


class EntrypointError(Exception):
    """An entrypoint that cannot be used; `kind` is the error type that users see."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def resolve(path: str) -> Callable[..., Any]:
    """Return the class or function of a dotted path. Exceptions of the user's module, while it is imported, pass."""
    module_name, _, name = path.rpartition(".")
    if not module_name:
        raise EntrypointError("ImportError", f"{path!r} has no module: write it as module.Name")
    module, attributes = _import(module_name, name)
    target: Any = module
    for attribute in attributes:
        if not hasattr(target, attribute):
            owner_name = getattr(target, "__name__", module_name)
            raise EntrypointError("ImportError", f"{owner_name} has no {attribute!r}{_hint(attribute, target)}")
        target = getattr(target, attribute)
    if not callable(target):
        raise EntrypointError(
            "TypeError", f"{path} is a {type(target).__name__}, which cannot be called; {ACCEPTED_TARGETS}"
        )
    return target


def _import(module_name: str, name: str) -> tuple[Any, list[str]]:
    """Import the longest prefix that is a module; return it and the remaining attributes (for a nested class)."""
    attributes = [name]
    while True:
        try:
            return importlib.import_module(module_name), attributes
        except ModuleNotFoundError as error:
            # A module missing inside the user's module is the user's error, and not a reason to try a shorter prefix.
            parent, _, last = module_name.rpartition(".")
            if error.name != module_name or not parent:
                raise
            try:
                package = importlib.import_module(parent)
            except ModuleNotFoundError:
                raise error from None
            # Neither a module nor a nested class: the first error names what the user wrote.
            if not hasattr(package, last):
                raise error from None
            module_name, attributes = parent, [last, *attributes]


def takes_context(target: Callable[..., Any], path: str) -> bool:
    """Whether an entrypoint takes the context as its one argument. Raises EntrypointError if it needs more."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):  # a callable written in C may have no signature: it is called without arguments
        return False
    required = [p for p in signature.parameters.values() if p.default is p.empty and p.kind in _COUNTED]
    if len(required) > 1 or any(p.kind is p.KEYWORD_ONLY for p in required):
        raise EntrypointError("TypeError", f"{path}{signature} cannot be called by dljob; {ACCEPTED_TARGETS}")
    return len(required) == 1


_COUNTED = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)


def _hint(name: str, owner: Any) -> str:
    close = difflib.get_close_matches(name, [n for n in dir(owner) if not n.startswith("_")], n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
