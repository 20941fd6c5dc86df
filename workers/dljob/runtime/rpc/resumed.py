"""The callee's side of a stream that resumes: its versions of weights and code, its prefix, the state it hands over."""

from __future__ import annotations

import functools
import hashlib
import sys
import traceback
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from dljob.calls.mark import RpcMark
from dljob.calls.resumption import HANDED_OVER_ARG, RECEIVED_ARG, STATE_ARG, VERSION_ARG
from dljob.runtime.process import wire
from dljob.runtime.process.worker_context import held_versions

OWN = "weights_version"
"""Attribute by which a class says its version itself, as one that loads weights by other ways than a WeightChannel."""


def version_of(instance: Any) -> Any:
    """Return the version of an object's weights: its own word, else the channels' versions that this process holds."""
    declared_version = getattr(instance, OWN, None)
    return dict(held_versions) if declared_version is None else declared_version


@functools.cache
def code_of(cls: type) -> str:
    """Return a digest of the code of a class and its bases: the same in processes that loaded the same code."""
    digest = hashlib.sha256()
    for base in cls.__mro__[:-1]:
        for name, value in sorted(vars(base).items()):
            # Names of files and numbers of lines are left out: a comment changes nothing.
            if isinstance(value, FunctionType):
                digest.update(f"{base.__qualname__}.{name}{_plain(value.__code__)}".encode())
    return digest.hexdigest()[:12]


def _plain(code: CodeType) -> str:
    constants = [_plain(x) if isinstance(x, CodeType) else repr(x) for x in code.co_consts]
    return repr((code.co_code, code.co_names, code.co_varnames, constants))


class ResumedCall:
    """A call of a method that resumes its stream, in the callee: its keyword arguments, without dljob's own."""

    def __init__(self, instance: Any, mark: RpcMark, method: str, kwargs: dict[str, Any]) -> None:
        self._object = instance
        self._method = method
        self._hook = mark.hand_over
        self._wanted: tuple[Any, str] | None = kwargs.pop(VERSION_ARG, None)
        self._handed: bytes = kwargs.pop(HANDED_OVER_ARG, b"")
        self._kwargs = kwargs
        self._args: tuple[Any, ...] = ()
        self._made: list[Any] = []
        """Items so far, in case of a hook that asks for them."""
        self.next = len(kwargs[RECEIVED_ARG])
        """Position of the next item."""

    def other_version(self, name: str) -> str:
        """Return how this process differs from the one that the caller asks for; empty where it does not."""
        kind = type(self._object)
        if self._wanted is None or self._wanted == (version_of(self._object), code_of(kind)):
            return ""
        version, code = self._wanted
        if code != code_of(kind):
            return f"{name} runs other code of {kind.__name__}"
        return f"{name} holds version {version_of(self._object)!r}, and the stream began with {version!r}"

    def begin(self, args: tuple[Any, ...]) -> Any:
        """Call the method; returns its generator."""
        self._args = args
        if not self._hook:
            return getattr(self._object, self._method)(*args, **self._kwargs)
        # Looked up now: a name that is wrong is to fail the first call, not the first end of a rank.
        if not callable(getattr(self._object, self._hook, None)):
            raise TypeError(f"hand_over={self._hook!r}: {type(self._object).__name__} has no such method")
        return getattr(self._object, self._method)(*args, **self._kwargs, **{STATE_ARG: self._state_before()})

    def _state_before(self) -> Any:
        if not self._handed:
            return None
        version, code, state = wire.load(self._handed)
        # Of other weights or other code it would be wrong, as a cache of other keys and values.
        own_versions = version_of(self._object), code_of(type(self._object))
        return wire.load(state) if (version, code) == own_versions else None

    def stamp(self, item: Any) -> tuple[int, Any]:
        """Return position and version of the next item."""
        if self._hook:
            self._made.append(item)
        self.next += 1
        return self.next - 1, version_of(self._object)

    def state(self) -> bytes:
        """Return what the hook hands over, pickled with its versions; empty without a hook, or where it fails."""
        if not self._hook:
            return b""
        try:
            received = [*self._kwargs[RECEIVED_ARG], *self._made]
            hook_state = getattr(self._object, self._hook)(*self._args, **{**self._kwargs, RECEIVED_ARG: received})
            state = wire.dump(hook_state, f"the state of {self._method}")
        except Exception:  # noqa: BLE001 - the stream goes on without it
            print(f"[dljob] {self._method}: {self._hook} failed; it hands over no state", file=sys.stderr)  # noqa: T201
            traceback.print_exc()
            return b""
        return wire.dump((version_of(self._object), code_of(type(self._object)), state), self._method)


class Stamp:
    """Packs the items of a stream that resumes, each with its position and the version that made it."""

    def __init__(self, resumed: ResumedCall, pack: Callable[[Any], bytes]) -> None:
        self._resumed = resumed
        self._pack = pack

    def __call__(self, item: Any) -> tuple[int, Any, bytes]:
        """Return an item as it travels (`dljob.calls.resumption.WireItem`)."""
        packed = self._pack(item)
        return *self._resumed.stamp(item), packed
