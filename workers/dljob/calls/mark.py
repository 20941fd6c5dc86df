"""Options of `@rpc` methods, their checks, and the service descriptor that a role sends to its callers."""

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
"""Default deadline of a call in seconds; the same as torch's default for collectives."""
MOST_AT_ONCE, MOST_IN_THREADS = 4096, 64
"""Most calls of an `async` method, and of another one that is no stream, that a rank runs at once."""
FOR_EVER_S = 1e9
"""Seconds from which there is no deadline, as with None: a lock cannot wait for much longer."""
DISPATCHES = ("all", "rank0", "each", "shard", "round_robin", "least_loaded", "owner", "hash:<parameter>")
COLLECTS = ("list", "first", "concat", "sum", "mean", "max", "as_completed", "none")
RESUMES = ("prefix",)
VERSIONS = ("any", "same")
ON_TIMEOUTS = ("raise", "restart")
UNPADDED = ("concat", "none")
"""Collects that work with `pad="auto"`: `concat` can remove the padded rows of the answer, `none` discards it."""


@dataclass(frozen=True, slots=True)
class RpcMark:
    """The options that `@rpc` attaches to a method."""

    idempotent: bool = False
    concurrency: int | None = None
    dispatch: str = "all"
    collect: str = "list"
    mesh: str | None = None
    pad: Pad = "uneven"
    timeout_s: float | None = DEFAULT_TIMEOUT_S
    hand_over: str = ""
    """Streams that resume only: the method that returns the state for the next callee when a rank ends by order."""
    versions: str = "any"
    """Streams that resume only: "same": a lost one goes on only where the version is the one that it began with."""
    stream: bool = False
    resume: str | None = None
    """Streams only: "prefix": after a loss the method is called again, elsewhere, with the items that came before."""
    on_timeout: str = "raise"
    """"restart": a callee that runs a call past its deadline hangs, and is restarted."""
    any_weights: bool = False
    """Whether it runs also while the rank's weights are stale."""
    parameters: tuple[str, ...] = ()
    """Names of the method's parameters after `self`, in which `hash:<parameter>` finds the position of its key."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes in `mesh`."""
        return tuple(name.strip() for name in self.mesh.split(",")) if self.mesh else ()


@dataclass(frozen=True, slots=True)
class ServiceDescriptor:
    """Description of a role for its callers, sent once: its methods, and the mesh of its ranks (empty without one)."""

    methods: Mapping[str, RpcMark] = field(default_factory=dict[str, RpcMark])
    mesh: Mapping[str, int] = field(default_factory=dict[str, int])


def changed(mark: RpcMark, changes: Mapping[str, Any], dispatches: Iterable[str], collects: Iterable[str]) -> RpcMark:
    """Return a mark with changed options, checked; `dispatches` and `collects` are the names that users registered.

    Raises:
        UsageError: an option is unknown or has a wrong value; the message names it.
    """
    # Converted first: the mark goes to callers, and the wire format cannot carry NumPy's numbers.
    plain = {name: _PLAIN[name](value) if name in _PLAIN else value for name, value in changes.items()}
    made = replace(mark, **{_FIELD.get(name, name): value for name, value in plain.items()})
    if made.hand_over and not made.resume:
        raise UsageError(f"hand_over={made.hand_over!r}: only a stream that resumes hands over its state")
    # Whether the method has the parameter shows at the call (`dispatch._key`), where its names are known.
    if not made.dispatch.startswith("hash:"):
        _one_of("dispatch", made.dispatch, (*DISPATCHES, *dispatches))
    elif not made.dispatch[5:].isidentifier():
        raise UsageError(f"dispatch={made.dispatch!r}: wanted the name of a parameter, as in 'hash:session'")
    _one_of("collect", made.collect, (*COLLECTS, *collects))
    _one_of("pad", made.pad, PADS)
    _one_of("versions", made.versions, VERSIONS)
    _one_of("on_timeout", made.on_timeout, ON_TIMEOUTS)
    if made.resume is not None:
        _one_of("resume", made.resume, RESUMES)
        if not made.stream:
            raise UsageError(
                f"resume={made.resume!r}: only a stream resumes", hint="@rpc(stream=True, resume='prefix')"
            )
    if made.pad == "auto" and made.collect not in UNPADDED:
        raise UsageError(
            f"pad='auto' with collect={made.collect!r}: repeated rows can be taken off a joined answer alone",
            hint=f"collect: {' or '.join(UNPADDED)}; or pad='uneven'",
        )
    return made


def seconds(value: Any, wanted: str = "seconds") -> float | None:
    """Convert a user's timeout of any numeric type to seconds; None for None and from FOR_EVER_S on.

    Raises:
        UsageError: the value is not a number.
    """
    if value is None:
        return None
    try:
        # `float` would take True for 1 s and the text "3" for 3 s: both are mistakes.
        made = float("nan" if isinstance(value, (bool, str, bytes)) else value)
    except (TypeError, ValueError, OverflowError):
        # OverflowError: a whole number beyond the range of floats.
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
    # A bool has `__index__` too, and True would count as 1.
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
        raise UsageError(f"{option}={value!r}: wanted a whole number from 1, or {also}")
    return operator.index(value)


def _concurrency(value: Any) -> int | None:
    count = None if value is None else _count("concurrency", value, "None")
    if count is not None and count > MOST_AT_ONCE:
        raise UsageError(f"concurrency={value!r}: wanted at most {MOST_AT_ONCE}, or None")
    return count


def _stream(value: Any) -> bool | int:
    return value if isinstance(value, bool) else _count("stream", value, "True")


def _mesh(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise UsageError(f"mesh={value!r}: wanted names of axes in one text, as in 'dp,cp'")
    return value


def _flag(option: str) -> Callable[[Any], bool]:
    def checked(value: Any) -> bool:
        if not isinstance(value, bool):
            raise UsageError(f"{option}={value!r}: wanted True or False")
        return value

    return checked


def _hand_over(value: Any) -> str:
    if not isinstance(value, str) or not (value.isidentifier() or not value):
        raise UsageError(f"hand_over={value!r}: wanted the name of a method of the class")
    return value


_FIELD = {"timeout": "timeout_s"}
_PLAIN: Mapping[str, Callable[[Any], Any]] = {
    "timeout": _deadline,
    "concurrency": _concurrency,
    "stream": _stream,
    "dispatch": _dispatch,
    "mesh": _mesh,
    "idempotent": _flag("idempotent"),
    "any_weights": _flag("any_weights"),
    "hand_over": _hand_over,
}
"""Option -> check and conversion to a plain Python value: the wire format cannot carry NumPy's numbers."""


def _one_of(option: str, value: object, known: Iterable[str]) -> None:
    names = tuple(known)
    if value in names:
        return
    close = difflib.get_close_matches(str(value), names, n=1)
    raise UsageError(
        f"{option}={value!r}: unknown",
        hint=f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names)}",
    )
