"""Comments of a YAML text, and the fields at which they stand."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ruamel.yaml import YAML

from dljob.convert.source import SourceManifest
from dljob.spec.text.tree import Document, Loc


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment: its place in the text, and whether it has a line of its own."""

    line: int
    column: int
    text: str
    """With its '#'."""
    has_own_line: bool


END: Loc = ("<end>",)
"""Place of comments behind the last field of a document."""


@dataclass(frozen=True, slots=True)
class Attached:
    """A comment and its field; an empty `loc` is the document itself."""

    loc: Loc
    comment: Comment


def comments(text: str) -> list[Comment]:
    """Return the comments of a text that the parser has read: every '#' after a space, outside scalars."""
    spans = list(_scalars(text))
    all_comments: list[Comment] = []
    offset = at = 0
    for number, line in enumerate(text.split("\n"), 1):
        for column, letter in enumerate(line):
            index = offset + column
            # Spans are in the order of the text, so those that are over are never looked at again.
            while at < len(spans) and spans[at][1] <= index:
                at += 1
            inside = at < len(spans) and spans[at][0] <= index
            if letter == "#" and not inside and (column == 0 or line[column - 1] in " \t"):
                has_own_line = not line[:column].strip()
                all_comments.append(Comment(number, column + 1, line[column:].rstrip(), has_own_line))
                break
        offset += len(line) + 1
    return all_comments


def _scalars(text: str) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each scalar."""
    reader = cast("Any", YAML(typ="safe", pure=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for token in reader.scan(text):
            if hasattr(token, "plain"):
                yield token.start_mark.index, _end(text, token)


def _end(text: str, token: Any) -> int:  # noqa: ANN401 - ruamel's token, which has no types
    """Return the end of a scalar; a block scalar ends with the last line of its own, before comments behind it."""
    end = int(token.end_mark.index)
    if token.style not in ("|", ">"):
        return end
    begin = int(token.start_mark.index)
    lines = text[begin:end].split("\n")
    # The scanner goes on to the next token; a comment with less indentation than the text is no part of it.
    first = next((line for line in lines[1:] if line.strip()), "")
    deep = len(first) - len(first.lstrip())
    size = len(lines[0]) + 1
    for line in lines[1:]:
        if line.strip() and len(line) - len(line.lstrip()) < deep:
            break
        size += len(line) + 1
    return min(begin + size, end)


def attach(all_comments: Sequence[Comment], document: Document, first: int, last: int) -> list[Attached]:
    """Return the comments of a document with their fields.

    A comment at the end of a line belongs to the last key of that line, one with a line of its own to the next key.

    Args:
        all_comments: comments of the whole text.
        document: the document.
        first: its first line.
        last: its last line.
    """
    places = sorted(
        (mark.line, mark.column, loc)
        for loc, mark in {**document.values, **document.keys}.items()
        if loc and (loc in document.keys or isinstance(loc[-1], int))
    )
    attached: list[Attached] = []
    for comment in all_comments:
        if not first <= comment.line <= last:
            continue
        if comment.has_own_line:
            loc = next((loc for line, _, loc in places if line > comment.line), END)
            # What stands above the first key, such as a licence, is about the whole document.
            loc = () if places and loc == places[0][2] else loc
        else:
            loc = next((loc for line, _, loc in reversed(places) if line == comment.line), ())
            # Behind the end of a flow collection or of a text of several lines: the field that it ends.
            loc = loc or next((loc for line, _, loc in reversed(places) if line < comment.line), ())
        attached.append(Attached(loc, comment))
    return attached


def target(source: SourceManifest, loc: Loc) -> Loc:
    """Return the place in the DLJob of a field, or of the first carried field below it; empty where there is none."""
    if not loc:
        return ()
    if loc in source.places:
        return source.places[loc]
    fate = source.fate(loc)
    if fate.kind == "carried":
        return fate.to
    for leaf in source.leaves(loc):
        below = source.fate(leaf)
        if below.kind == "carried":
            return below.to
    return ()
