"""What `@rpc` says of a method, and what a role says of itself to those who call it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dljob.calls.batch import PADS, Pad
from dljob.errors import UsageError

DEFAULT_TIMEOUT_S = 1800.0
"""A call's deadline unless the method or the caller says otherwise; as long as torch's for collectives."""
DISPATCHES = ("all", "rank0", "each", "shard", "round_robin", "least_loaded", "owner", "hash:<parameter>")
COLLECTS = ("list", "first", "concat", "sum", "mean", "max", "as_completed", "none")
UNPADDED = ("concat", "none")
"""How answers may be collected where rows are padded: what the padding added can be taken off again, or is not kept."""


@dataclass(frozen=True, slots=True)
class RpcMark:
    """What `@rpc` wrote on a method."""

    idempotent: bool = False
    concurrency: int | None = None
    dispatch: str = "all"
    collect: str = "list"
    mesh: str | None = None
    pad: Pad = "uneven"
    timeout_s: float | None = DEFAULT_TIMEOUT_S
    stream: bool = False
    parameters: tuple[str, ...] = ()
    """The names of its parameters, after `self`: `hash:` finds its own among them."""

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that `mesh` names."""
        return tuple(name.strip() for name in self.mesh.split(",")) if self.mesh else ()


@dataclass(frozen=True, slots=True)
class Card:
    """What a role tells its callers of itself, once: its methods, and the mesh of its ranks; without one, none."""

    methods: Mapping[str, RpcMark] = field(default_factory=dict[str, RpcMark])
    mesh: Mapping[str, int] = field(default_factory=dict[str, int])


def changed(mark: RpcMark, changes: Mapping[str, Any], dispatches: Iterable[str], collects: Iterable[str]) -> RpcMark:
    """A mark with other options, as `@rpc(...)` and `.options(...)` name them; the names that are registered too.

    Raises:
        UsageError: an option is unknown, or its value wrong; it says which.
    """
    made = replace(mark, **{_FIELD.get(name, name): value for name, value in changes.items()})
    if (isinstance(made.timeout_s, (int, float)) and not made.timeout_s > 0) or isinstance(made.timeout_s, (bool, str)):
        raise UsageError(f"timeout={made.timeout_s!r}: wanted seconds above 0, or None for no deadline")
    if not made.dispatch.startswith("hash:"):
        _one_of("dispatch", made.dispatch, (*DISPATCHES, *dispatches))
    elif not made.dispatch[5:].isidentifier():
        raise UsageError(f"dispatch={made.dispatch!r}: wanted the name of a parameter, as in 'hash:session'")
    _one_of("collect", made.collect, (*COLLECTS, *collects))
    _one_of("pad", made.pad, PADS)
    if made.pad == "auto" and made.collect not in UNPADDED:
        raise UsageError(
            f"pad='auto' with collect={made.collect!r}: repeated rows can be taken off a joined answer alone",
            hint=f"collect: {' or '.join(UNPADDED)}; or pad='uneven'",
        )
    return made


_FIELD = {"timeout": "timeout_s"}


def _one_of(option: str, value: object, known: Iterable[str]) -> None:
    names = tuple(known)
    if value in names:
        return
    close = difflib.get_close_matches(str(value), names, n=1)
    raise UsageError(
        f"{option}={value!r}: unknown",
        hint=f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names)}",
    )
