"""Conversion of Python values to those of a spec: exact numbers, plain objects, entrypoints, close names."""

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

from dljob.errors import NotFoundError, UsageError

Number: TypeAlias = int | float | str | Decimal
"""Types of a count or of CPUs. A float is taken as it prints, so 0.4 is exactly four tenths."""

_DEEPEST = 32
_SPAN = re.compile(r"(\d+):(\d+)")
LONGEST_COUNT = 6
"""Most digits in a number of ranks."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return "did you mean ...?" for a misspelt name, or the list of known names."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"


def role_size(text: str) -> tuple[str, int]:
    """Parse a role and a number of ranks, written as `trainer=4`.

    Raises:
        UsageError: the text has another form.
    """
    role, _, ranks = text.partition("=")
    # `isdecimal` alone accepts digits of other scripts.
    if not role or not ranks.isascii() or not ranks.isdecimal() or len(ranks) > LONGEST_COUNT:
        raise UsageError(f"{text!r} is not a role with a number of ranks", hint=f"write {role or 'trainer'}=4")
    return role, int(ranks)


def check_target(job: str, sizes: Mapping[str, int], target: str) -> None:
    """Check that a job has a target: job, a role ("rollout"), or a rank ("rollout/2").

    Args:
        job: the job's name.
        sizes: its ranks by role.
        target: the target.

    Raises:
        NotFoundError: it has not; the hint names the nearest role, or the role's ranks.
    """
    role, slash, rank = target.partition("/")
    if target == "job" or (role in sizes and (not slash or (rank.isdecimal() and int(rank) < sizes[role]))):
        return
    hint = f"{role}/0 to {role}/{sizes[role] - 1}" if role in sizes else suggestion(role, [*sizes, "job"])
    raise NotFoundError(f"job {job} has no {target!r}", hint=hint)


def refuse_unknown(call: str, unknown: Mapping[str, object], known: Iterable[str]) -> None:
    """Refuse keywords that a call does not know; name the first, and the nearest known one.

    Raises:
        UsageError: with the call and the nearest name.
    """
    for word in unknown:
        raise UsageError(f"{call} has no keyword {word!r}", hint=suggestion(word, known))


def exact(value: Number, call: str) -> str:
    """Convert a number to a plain decimal string, without exponent or trailing zeros.

    Raises:
        UsageError: the value is no number, not finite, or negative.
    """
    # bool is an int in Python: True would become one device.
    if isinstance(value, bool):
        raise UsageError(f"{call} takes a number, not {value!r}")
    try:
        # repr first: Decimal(0.1) would be 0.1000000000000000055...
        number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    except (InvalidOperation, TypeError, ValueError):
        raise UsageError(f"{call} takes a number, not {value!r}") from None
    if not number.is_finite() or number < 0:
        raise UsageError(f"{call} takes a number that is not negative, not {value!r}")
    text = format(number, "f")
    # Without a point, zeros at the end belong to the number.
    return text.rstrip("0").rstrip(".") if "." in text else text


def share(value: Number, call: str) -> str | None:
    """Convert the devices of one rank to the spec's form: a whole number, or a share below one; None for zero.

    Raises:
        UsageError: 1.5, or a share with more than four decimals.
    """
    text = exact(value, call)
    number = Decimal(text)
    if number == 0:
        return None
    if number != int(number) and number > 1:
        raise UsageError(f"{call}: {text} devices per rank", hint="take a whole number, or a share below 1")
    # Ray counts resources in units of 1/10000; a finer share would be rounded, and shares no longer add up to 1.
    if "." in text and len(text.split(".")[1]) > 4:
        rounded = f"{number:.4f}"
        raise UsageError(f"{call}: {text} is finer than Ray's grain of 0.0001", hint=f"write {rounded}")
    return text


def cpus(value: Number, call: str) -> str:
    """Convert CPUs to a quantity; text such as "500m" is left for the spec to check."""
    return value if isinstance(value, str) else exact(value, call)


def memory(value: object, call: str) -> str:
    """Check that a memory quantity has its unit.

    Raises:
        UsageError: a bare number: some tools read it as bytes, others as MB.
    """
    if isinstance(value, str) and not value.strip().isdigit():
        return value
    raise UsageError(f"{call}: memory {value!r} has no unit", hint=f'write memory="{value}Mi" or "...Gi"')


def memory_of(quantity: object, alias: object, call: str) -> str | None:
    """Return the memory given to a call as `memory=` or as `mem=`; None when neither was given.

    Raises:
        UsageError: both were given, or the unit is missing.
    """
    if quantity is not None and alias is not None:
        raise UsageError(f"{call} names memory twice: memory, mem", hint="keep one of them")
    value = alias if quantity is None else quantity
    return None if value is None else memory(value, call)


def one_of(value: str, known: Sequence[str], call: str) -> str:
    """Check that a word is one of those known.

    Raises:
        UsageError: it is not.
    """
    if value not in known:
        raise UsageError(f"{call}: {value!r}", hint=f"{', '.join(known[:-1])} or {known[-1]}")
    return value


def check_count(value: object, call: str, least: int = 1) -> int:
    """Check a count.

    Raises:
        UsageError: it is no integer, or below `least`.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        hint = 'a range is for .nnodes("1:4") or .elastic(1, 4)' if isinstance(value, str) and ":" in value else ""
        raise UsageError(f"{call} takes a whole number, not {value!r}", hint=hint)
    if value < least:
        raise UsageError(f"{call} takes {least} or more, not {value}")
    return value


def span(value: object, call: str) -> tuple[int, int]:
    """Parse a minimum and a maximum: 4 gives (4, 4), "2:8" gives (2, 8).

    Raises:
        UsageError: the value has neither form.
    """
    match = _SPAN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        count = check_count(value, call)
        return count, count
    fewest, most = int(match[1]), int(match[2])
    if not 1 <= fewest <= most:
        raise UsageError(f"{call} takes the fewest and the most, not {value!r}", hint='write "2:8"')
    return fewest, most


def env_of(values: Mapping[str, object], call: str) -> dict[str, str]:
    """Convert environment variables; numbers become text.

    Raises:
        UsageError: a value without an obvious text (None, True, a list).
    """
    variables: dict[str, str] = {}
    for name, value in values.items():
        # "True" is no obvious text: programs expect 1, true or yes.
        if isinstance(value, bool) or not isinstance(value, str | int | float | PurePath):
            raise UsageError(f"{call}: {name}={value!r} is not text", hint=f'write {name}="..."')
        variables[str(name)] = str(value)
    return variables


def plain(value: object, path: str = "config", depth: int = 0) -> object:
    """Convert a config to JSON-like data, recursively: dicts, Namespaces, dataclasses, and what resembles OmegaConf.

    Raises:
        UsageError: JSON cannot hold a value; the message names its path.
    """
    # Before Python's own recursion limit: a config that contains itself gets a message with its path.
    if depth > _DEEPEST:
        raise UsageError(f"{path} is nested deeper than {_DEEPEST} levels", hint="does it contain itself?")
    # A config must arrive as plain JSON: a subclass of text would come back as another type.
    if value is None or isinstance(value, str | bool | int | float):
        return value.value if isinstance(value, Enum) else value  # a member of a StrEnum is a str, and an Enum
    if isinstance(value, Enum):
        return plain(value.value, path, depth + 1)
    if isinstance(value, PurePath | Decimal):
        return str(value)
    if (members := _members(value)) is not None:
        return {str(k): plain(_at(members, k, path), f"{path}.{k}", depth + 1) for k in members}
    # Bytes are a sequence of numbers to Python, but no list to the user.
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes | bytearray):
        items = cast("Iterable[object]", value)
        return [plain(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(items)]
    raise UsageError(
        f"{path} holds a {type(value).__name__}, which JSON cannot", hint="pass a string, a number, a list or a dict"
    )


def _members(value: object) -> Mapping[object, object] | None:
    """Return the named parts of a value, or None when it has none."""
    # OmegaConf's DictConfig is a Mapping as well, so dljob needs no import of omegaconf.
    if isinstance(value, Mapping):
        return cast("Mapping[object, object]", value)
    if isinstance(value, Namespace):
        return cast("Mapping[object, object]", vars(value))
    # `is_dataclass` is also true of the class itself, which has no values.
    if is_dataclass(value) and not isinstance(value, type):
        # Not `asdict`: it copies recursively, and `plain` must see the parts to name their paths.
        return {f.name: getattr(value, f.name) for f in fields(value)}
    return None


def _at(members: Mapping[object, object], key: object, path: str) -> object:
    """Return one part; OmegaConf resolves interpolations here, and may fail."""
    try:
        return members[key]
    except Exception as error:  # OmegaConf errors of any class become ours, with the path
        raise UsageError(f"{path}.{key} cannot be read: {error}") from error


def config_of(value: object, call: str) -> dict[str, object]:
    """Convert a config object to a dict.

    Raises:
        UsageError: it has no named parts.
    """
    config = plain(value)
    if not isinstance(config, dict):
        raise UsageError(f"{call} takes a dict, a Namespace or an OmegaConf object, not a {type(value).__name__}")
    return cast("dict[str, object]", config)


def entrypoint_of(text: object, call: str) -> tuple[dict[str, object], tuple[str, ...]]:
    """Parse an entrypoint and its arguments: "pkg.mod.Name", "pkg.mod::Name", or "train.py --flag x".

    Raises:
        UsageError: the text is empty, or not text.
    """
    # A class or function object is refused as well: the job runs elsewhere, and finds code only by its name.
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
