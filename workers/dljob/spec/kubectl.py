"""What kubectl reads as something else than we do: it takes plain scalars as YAML 1.1 has them, we as 1.2.

Of both the same file must make the same job, so what differs is refused. What it reads was tried with kubectl 1.36, by
`kubectl label --local -o json`; it is go-yaml 2 there, which knows only these spellings of a boolean.
"""

from __future__ import annotations

import re

_TRUE = frozenset({"y", "Y", "yes", "Yes", "YES", "on", "On", "ON"})
_FALSE = frozenset({"n", "N", "no", "No", "NO", "off", "Off", "OFF"})
_OCTAL = re.compile(r"[-+]?0[0-7_]+")
_CAPITAL = re.compile(r"[-+]?0(X[0-9a-fA-F]+|O[0-7]+|B[01]+)")


def differs(text: str, *, number: bool) -> tuple[str, str]:
    """What kubectl makes of a plain scalar that is a whole number or a text to us, and what to write; "": the same."""
    if number:
        ours, theirs = _octal(text)
        return ("", "") if ours == theirs else (str(theirs), f"write {ours} or {theirs}")
    if text in _TRUE or text in _FALSE:
        word = "true" if text in _TRUE else "false"
        return word, f'write "{text}" or {word}'
    if _CAPITAL.fullmatch(text):
        value = int(text, 0)
        return str(value), f'write "{text}" or {value}'
    return "", ""


def _octal(text: str) -> tuple[int, int]:
    """A whole number that begins with 0, as we read it and as kubectl does; (0, 0) for any other."""
    plain = text.replace("_", "")
    return (int(plain), int(plain, 8)) if _OCTAL.fullmatch(text) and len(plain) <= 64 else (0, 0)
