"""Scalars that kubectl reads otherwise than dljob: kubectl follows YAML 1.1, dljob 1.2.

A file must make the same job through both, so dljob refuses such scalars. kubectl's readings were measured with kubectl
1.36 by `kubectl label --local -o json`; it uses go-yaml 2, which knows only these spellings of a boolean.
"""

from __future__ import annotations

import re

_TRUE = frozenset({"y", "Y", "yes", "Yes", "YES", "on", "On", "ON"})
_FALSE = frozenset({"n", "N", "no", "No", "NO", "off", "Off", "OFF"})
# A leading 0 means octal in YAML 1.1 and nothing in YAML 1.2.
_OCTAL = re.compile(r"[-+]?0[0-7_]+")
# Numbers with a capital prefix are texts in YAML 1.2.
_CAPITAL = re.compile(r"[-+]?0(X[0-9a-fA-F]+|O[0-7]+|B[01]+)")


def differs(text: str, *, number: bool) -> tuple[str, str]:
    """Return (kubectl's value, hint) of a plain scalar that dljob reads as a number or text; ("", "") if they agree."""
    if number:
        own_value, kubectl_value = _octal(text)
        return ("", "") if own_value == kubectl_value else (str(kubectl_value), f"write {own_value} or {kubectl_value}")
    if text in _TRUE or text in _FALSE:
        word = "true" if text in _TRUE else "false"
        return word, f'write "{text}" or {word}'
    if _CAPITAL.fullmatch(text):
        value = int(text, 0)
        return str(value), f'write "{text}" or {value}'
    return "", ""


def _octal(text: str) -> tuple[int, int]:
    """Return the values of a whole number with a leading 0 for dljob and for kubectl; (0, 0) for any other text."""
    plain = text.replace("_", "")
    # Longer ones are refused as numbers anyway (`tree._number`).
    return (int(plain), int(plain, 8)) if _OCTAL.fullmatch(text) and len(plain) <= 64 else (0, 0)
