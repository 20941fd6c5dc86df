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

from dljob.spec.text.tree import Document, Loc
from dljob.spec.text.words import path_of

Kind: TypeAlias = Literal["carried", "harmless", "dropped"]

UNKNOWN = "unknown field: no version that dljob convert knows has it here"


class UnfitError(Exception):
    """A document that cannot become a DLJob."""

    def __init__(self, loc: Loc, message: str, hint: str = "") -> None:
        """Refuse the document because of the field at `loc`."""
        super().__init__(message)
        self.loc, self.message, self.hint = loc, message, hint


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
    places: dict[Loc, Loc] = field(default_factory=dict[Loc, Loc])
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

    def keys(self, loc: Loc) -> Iterator[tuple[str, Loc]]:
        """Yield the keys of a mapping with their places; a value of another type is dropped."""
        value = self.value(loc)
        if isinstance(value, dict):
            if not value:
                self.fates.setdefault(loc, FieldFate("harmless", "empty"))
            for key in cast("dict[str, Any]", value):
                yield key, (*loc, key)
        elif value is not None:
            self.drop(loc, "must be a mapping")

    def items(self, loc: Loc) -> Iterator[Loc]:
        """Yield the places of a list's items; a value of another type is dropped."""
        value = self.value(loc)
        if isinstance(value, list):
            if not value:
                self.fates.setdefault(loc, FieldFate("harmless", "empty"))
            for at in range(len(cast("list[Any]", value))):
                yield (*loc, at)
        elif value is not None:
            self.drop(loc, "must be a list")

    def text(self, loc: Loc) -> str | None:
        """Return a text, or a number as a text; a value of another type is dropped."""
        value = self.value(loc)
        if isinstance(value, str):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        if value is not None:
            self.drop(loc, "must be a text")
        return None

    def number(self, loc: Loc) -> int | None:
        """Return a whole number, also one that is written as a text; a value of another type is dropped."""
        value = self.value(loc)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().isdecimal():
            return int(value)
        if value is not None:
            self.drop(loc, "must be a whole number")
        return None

    def words(self, loc: Loc) -> list[str]:
        """Return a list of texts."""
        return [text for at in self.items(loc) if (text := self.text(at)) is not None]

    def carry(self, loc: Loc, to: Loc, reason: str = "") -> None:
        """Record that a field, with all below it, stands at `to` in the DLJob, unless a part of it is lost.

        With `reason`, the field as a whole, or together with others, makes the value there.
        """
        if self.fates.get(loc, _NO_FATE).kind != "dropped":
            self.fates[loc] = FieldFate("carried", reason, to)

    def stands(self, loc: Loc, to: Loc) -> None:
        """Record where the counterpart of a field that holds others stands; its own fields have fates of their own."""
        self.places[loc] = to

    def harmless(self, loc: Loc, reason: str) -> None:
        """Record that a field, with all below it, is not needed, unless it is known to be lost."""
        if self.value(loc) is not None and self.fates.get(loc, _NO_FATE).kind != "dropped":
            self.fates[loc] = FieldFate("harmless", reason)

    def drop(self, loc: Loc, reason: str) -> None:
        """Record that a field, with all below it, is lost, which may change what runs; each reason is kept."""
        last = self.fates.get(loc, _NO_FATE)
        reasons = [last.reason] if last.kind == "dropped" and last.reason != reason else []
        self.fates[loc] = FieldFate("dropped", "; ".join([*reasons, reason]))

    def fate(self, loc: Loc) -> FieldFate:
        """Return what became of a field: what was said of it, else of the nearest field around it."""
        for size in range(len(loc), -1, -1):
            nearest = self.fates.get(loc[:size])
            if nearest is None:
                continue
            below = loc[size:] if nearest.kind == "carried" and not nearest.reason else ()
            return replace(nearest, to=(*nearest.to, *below))
        # For Kubernetes, null is as good as nothing.
        return FieldFate("harmless", "null") if loc and self.value(loc) is None else FieldFate("dropped", UNKNOWN)

    def leaves(self, below: Loc = ()) -> Iterator[Loc]:
        """Yield the places of all scalars and empty collections, in the order of the text."""
        value = self.value(below)
        if isinstance(value, dict) and value:
            for key in cast("dict[str, Any]", value):
                yield from self.leaves((*below, key))
        elif isinstance(value, list) and value:
            for at in range(len(cast("list[Any]", value))):
                yield from self.leaves((*below, at))
        else:
            yield below

    def line(self, loc: Loc) -> int:
        """Return the line of a field."""
        return self.document.key_mark(loc).line


@dataclass(frozen=True, slots=True)
class Named:
    """A field of the report: every leaf of the source is below exactly one of them."""

    line: int
    path: str
    fate: FieldFate
    loc: Loc


def named(source: SourceManifest) -> Iterator[Named]:
    """Yield the fields of a document with their fates; leaves below one record that is not carried are one row."""
    rows: set[Loc] = set()
    for leaf in source.leaves():
        at = _row(source, leaf)
        if at not in rows:
            rows.add(at)
            yield Named(source.line(at), path_of(at), source.fate(at), at)


def summarize_losses(rows: Iterable[Named]) -> Iterator[Named]:
    """Yield the fields that are not carried, as a reader is told of them: a list whose items have one fate is one."""
    for parent, group in groupby(rows, lambda row: row.loc[:-1] if row.loc and isinstance(row.loc[-1], int) else row):
        items = list(group)
        if isinstance(parent, tuple) and len(items) > 1 and all(item.fate == items[0].fate for item in items):
            items = [replace(items[0], path=path_of(parent), loc=parent)]
        yield from (item for item in items if item.fate.kind != "carried")


def _row(source: SourceManifest, leaf: Loc) -> Loc:
    """Return the field under which a leaf is named."""
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
    scripts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Texts of the ConfigMaps in the same file, by their keys."""

    def put(self, to: Loc, value: object) -> None:
        """Set a value; containers on the way are made."""
        place: Any = self.document
        for part, after in zip(to, (*to[1:], None), strict=True):
            new: Any = value if after is None else [] if isinstance(after, int) else {}
            if isinstance(part, int):
                if part == len(place):
                    place.append(new)
                elif after is None:
                    place[part] = new
            elif after is None:
                place[part] = new
            else:
                place.setdefault(part, new)
            place = place[part]

    def get(self, to: Loc) -> Any:  # noqa: ANN401 - any JSON
        """Return a value of the DLJob; None where there is none."""
        return SourceManifest(Document(self.document)).value(to)

    def items(self, to: Loc) -> list[Any]:
        """Return a list of the DLJob; empty where there is none."""
        values: list[Any] | None = self.get(to)
        return values or []

    def move(self, loc: Loc, to: Loc, value: object = None, reason: str = "") -> None:
        """Put a field of the document, or the value that takes its place, into the DLJob."""
        self.put(to, self.source.value(loc) if value is None else value)
        self.source.carry(loc, to, reason)

    def drop_lost(self) -> None:
        """Drop what is recorded as carried to a place that the DLJob has not, or that holds another field's value."""
        source = self.source
        sources: dict[Loc, list[Loc]] = {}
        for leaf in source.leaves():
            fate, value = source.fate(leaf), source.value(leaf)
            if fate.kind != "carried" or value in (None, {}, []):
                continue
            target = self.get(fate.to)
            if target is None:
                source.drop(leaf, f"the DLJob has no {path_of(fate.to)}")
            elif not fate.reason and not isinstance(target, dict | list):
                sources.setdefault(fate.to, []).append(leaf)
        for to, leaves in sources.items():
            target = str(self.get(to))
            values = {leaf: str(source.value(leaf)) for leaf in leaves}
            winner = next((leaf for leaf, value in values.items() if value == target), None)
            by = f", as {path_of(winner)} says" if winner else ""
            for leaf, value in values.items():
                # One text may be written as another, such as a name; a number may not.
                if value != target and (value.isdecimal() or len(set(values.values())) > 1):
                    source.drop(leaf, f"{path_of(to)} is {target}{by}")

    def append(self, loc: Loc, to: Loc, value: object = None, reason: str = "") -> None:
        """Put a field at the end of a list of the DLJob."""
        self.move(loc, (*to, len(self.items(to))), value, reason)
