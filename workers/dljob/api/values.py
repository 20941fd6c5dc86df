"""From what users write in Python to what a spec holds: exact numbers, plain objects, entrypoints, close names."""

from __future__ import annotations

import difflib
import re
import shlex
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from decimal import Decimal, InvalidOperation
from enum import Enum
from pathlib import PurePath
from typing import TypeAlias, cast

from dljob.errors import UsageError

Number: TypeAlias = int | float | str | Decimal
"""What a count or a CPU may be written as; a float is taken as it prints, so 0.4 is four tenths."""

_DEEPEST = 32
_SPAN = re.compile(r"(\d+):(\d+)")
LONGEST_COUNT = 6
"""Digits of a number of ranks."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """'did you mean ...?' for a misspelt name, or the names there are."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"


def role_size(text: str) -> tuple[str, int]:
    """A role and a number of ranks, written as `trainer=4`.

    Raises:
        UsageError: it is not written so.
    """
    role, _, ranks = text.partition("=")
    if not role or not ranks.isascii() or not ranks.isdecimal() or len(ranks) > LONGEST_COUNT:
        raise UsageError(f"{text!r} is no role with its ranks", hint="write trainer=4")
    return role, int(ranks)


def refuse_unknown(call: str, unknown: Mapping[str, object], known: Iterable[str]) -> None:
    """Raise for the first keyword that a call does not know.

    Raises:
        UsageError: with the call and the nearest name.
    """
    for word in unknown:
        raise UsageError(f"{call} has no keyword {word!r}", hint=suggestion(word, known))


def exact(value: Number, call: str) -> str:
    """A number as a plain decimal string, without exponent or trailing zeros.

    Raises:
        UsageError: for what is no number, not finite or negative.
    """
    if isinstance(value, bool):
        raise UsageError(f"{call} takes a number, not {value!r}")
    try:
        number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    except (InvalidOperation, TypeError, ValueError):
        raise UsageError(f"{call} takes a number, not {value!r}") from None
    if not number.is_finite() or number < 0:
        raise UsageError(f"{call} takes a number that is not negative, not {value!r}")
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def share(value: Number, call: str) -> str | None:
    """The devices of one rank as the spec writes them: a whole number, or a share below one; None for zero.

    Raises:
        UsageError: for 1.5, or for a share of more than four digits.
    """
    text = exact(value, call)
    number = Decimal(text)
    if number == 0:
        return None
    if number != int(number) and number > 1:
        raise UsageError(f"{call}: {text} devices per rank", hint="take a whole number, or a share below 1")
    if "." in text and len(text.split(".")[1]) > 4:
        rounded = f"{number:.4f}"
        raise UsageError(f"{call}: {text} is finer than Ray's grain of 0.0001", hint=f"write {rounded}")
    return text


def cpus(value: Number, call: str) -> str:
    """CPUs as a quantity: a number, or text such as "500m" that the spec will check."""
    return value if isinstance(value, str) else exact(value, call)


def memory(value: object, call: str) -> str:
    """Memory as a quantity with its unit.

    Raises:
        UsageError: for a bare number, which some read as bytes and others as MB.
    """
    if isinstance(value, str) and not value.strip().isdigit():
        return value
    raise UsageError(f"{call}: memory {value!r} has no unit", hint=f'write memory="{value}Mi" or "...Gi"')


def memory_of(said: object, alias: object, call: str) -> str | None:
    """Memory that a call may be given as `memory=` or as `mem=`; None: neither.

    Raises:
        UsageError: It is given as both, or without a unit.
    """
    if said is not None and alias is not None:
        raise UsageError(f"{call} names memory twice: memory, mem", hint="keep one of them")
    value = alias if said is None else said
    return None if value is None else memory(value, call)


def one_of(value: str, known: Sequence[str], call: str) -> str:
    """One of the words there are.

    Raises:
        UsageError: It is none of them.
    """
    if value not in known:
        raise UsageError(f"{call}: {value!r}", hint=f"{', '.join(known[:-1])} or {known[-1]}")
    return value


def whole(value: object, call: str, least: int = 1) -> int:
    """A count.

    Raises:
        UsageError: for what is no integer or below `least`.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        hint = 'a range is for .nnodes("1:4") or .elastic(1, 4)' if isinstance(value, str) and ":" in value else ""
        raise UsageError(f"{call} takes a whole number, not {value!r}", hint=hint)
    if value < least:
        raise UsageError(f"{call} takes {least} or more, not {value}")
    return value


def span(value: object, call: str) -> tuple[int, int]:
    """The fewest and the most: of 4 it is 4 and 4, of "2:8" it is 2 and 8.

    Raises:
        UsageError: for what is neither.
    """
    found = _SPAN.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        count = whole(value, call)
        return count, count
    fewest, most = int(found[1]), int(found[2])
    if not 1 <= fewest <= most:
        raise UsageError(f"{call} takes the fewest and the most, not {value!r}", hint='write "2:8"')
    return fewest, most


def env_of(values: Mapping[str, object], call: str) -> dict[str, str]:
    """Environment variables; numbers become text.

    Raises:
        UsageError: for a value whose text nobody can be sure of (None, True, a list).
    """
    made: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float | PurePath):
            raise UsageError(f"{call}: {name}={value!r} is not text", hint=f'write {name}="..."')
        made[str(name)] = str(value)
    return made


def plain(value: object, path: str = "config", depth: int = 0) -> object:
    """A config as JSON-like data: dicts, Namespaces, dataclasses, and what looks like OmegaConf, to the bottom.

    Raises:
        UsageError: for a value that JSON cannot hold, with its path.
    """
    if depth > _DEEPEST:
        raise UsageError(f"{path} is nested deeper than {_DEEPEST} levels", hint="does it contain itself?")
    if value is None or isinstance(value, str | bool | int | float):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Enum):
        return plain(value.value, path, depth + 1)
    if isinstance(value, PurePath | Decimal):
        return str(value)
    if (members := _members(value)) is not None:
        return {str(k): plain(_at(members, k, path), f"{path}.{k}", depth + 1) for k in members}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes | bytearray):
        items = cast("Iterable[object]", value)
        return [plain(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(items)]
    raise UsageError(
        f"{path} holds a {type(value).__name__}, which JSON cannot", hint="pass a string, a number, a list or a dict"
    )


def _members(value: object) -> Mapping[object, object] | None:
    """The named parts of a value, or None when it has none."""
    if isinstance(value, Mapping):
        return cast("Mapping[object, object]", value)
    if isinstance(value, Namespace):
        return cast("Mapping[object, object]", vars(value))
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    return None


def _at(members: Mapping[object, object], key: object, path: str) -> object:
    """One part; OmegaConf resolves interpolations here, and may fail."""
    try:
        return members[key]
    except Exception as error:  # OmegaConf errors of any class become ours, with the path
        raise UsageError(f"{path}.{key} cannot be read: {error}") from error


def config_of(value: object, call: str) -> dict[str, object]:
    """A config object as a dict.

    Raises:
        UsageError: when it has no named parts.
    """
    made = plain(value)
    if not isinstance(made, dict):
        raise UsageError(f"{call} takes a dict, a Namespace or an OmegaConf object, not a {type(value).__name__}")
    return cast("dict[str, object]", made)


def entrypoint_of(text: object, call: str) -> tuple[dict[str, object], tuple[str, ...]]:
    """An entrypoint and its arguments: "pkg.mod.Name", "pkg.mod::Name", or "train.py --flag x".

    Raises:
        UsageError: for an empty one or one that is not text.
    """
    if not isinstance(text, str) or not text.strip():
        raise UsageError(
            f'{call} takes a dotted path such as "ppo.PolicyModel" or a script such as "train.py", not {text!r}'
        )
    words = shlex.split(text)
    if words[0].endswith(".py"):
        return {"module": words[0]}, tuple(words[1:])
    if len(words) > 1:
        raise UsageError(f"{call}: {text!r} is not one dotted path", hint="arguments go into .args(...)")
    return {"class": words[0].replace("::", ".")}, ()
