"""Plain data as YAML that parsers of YAML 1.1 and 1.2 read back the same: block style, keys in their order."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from pydantic import JsonValue

# Only texts that no YAML parser could take for anything else stay without quotes.
_PLAIN = re.compile(r"[A-Za-z/]([A-Za-z0-9_./: -]*[A-Za-z0-9_./-])?|[0-9]+[KMGTP]i")
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan", "inf"})
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def to_yaml(value: JsonValue) -> str:
    """Return YAML of mappings, sequences, strings, numbers, booleans and None; it ends with a newline."""
    return "\n".join(_lines(value, 0)) + "\n"


def _lines(value: JsonValue, depth: int) -> Iterator[str]:
    pad = "  " * depth
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _entry(f"{pad}{_scalar(key)}:", item, depth)
    elif isinstance(value, list) and value:
        for item in value:
            # A nested block starts on the line of its dash, so its first line loses its indentation.
            if isinstance(item, dict | list) and item:
                first, *rest = _lines(item, depth + 1)
                yield f"{pad}- {first.removeprefix(pad + '  ')}"
                yield from rest
            else:
                yield f"{pad}- {_scalar(item)}"
    else:
        yield f"{pad}{_scalar(value)}"


def _entry(head: str, item: JsonValue, depth: int) -> Iterator[str]:
    if isinstance(item, dict) and item:
        yield head
        yield from _lines(item, depth + 1)
    elif isinstance(item, list) and item:
        yield head
        # A list stays at the indentation of its key, as kubectl prints it.
        yield from _lines(item, depth)
    else:
        yield f"{head} {_scalar(item)}"


def _scalar(value: JsonValue) -> str:
    if value is None:
        return "null"
    # Before int: a bool is an int in Python.
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, str):
        # A colon with a space would begin a mapping.
        plain = _PLAIN.fullmatch(value) and ": " not in value and value.lower() not in _WORDS
        return value if plain else _quoted(value)
    return "{}" if isinstance(value, dict) else "[]"


def _float(value: float) -> str:
    """Format a float with a dot before the exponent: YAML 1.1 reads one without it as a string."""
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    text = repr(value)
    digits, mark, exponent = text.partition("e")
    return f"{digits}{'' if '.' in digits else '.0'}{mark}{exponent}"


def _quoted(text: str) -> str:
    return '"' + "".join(_ESCAPES.get(letter) or _letter(letter) for letter in text) + '"'


def _letter(letter: str) -> str:
    # YAML allows no control characters in a text.
    if letter == " " or letter.isprintable():
        return letter
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
