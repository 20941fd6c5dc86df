"""Ignore rules of a code folder: `.gitignore` and `.dljobignore`, read as git reads them. Pure.

Source: gitignore(5); `pathspec` parses the patterns. The last matching pattern decides. An ignored folder is not
entered, so that a pattern applies to the file or folder that it names, not to the contents.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pathspec.patterns.gitignore import GitIgnorePatternError
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

FILES = (".gitignore", ".dljobignore")
"""Names of ignore files, in reading order: the second may re-include (`!name`) names that the first ignores."""
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
"""Names that never hold a job's code, in any folder."""
_CLASSES = {
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "alnum": "a-zA-Z0-9",
    "lower": "a-z",
    "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}
_CLASS = re.compile(r"\[:(\w+):\]")
"""Character classes within a bracket, which pathspec 1.1 does not support."""
_STARS = re.compile(r"\*{3,}")
"""Three or more stars, which git reads as two."""
_BRACKET = re.compile(r"(\\.)|\[(\^?)(\]?[^\]\\]*(?:\\.[^\]\\]*)*\])")
"""A bracket, or an escaped character. A bracket matches no slash; negated ones of pathspec 1.1 do."""
_INSIDE = "(?P<ps_d>/)"
"""Text that pathspec 1.1 puts after a folder's name, so that the pattern also matches the folder's contents."""


@dataclass(frozen=True, slots=True)
class IgnorePattern:
    """One line of an ignore file; `base` is the file's folder as an absolute path with a trailing slash."""

    base: str
    pattern: re.Pattern[str]
    keeps: bool
    """Whether the line began with `!`, which re-includes what earlier lines ignored."""

    def names(self, path: str) -> bool:
        """Whether the line matches a path relative to `base`; folders end with a slash."""
        match = self.pattern.search(path)
        if match is None:
            return False
        within = self.pattern.pattern.endswith("/")  # `a/**` matches the contents of a folder, not the folder itself
        return not (within and match.end() == len(path))


def rules(text: str, base: str) -> list[IgnorePattern]:
    """Parse an ignore file of the folder `base`."""
    base = base.rstrip("/") + "/"
    patterns: list[IgnorePattern] = []
    for line in text.split("\n"):
        try:
            with warnings.catch_warnings(action="ignore", category=FutureWarning):  # about "[[" in a bracket
                read: Any = GitIgnoreSpecPattern(_STARS.sub("**", _CLASS.sub(_class, line.removesuffix("\r"))))
                if read.include is not None:
                    patterns.append(IgnorePattern(base, _without_contents(read.regex.pattern), not read.include))
        except (GitIgnorePatternError, re.error):
            continue  # an invalid pattern matches nothing in git either
    return patterns


def _without_contents(expression: str) -> re.Pattern[str]:
    """Restrict an expression of pathspec to the file or folder that the line names, without its contents."""
    trimmed = _BRACKET.sub(lambda match: f"[^/{match[3]}" if match[2] else match[0], expression)
    return re.compile(trimmed.replace(_INSIDE, "/$"), re.DOTALL)


def _class(match: re.Match[str]) -> str:
    return _CLASSES.get(match[1], match[0])


def ignored(path: str, *, folder: bool, by: Sequence[IgnorePattern]) -> bool:
    """Whether rules ignore the file or folder at an absolute path; the last rule that matches decides."""
    # Before the rules, so that no `!name` can re-include them.
    if path.rsplit("/", 1)[-1] in ALWAYS:
        return True
    slashed_path = f"{path}/" if folder else path
    for rule in reversed(by):
        if path.startswith(rule.base) and rule.names(slashed_path[len(rule.base) :]):
            return not rule.keeps
    return False
