"""What `@rpc` says of a method, and what a role says of itself to those who call it."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dljob.calls.batch import PADS, Pad
from dljob.errors import UsageError

DEFAULT_TIMEOUT_S = 1800.0
"""A call's deadline unless the method or the caller says otherwise; as long as torch's for collectives."""
FOR_EVER_S = 1e9
"""Seconds from which there is no deadline, as with None: a lock cannot wait for much longer."""
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
    plain = {name: _PLAIN[name](value) if name in _PLAIN else value for name, value in changes.items()}
    made = replace(mark, **{_FIELD.get(name, name): value for name, value in plain.items()})
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


def seconds(value: Any, wanted: str = "seconds") -> float | None:
    """Seconds that a user gave as a number of any kind; None for None and for what is longer than anything lasts.

    Raises:
        UsageError: it is no number.
    """
    if value is None:
        return None
    try:
        made = float("nan" if isinstance(value, (bool, str, bytes)) else value)
    except (TypeError, ValueError, OverflowError):
        made = math.nan
    if math.isnan(made):
        raise UsageError(f"timeout={value!r}: wanted {wanted}, or None for no deadline")
    return None if made >= FOR_EVER_S else made


def _deadline(value: Any) -> float | None:
    wanted = "seconds above 0"
    made = seconds(value, wanted)
    if made is not None and made <= 0:
        raise UsageError(f"timeout={value!r}: wanted {wanted}, or None for no deadline")
    return made


def _dispatch(value: Any) -> str:
    if not isinstance(value, str):
        raise UsageError(f"dispatch={value!r}: wanted a name", hint=f"there are: {', '.join(DISPATCHES)}")
    return value


def _count(option: str, value: Any, also: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
        raise UsageError(f"{option}={value!r}: wanted a whole number from 1, or {also}")
    return operator.index(value)


def _concurrency(value: Any) -> int | None:
    return None if value is None else _count("concurrency", value, "None")


def _stream(value: Any) -> bool | int:
    return value if isinstance(value, bool) else _count("stream", value, "True")


def _mesh(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise UsageError(f"mesh={value!r}: wanted names of axes in one text, as in 'dp,cp'")
    return value


def _idempotent(value: Any) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"idempotent={value!r}: wanted True or False")
    return value


_FIELD = {"timeout": "timeout_s"}
_PLAIN: Mapping[str, Callable[[Any], Any]] = {
    "timeout": _deadline,
    "concurrency": _concurrency,
    "stream": _stream,
    "dispatch": _dispatch,
    "mesh": _mesh,
    "idempotent": _idempotent,
}
"""Options as plain values of Python, checked: they go on the wire, which knows no number of NumPy."""


def _one_of(option: str, value: object, known: Iterable[str]) -> None:
    names = tuple(known)
    if value in names:
        return
    close = difflib.get_close_matches(str(value), names, n=1)
    raise UsageError(
        f"{option}={value!r}: unknown",
        hint=f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names)}",
    )
