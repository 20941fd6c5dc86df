"""Which files of a folder stay behind: `.gitignore` and `.dljobignore`, read as git reads them. Pure.

Source: gitignore(5). The last pattern that matches decides; a folder that is ignored is not looked into.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

FILES = (".gitignore", ".dljobignore")
"""Read in this order, so that the second may take back (`!name`) what the first names."""
ALWAYS = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        ".venv",
        "__pycache__",
        "node_modules",
        ".ipynb_checkpoints",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".tox",
    }
)
"""Names that are never code of a job, wherever they are."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of an ignore file; `base` is the file's folder as an absolute path with a slash at its end."""

    base: str
    pattern: re.Pattern[str]
    keeps: bool
    """The line began with `!`: what matches is not ignored after all."""
    folders_only: bool


def rules(text: str, base: str) -> list[Rule]:
    """The rules of an ignore file in the folder `base`."""
    base = base.rstrip("/") + "/"
    return [rule for line in text.splitlines() if (rule := _rule(line, base))]


def ignored(path: str, *, folder: bool, by: Sequence[Rule]) -> bool:
    """Whether the file or folder at an absolute path is named by the rules."""
    if path.rsplit("/", 1)[-1] in ALWAYS:
        return True
    for rule in reversed(by):
        inside = path.startswith(rule.base) and (folder or not rule.folders_only)
        if inside and rule.pattern.fullmatch(path[len(rule.base) :]):
            return not rule.keeps
    return False


def _rule(line: str, base: str) -> Rule | None:
    text = re.sub(r"(?<!\\)\s+$", "", line)
    if not text or text.startswith("#"):
        return None
    keeps = text.startswith("!")
    text = text[1:] if keeps or text.startswith(("\\#", "\\!")) else text
    folders_only = text.endswith("/")
    text = text.rstrip("/")
    if not text:
        return None
    anywhere = "/" not in text
    body = _expression(text.lstrip("/"))
    try:
        return Rule(base, re.compile(f"(?:.*/)?{body}" if anywhere else body, re.DOTALL), keeps, folders_only)
    except re.error:
        return None  # git, too, matches nothing with a broken bracket


_PIECE = re.compile(r"\*\*/|/\*\*$|\*+|\?|\[!?\]?[^\]]*\]|\\.|.", re.DOTALL)


def _expression(glob: str) -> str:
    """A pattern as a regular expression: `*` and `?` stay within a name, `**` does not."""
    return "".join(_piece(match.group()) for match in _PIECE.finditer(glob))


def _piece(piece: str) -> str:
    if piece == "**/":
        return "(?:.*/)?"
    if piece == "/**":
        return "/.+"
    if piece.startswith("*"):
        return "[^/]*"
    if piece == "?":
        return "[^/]"
    if piece.startswith("[") and len(piece) > 1:
        inner = piece[1:-1]
        return f"[{'^/' + inner[1:] if inner.startswith('!') else inner}]"
    return re.escape(piece[-1])
