"""Comments of a YAML text, and the fields at which they stand."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ruamel.yaml import YAML

from dljob.spec.text.tree import Document, Loc


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment: its place in the text, and whether it has a line of its own."""

    line: int
    column: int
    text: str
    """With its '#'."""
    has_own_line: bool


END_OF_DOCUMENT: Loc = ("<end>",)
"""Stand-in for the field of comments behind the last field of a document."""


@dataclass(frozen=True, slots=True)
class AttachedComment:
    """A comment and its field in the source; an empty `field_loc` is the document itself."""

    field_loc: Loc
    comment: Comment


def read_comments(text: str) -> list[Comment]:
    """Return the comments of a YAML text without syntax faults: every '#' after a space, outside scalars."""
    scalars = list(_scalar_spans(text))
    all_comments: list[Comment] = []
    line_offset = scalar_index = 0
    for line_number, line in enumerate(text.split("\n"), 1):
        for column, letter in enumerate(line):
            offset = line_offset + column
            # Scalars are in the order of the text, so those that have ended are never looked at again.
            while scalar_index < len(scalars) and scalars[scalar_index].stop <= offset:
                scalar_index += 1
            in_scalar = scalar_index < len(scalars) and scalars[scalar_index].start <= offset
            if letter == "#" and not in_scalar and (column == 0 or line[column - 1] in " \t"):
                has_own_line = not line[:column].strip()
                all_comments.append(Comment(line_number, column + 1, line[column:].rstrip(), has_own_line))
                break
        line_offset += len(line) + 1
    return all_comments


def _scalar_spans(text: str) -> Iterator[range]:
    """Yield the offsets of each scalar in a text."""
    reader = cast("Any", YAML(typ="safe", pure=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for token in reader.scan(text):
            if hasattr(token, "plain"):
                yield range(token.start_mark.index, _end_of_scalar(text, token))


def _end_of_scalar(text: str, token: Any) -> int:  # noqa: ANN401 - ruamel's token, which has no types
    """Return the offset behind a scalar; a block scalar ends with its own last line, before comments behind it."""
    end = int(token.end_mark.index)
    if token.style not in ("|", ">"):
        return end
    begin = int(token.start_mark.index)
    header, *lines = text[begin:end].split("\n")
    # The scanner goes on to the next token; a comment with less indentation than the text is no part of it.
    first_line = next((line for line in lines if line.strip()), "")
    indentation = len(first_line) - len(first_line.lstrip())
    length = len(header) + 1
    for line in lines:
        if line.strip() and len(line) - len(line.lstrip()) < indentation:
            break
        length += len(line) + 1
    return min(begin + length, end)


def attach_comments(
    all_comments: Sequence[Comment], document: Document, first_line: int, last_line: int
) -> list[AttachedComment]:
    """Return the comments of a document, among those of the whole text, with their fields.

    A comment at the end of a line belongs to the last key of that line, one with a line of its own to the next key.
    """
    fields = sorted(
        (mark.line, mark.column, loc)
        for loc, mark in {**document.values, **document.keys}.items()
        if loc and (loc in document.keys or isinstance(loc[-1], int))
    )
    attached: list[AttachedComment] = []
    for comment in all_comments:
        if not first_line <= comment.line <= last_line:
            continue
        if comment.has_own_line:
            loc = next((loc for line, _, loc in fields if line > comment.line), END_OF_DOCUMENT)
            # A comment above the first key, such as a licence, is about the whole document.
            loc = () if fields and loc == fields[0][2] else loc
        else:
            loc = next((loc for line, _, loc in reversed(fields) if line == comment.line), ())
            # Behind the end of a flow collection or of a text of several lines: the field that it ends.
            loc = loc or next((loc for line, _, loc in reversed(fields) if line < comment.line), ())
        attached.append(AttachedComment(loc, comment))
    return attached
