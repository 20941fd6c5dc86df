"""A document to convert: its fields with their places, and what became of each.

A conversion records for every field whether it is carried, harmless or dropped. A field of which nobody said anything
is dropped as unknown, so that no field of a newer version can get lost in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Literal, TypeAlias, cast

from pydantic import JsonValue

from dljob.spec.text import tree
from dljob.spec.text.tree import Document, Loc
from dljob.spec.text.words import path_of

Kind: TypeAlias = Literal["carried", "harmless", "dropped"]

_TYPE_WORDS: dict[type, str] = {
    str: "a text",
    int: "a number",
    float: "a number",
    bool: "a switch",
    list: "a list",
    dict: "a mapping",
}
UNKNOWN_FIELD = "unknown field: no version that dljob convert knows has it here"


class UnfitError(Exception):
    """A document that cannot become a DLJob."""

    def __init__(self, loc: Loc, message: str, hint: str = "") -> None:
        """Refuse the document because of the field at `loc`."""
        super().__init__(message)
        self.loc, self.message, self.hint = loc, message, hint


def mistyped(loc: Loc, value: object, expected_type: type[Any]) -> UnfitError:
    """Return the refusal of a value that should be a mapping or a list."""
    return UnfitError(loc, f"must be {_TYPE_WORDS[expected_type]}, not {_TYPE_WORDS[type(value)]}")


@dataclass(frozen=True, slots=True)
class FieldFate:
    """What became of a field."""

    kind: Kind
    reason: str = ""
    to: Loc = ()
    """Place in the DLJob, of a carried field."""


_NO_FATE = FieldFate("harmless")


@dataclass(slots=True)
class SourceManifest:
    """A document of a manifest, and the fates of its fields."""

    document: Document
    fates: dict[Loc, FieldFate] = field(default_factory=dict[Loc, FieldFate])
    counterparts: dict[Loc, Loc] = field(default_factory=dict[Loc, Loc])
    """Places in the DLJob of fields that hold others, for comments at them."""

    @property
    def root(self) -> JsonValue:
        """The whole document."""
        return self.document.data

    def value(self, loc: Loc) -> Any:  # noqa: ANN401 - any JSON
        """Return the value at a place; None where there is none."""
        node: Any = self.document.data
        for part in loc:
            if isinstance(node, dict) and isinstance(part, str):
                node = cast("dict[str, Any]", node).get(part)
            elif isinstance(node, list) and isinstance(part, int):
                items = cast("list[Any]", node)
                node = items[part] if part < len(items) else None
            else:
                return None
        return node

    def fields(self, loc: Loc) -> Iterator[tuple[str, Loc]]:
        """Yield the keys of a mapping with their places.

        Raises:
            UnfitError: the value, or one around it, is of another type.
        """
        value = self._present_value(loc)
        if isinstance(value, dict):
            if not value:
                self.fates.setdefault(loc, FieldFate("harmless", "empty"))
            for key in cast("dict[str, Any]", value):
                yield key, (*loc, key)
        elif value is not None:
            raise mistyped(loc, value, dict)

    def item_locs(self, loc: Loc) -> Iterator[Loc]:
        """Yield the places of a list's items.

        Raises:
            UnfitError: the value, or one around it, is of another type.
        """
        value = self._present_value(loc)
        if isinstance(value, list):
            if not value:
                self.fates.setdefault(loc, FieldFate("harmless", "empty"))
            for index in range(len(cast("list[Any]", value))):
                yield (*loc, index)
        elif value is not None:
            raise mistyped(loc, value, list)

    def text(self, loc: Loc) -> str | None:
        """Return a text, or a number as a text; a value of another type is dropped."""
        value = self._present_value(loc)
        if isinstance(value, str):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        if value is not None:
            self.mark_dropped(loc, "must be a text")
        return None

    def number(self, loc: Loc) -> int | None:
        """Return a whole number, also one that is written as a text; a value of another type is dropped."""
        value = self._present_value(loc)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().isdecimal():
            return int(value)
        if value is not None:
            self.mark_dropped(loc, "must be a whole number")
        return None

    def _present_value(self, loc: Loc) -> Any:  # noqa: ANN401 - any JSON
        """Return the value at a place; None where there is none, and an error where it cannot have one."""
        value = self.value(loc)
        if value is None:
            for depth, part in enumerate(loc):
                container, container_type = self.value(loc[:depth]), dict if isinstance(part, str) else list
                if container is not None and type(container) is not container_type:
                    raise mistyped(loc[:depth], container, container_type)
        return value

    def words(self, loc: Loc) -> list[str]:
        """Return the texts of a list; items of another type are dropped."""
        return [text for item_loc in self.item_locs(loc) if (text := self.text(item_loc)) is not None]

    def mark_carried(self, loc: Loc, to: Loc, reason: str = "") -> None:
        """Record that a field, with all below it, stands at `to` in the DLJob, unless a part of it is lost.

        With `reason`, the field as a whole, or together with others, makes the value there.
        """
        if self.fates.get(loc, _NO_FATE).kind != "dropped":
            self.fates[loc] = FieldFate("carried", reason, to)

    def note_counterpart(self, loc: Loc, to: Loc) -> None:
        """Record where the counterpart of a field that holds others stands; its own fields have fates of their own."""
        self.counterparts[loc] = to

    def mark_harmless(self, loc: Loc, reason: str) -> None:
        """Record that a field, with all below it, is not needed, unless it is known to be lost."""
        if self.value(loc) is not None and self.fates.get(loc, _NO_FATE).kind != "dropped":
            self.fates[loc] = FieldFate("harmless", reason)

    def mark_dropped(self, loc: Loc, reason: str) -> None:
        """Record that a field, with all below it, is lost, which may change what runs; each reason is kept."""
        previous = self.fates.get(loc, _NO_FATE)
        if previous.kind == "dropped" and previous.reason != reason:
            reason = f"{previous.reason}; {reason}"
        self.fates[loc] = FieldFate("dropped", reason)

    def fate(self, loc: Loc) -> FieldFate:
        """Return the recorded fate of a field, else of the nearest field around it; without any it is unknown."""
        for size in range(len(loc), -1, -1):
            nearest_fate = self.fates.get(loc[:size])
            if nearest_fate is None:
                continue
            if nearest_fate.kind == "carried" and not nearest_fate.reason:
                # A field that is carried as it is has its own fields at the same places below.
                return replace(nearest_fate, to=(*nearest_fate.to, *loc[size:]))
            return nearest_fate
        # For Kubernetes, null is as good as nothing.
        return FieldFate("harmless", "null") if loc and self.value(loc) is None else FieldFate("dropped", UNKNOWN_FIELD)

    def target_loc(self, loc: Loc) -> Loc:
        """Return the place in the DLJob of a field, or of the first carried field in it; empty where there is none."""
        if not loc:
            return ()
        if loc in self.counterparts:
            return self.counterparts[loc]
        fates = [self.fate(loc), *map(self.fate, self.leaves(loc))]
        return next((fate.to for fate in fates if fate.kind == "carried"), ())

    def leaves(self, loc: Loc = ()) -> Iterator[Loc]:
        """Yield the places of all scalars and empty collections in a field, in the order of the text."""
        value = self.value(loc)
        if isinstance(value, dict) and value:
            for key in cast("dict[str, Any]", value):
                yield from self.leaves((*loc, key))
        elif isinstance(value, list) and value:
            for index in range(len(cast("list[Any]", value))):
                yield from self.leaves((*loc, index))
        else:
            yield loc

    def line(self, loc: Loc) -> int:
        """Return the line of a field."""
        return self.document.key_mark(loc).line


def read_documents(text: str) -> list[Document]:
    """Return the documents of a YAML text as kubectl reads them: a mode of `0400` is octal, and `yes` is true."""
    return tree.read(text, kubectl="follow")


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A field in the report with its fate; every leaf of the source is in exactly one row."""

    line: int
    path: str
    fate: FieldFate
    loc: Loc


def report_rows(source: SourceManifest) -> Iterator[ReportRow]:
    """Yield the fields of a document with their fates; leaves in a field that is not carried are one row, its own."""
    reported_locs: set[Loc] = set()
    for leaf in source.leaves():
        loc = _reported_field_above(source, leaf)
        if loc not in reported_locs:
            reported_locs.add(loc)
            yield ReportRow(source.line(loc), path_of(loc), source.fate(loc), loc)


def summarize_losses(rows: Iterable[ReportRow]) -> Iterator[ReportRow]:
    """Yield the fields that are not carried; items of a list that have one fate are one row, the list's."""
    for parent, group in groupby(rows, lambda row: row.loc[:-1] if row.loc and isinstance(row.loc[-1], int) else row):
        group_rows = list(group)
        first_row = group_rows[0]
        if isinstance(parent, tuple) and len(group_rows) > 1 and all(row.fate == first_row.fate for row in group_rows):
            group_rows = [replace(first_row, path=path_of(parent), loc=parent)]
        yield from (row for row in group_rows if row.fate.kind != "carried")


def _reported_field_above(source: SourceManifest, leaf: Loc) -> Loc:
    """Return the field that stands for a leaf in the report: the nearest with a fate, the leaf itself if carried."""
    for size in range(len(leaf), -1, -1):
        if fate := source.fates.get(leaf[:size]):
            return leaf if fate.kind == "carried" else leaf[:size]
    return leaf


@dataclass(slots=True)
class Draft:
    """A DLJob in the making, beside the document that it comes from."""

    source: SourceManifest
    document: dict[str, Any] = field(default_factory=dict[str, Any])
    remarks: list[str] = field(default_factory=list[str])
    """What else a user should know."""
    config_map_texts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Texts of the ConfigMaps in the same file, by their keys."""

    def put(self, to: Loc, value: object) -> None:
        """Set a value; mappings and lists on the way to it are made.

        Raises:
            UnfitError: a value on the way is of another type.
        """
        container: Any = self.document
        for depth, part in enumerate(to):
            is_last = depth == len(to) - 1
            container_type: type[Any] = dict if isinstance(part, str) else list
            if not isinstance(container, container_type):
                raise mistyped(to[:depth], container, container_type)
            if is_last:
                child: Any = value
            else:
                child = [] if isinstance(to[depth + 1], int) else {}
            if isinstance(part, int) and part == len(container):
                container.append(child)
            elif is_last or self.get(to[: depth + 1]) is None:
                container[part] = child
            container = container[part]

    def get(self, to: Loc) -> Any:  # noqa: ANN401 - any JSON
        """Return a value of the DLJob; None where there is none."""
        return SourceManifest(Document(self.document)).value(to)

    def list_at(self, to: Loc) -> list[Any]:
        """Return a list of the DLJob; empty where there is none."""
        values: list[Any] | None = self.get(to)
        return values or []

    def move(self, loc: Loc, to: Loc, value: object = None, reason: str = "") -> None:
        """Put a field of the document into the DLJob, with its own value where none is passed, and mark it carried."""
        self.put(to, self.source.value(loc) if value is None else value)
        self.source.mark_carried(loc, to, reason)

    def append(self, loc: Loc, to: Loc, value: object = None, reason: str = "") -> None:
        """Move a field to the end of a list of the DLJob."""
        self.move(loc, (*to, len(self.list_at(to))), value, reason)

    def drop_carried_but_absent(self) -> None:
        """Drop fields marked as carried to a place that the DLJob has not, or that holds another field's value."""
        source = self.source
        leaves_by_target: dict[Loc, list[Loc]] = {}
        for leaf in source.leaves():
            fate = source.fate(leaf)
            if fate.kind != "carried" or source.value(leaf) in (None, {}, []):
                continue
            target_value = self.get(fate.to)
            if target_value is None:
                source.mark_dropped(leaf, f"the DLJob has no {path_of(fate.to)}")
            elif not fate.reason and not isinstance(target_value, dict | list):
                leaves_by_target.setdefault(fate.to, []).append(leaf)
        for target_loc, leaves in leaves_by_target.items():
            target_text = str(self.get(target_loc))
            texts = {leaf: str(source.value(leaf)) for leaf in leaves}
            equal_leaf = next((leaf for leaf, text in texts.items() if text == target_text), None)
            evidence = f", as {path_of(equal_leaf)} says" if equal_leaf else ""
            for leaf, text in texts.items():
                # One text may be written as another, such as a name; a number may not.
                if text != target_text and (text.isdecimal() or len(set(texts.values())) > 1):
                    source.mark_dropped(leaf, f"{path_of(target_loc)} is {target_text}{evidence}")
