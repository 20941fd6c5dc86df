"""Changes of single values in a YAML or JSON text, whose comments, order, quotes and line ends stay as they are."""

from __future__ import annotations

import copy
import json
import warnings
from typing import Any, cast

from pydantic import JsonValue
from ruamel.yaml import YAML

from dljob.errors import UsageError
from dljob.spec.text import emit, tree
from dljob.spec.text.tree import Document, Loc, Position
from dljob.spec.text.words import path_of

_BY_HAND = "change it by hand"


def with_value(text: str, index: int, loc: Loc, value: str | int) -> str:
    """Return the text with a value set, in place or as a new key; mappings around it are made where they are missing.

    Args:
        text: the whole text, without errors.
        index: number of the document in it, as `tree.read` counts.
        loc: place of the value in that document.
        value: the value.

    Raises:
        UsageError: the change cannot be made without changing something else, as in a value that an anchor shares.
    """
    documents = tree.read(text)
    document = documents[index]
    try:
        edited = _Edit(text, document).set(loc, value)
    except _NoPlaceError as error:
        raise UsageError(f"{path_of(loc)}: {error}", hint=_BY_HAND) from None
    expected_data = [item.data for item in documents]
    expected_data[index] = _with(document.data, loc, value)
    edited_documents = tree.read(edited)
    # The guard of all above: nothing but this value may differ.
    if [item.data for item in edited_documents] != expected_data or any(item.faults for item in edited_documents):
        raise UsageError(
            f"{path_of(loc)}: it cannot be changed here alone: an anchor or a merge shares it", hint=_BY_HAND
        )
    return edited


class _NoPlaceError(Exception):
    """Raised where no place for a value is found."""


class _Edit:
    def __init__(self, text: str, document: Document) -> None:
        self._text = text
        self._document = document
        self._starts = [0]
        for line in text.split("\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    def set(self, loc: Loc, value: str | int) -> str:
        if loc in self._document.values:
            return self._replaced(loc, value)
        parent = loc[:-1]
        while parent not in self._document.values:
            parent = parent[:-1]
        rest: Any = value
        for name in reversed(loc[len(parent) + 1 :]):
            rest = {str(name): rest}
        return self._added(parent, str(loc[len(parent)]), rest)

    def _replaced(self, loc: Loc, value: str | int) -> str:
        begin = self._at(self._document.values[loc])
        end = next((end for first, end in _scalars(self._text) if first == begin), None)
        if end is None:
            raise _NoPlaceError("it is not a plain value")
        old = self._text[begin:end]
        new = json.dumps(str(value)) if old[:1] in "\"'" and isinstance(value, str) else _scalar(value)
        return self._text[:begin] + new + self._text[end:]

    def _added(self, parent: Loc, key: str, value: JsonValue) -> str:
        begin = self._at(self._document.values[parent])
        if self._text[begin : begin + 1] == "{":
            return self._added_in_braces(begin, key, value)
        children = [loc for loc in self._document.keys if loc[:-1] == parent and isinstance(loc[-1], str)]
        if not children:
            raise _NoPlaceError(f"{path_of(parent)} holds no key")
        first = self._document.keys[children[0]]
        pad = " " * (first.column - 1)
        end = "\r\n" if "\r\n" in self._text else "\n"
        lines = emit.to_yaml({key: value}).splitlines()
        # Behind a value that ends on its line: what stands above a key may be its comment.
        for loc in reversed(children):
            behind = self._behind(loc)
            if behind is not None:
                last = "" if behind > 0 and self._text[behind - 1 : behind] == "\n" else end
                return (
                    self._text[:behind] + last + end.join(f"{pad}{line}" for line in lines) + end + self._text[behind:]
                )
        at = self._at(first)
        return self._text[:at] + (end + pad).join(lines) + end + pad + self._text[at:]

    def _behind(self, loc: Loc) -> int | None:
        """Return where the next line begins behind a key with a plain value; None for values of several lines."""
        line = self._document.keys[loc].line
        value_offset = self._at(self._document.values[loc])
        span = next((end for first, end in _scalars(self._text) if first == value_offset), None)
        if (
            span is None
            or self._document.values[loc].line != line
            or "\n" in self._text[value_offset:span].rstrip("\r\n")
        ):
            return None
        return min(self._starts[line], len(self._text))

    def _added_in_braces(self, begin: int, key: str, value: JsonValue) -> str:
        json_text = self._text.lstrip()[:1] == "{"
        name, data = (json.dumps(key), json.dumps(value)) if json_text else (key, _flow(value))
        comma = "" if self._text[begin + 1 :].lstrip()[:1] == "}" else ", "
        return f"{self._text[: begin + 1]}{name}: {data}{comma}{self._text[begin + 1 :]}"

    def _at(self, mark: Position) -> int:
        return self._starts[mark.line - 1] + mark.column - 1


def _flow(value: JsonValue) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(inner)}" for key, inner in value.items()) + "}"
    return emit.to_yaml(value).strip()


def _scalar(value: str | int) -> str:
    return emit.to_yaml(value).strip()


def _scalars(text: str) -> list[tuple[int, int]]:
    """Return begin and end of each scalar of a text that the parser has read."""
    reader = cast("Any", YAML(typ="safe", pure=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            (int(token.start_mark.index), int(token.end_mark.index))
            for token in reader.scan(text)
            if hasattr(token, "plain")
        ]


def _with(data: JsonValue, loc: Loc, value: str | int) -> JsonValue:
    copied = copy.deepcopy(data)
    place: Any = copied
    for part in loc[:-1]:
        if isinstance(part, str) and part not in place:
            place[part] = {}
        place = place[part]
    place[loc[-1]] = value
    return copied
