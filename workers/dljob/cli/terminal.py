"""Text of users for a terminal: colours pass, a carriage return rewrites its line, other escapes are shown as text.

A rank's output, an exception's message and a metric's name are user data: an escape sequence in them could move the
cursor, set the clipboard or hide other output.
"""

from __future__ import annotations

import re

# SGR alone, and of bounded length: an endless sequence must not slow the search down.
_COLOUR = r"\x1b\[[0-9;:]{0,64}m"
_CONTROLS = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
"""C0 except tab and newline, DEL, C1, line separators, controls of text direction, and lone surrogates."""
_ODD = re.compile(f"({_COLOUR})|{_CONTROLS}")
_BREAKS = re.compile(r"[\n\t\v\f\r\x1c-\x1e\x85\u2028\u2029]+")
RESET = "\x1b[0m"


def safe(text: str, *, colours: bool) -> str:
    """Make a text safe to print: it changes nothing but colours; without `colours`, not even those."""
    # Most lines have nothing odd, and a search is cheaper than a substitution.
    if not _ODD.search(text):
        return text
    has_colours = False

    def shown(odd: re.Match[str]) -> str:
        nonlocal has_colours
        if odd[1]:
            has_colours = True
            return odd[1] if colours else ""
        return _escaped(odd[0])

    cleaned = _ODD.sub(shown, text)
    # A colour left open would colour the following lines of others.
    return cleaned + RESET if has_colours and colours and not cleaned.endswith(RESET) else cleaned


def unbroken(text: str) -> str:
    """Replace the line ends and tabs of a user's text by blanks: what follows one would look like a line of dljob's."""
    return _BREAKS.sub(" ", text)


def rewritten(line: str) -> str:
    """Return a line as a terminal would show it after carriage returns: the last non-empty rewrite."""
    return next((part for part in reversed(line.split("\r")) if part), "") if "\r" in line else line


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
