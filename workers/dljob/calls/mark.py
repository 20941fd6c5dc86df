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
MAX_ASYNC_CALLS, MAX_THREAD_CALLS = 4096, 64
"""Most calls of an `async` method, and of another one that is no stream, that a rank runs at once."""
NO_DEADLINE_S = 1e9
"""Seconds from which there is no deadline, as with None: a lock cannot wait for much longer."""
DISPATCHES = ("all", "rank0", "each", "shard", "round_robin", "least_loaded", "owner", "hash:<parameter>")
COLLECTS = ("list", "first", "concat", "sum", "mean", "max", "as_completed", "none")
RESUMES = ("prefix",)
VERSIONS = ("any", "same")
ON_TIMEOUTS = ("raise", "restart")
COLLECTS_WITH_PADDING = ("concat", "none")
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


def change_options(
    mark: RpcMark, options: Mapping[str, Any], user_dispatches: Iterable[str], user_collects: Iterable[str]
) -> RpcMark:
    """Return a mark with these options changed, checked.

    `user_dispatches` and `user_collects` are the names that users registered.

    Raises:
        UsageError: an option is unknown or has a wrong value; the message names it.
    """
    # Converted first: the mark goes to callers, and the wire format cannot carry NumPy's numbers.
    parsed_options = {name: _PARSERS[name](value) if name in _PARSERS else value for name, value in options.items()}
    mark = replace(mark, **{_FIELD_OF_OPTION.get(name, name): value for name, value in parsed_options.items()})
    if mark.hand_over and not mark.resume:
        raise UsageError(f"hand_over={mark.hand_over!r}: only a stream that resumes hands over its state")
    # Whether the method has the parameter shows at the call (`dispatch._key_argument`), where its names are known.
    if not mark.dispatch.startswith("hash:"):
        _check_choice("dispatch", mark.dispatch, (*DISPATCHES, *user_dispatches))
    elif not mark.dispatch.removeprefix("hash:").isidentifier():
        raise UsageError(f"dispatch={mark.dispatch!r}: wanted the name of a parameter, as in 'hash:session'")
    _check_choice("collect", mark.collect, (*COLLECTS, *user_collects))
    _check_choice("pad", mark.pad, PADS)
    _check_choice("versions", mark.versions, VERSIONS)
    _check_choice("on_timeout", mark.on_timeout, ON_TIMEOUTS)
    if mark.resume is not None:
        _check_choice("resume", mark.resume, RESUMES)
        if not mark.stream:
            raise UsageError(
                f"resume={mark.resume!r}: only a stream resumes", hint="@rpc(stream=True, resume='prefix')"
            )
    if mark.pad == "auto" and mark.collect not in COLLECTS_WITH_PADDING:
        raise UsageError(
            f"pad='auto' with collect={mark.collect!r}: repeated rows can be taken off a joined answer alone",
            hint=f"collect: {' or '.join(COLLECTS_WITH_PADDING)}; or pad='uneven'",
        )
    return mark


def parse_timeout(value: Any, expected: str = "seconds") -> float | None:
    """Convert a user's timeout of any numeric type to seconds; None for None and from NO_DEADLINE_S on.

    Raises:
        UsageError: the value is not a number.
    """
    if value is None:
        return None
    try:
        # `float` would take True for 1 s and the text "3" for 3 s: both are mistakes.
        timeout_s = float("nan" if isinstance(value, (bool, str, bytes)) else value)
    except (TypeError, ValueError, OverflowError):
        # OverflowError: a whole number beyond the range of floats.
        timeout_s = math.nan
    if math.isnan(timeout_s):
        raise UsageError(f"timeout={value!r}: wanted {expected}, or None for no deadline")
    return None if timeout_s >= NO_DEADLINE_S else timeout_s


def _parse_call_timeout(value: Any) -> float | None:
    expected = "seconds above 0"
    timeout_s = parse_timeout(value, expected)
    if timeout_s is not None and timeout_s <= 0:
        raise UsageError(f"timeout={value!r}: wanted {expected}, or None for no deadline")
    return timeout_s


def _parse_dispatch(value: Any) -> str:
    if not isinstance(value, str):
        raise UsageError(f"dispatch={value!r}: wanted a name", hint=f"there are: {', '.join(DISPATCHES)}")
    return value


def _parse_count(option: str, value: Any, alternative: str) -> int:
    # A bool has `__index__` too, and True would count as 1.
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
        raise UsageError(f"{option}={value!r}: wanted a whole number from 1, or {alternative}")
    return operator.index(value)


def _parse_concurrency(value: Any) -> int | None:
    count = None if value is None else _parse_count("concurrency", value, "None")
    if count is not None and count > MAX_ASYNC_CALLS:
        raise UsageError(f"concurrency={value!r}: wanted at most {MAX_ASYNC_CALLS}, or None")
    return count


def _parse_stream(value: Any) -> bool | int:
    return value if isinstance(value, bool) else _parse_count("stream", value, "True")


def _parse_mesh(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise UsageError(f"mesh={value!r}: wanted names of axes in one text, as in 'dp,cp'")
    return value


def _parse_bool(option: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{option}={value!r}: wanted True or False")
    return value


def _parse_hand_over(value: Any) -> str:
    if not isinstance(value, str) or not (value.isidentifier() or not value):
        raise UsageError(f"hand_over={value!r}: wanted the name of a method of the class")
    return value


_FIELD_OF_OPTION = {"timeout": "timeout_s"}
_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "timeout": _parse_call_timeout,
    "concurrency": _parse_concurrency,
    "stream": _parse_stream,
    "dispatch": _parse_dispatch,
    "mesh": _parse_mesh,
    "idempotent": lambda value: _parse_bool("idempotent", value),
    "any_weights": lambda value: _parse_bool("any_weights", value),
    "hand_over": _parse_hand_over,
}
"""Option -> check and conversion to a plain Python value: the wire format cannot carry NumPy's numbers."""


def _check_choice(option: str, value: object, choices: Iterable[str]) -> None:
    names = tuple(choices)
    if value in names:
        return
    similar_names = difflib.get_close_matches(str(value), names, n=1)
    raise UsageError(
        f"{option}={value!r}: unknown",
        hint=f"did you mean {similar_names[0]!r}?" if similar_names else f"there are: {', '.join(names)}",
    )
