"""What made an item of a stream that resumes: the weights that the callee holds, and the code of its class."""

from __future__ import annotations

import functools
import hashlib
from types import CodeType, FunctionType
from typing import Any

from dljob.runtime.process.worker_context import held_versions

OWN = "weights_version"
"""Attribute by which a class says its version itself, as one that loads weights by other ways than a WeightChannel."""


def version_of(instance: Any) -> Any:
    """Return the version of an object's weights: its own word, else the channels' versions that this process holds."""
    own = getattr(instance, OWN, None)
    return dict(held_versions) if own is None else own


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
