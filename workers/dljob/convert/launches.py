"""Documents of other kinds that start ranks: as no jobs they would be passed on, and nobody would say so."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, cast

from dljob.convert import command
from dljob.convert.pods import device_kind
from dljob.convert.source import SourceManifest
from dljob.spec.text.tree import Loc

MEETING = frozenset(("MASTER_ADDR", "WORLD_SIZE"))
"""Variables that only ranks which meet have."""


def start_of_ranks(source: SourceManifest, kinds: Collection[str]) -> tuple[Loc, str]:
    """Return the field of a document that starts ranks, and what it says; empty where none does.

    Args:
        source: the document.
        kinds: kinds of jobs that another object, such as an AppWrapper, may hold.
    """
    for loc, fields in _mappings(source.root):
        if loc and {"apiVersion", "spec"} <= fields.keys() and fields.get("kind") in kinds:
            return loc, f"holds a {fields['kind']}"
        words = [word for key in ("command", "args") for word in _texts(fields.get(key))]
        variables = {str(variable.get("name")): str(variable.get("value")) for variable in _items(fields.get("env"))}
        if program := command.launcher(command.of_words(words), variables) if words else "":
            return (*loc, "command" if "command" in fields else "args"), f"runs {program}"
        if met := sorted(variables.keys() & MEETING):
            return (*loc, "env"), f"has {met[0]}"
    return (), ""


def has_devices(source: SourceManifest) -> bool:
    """Whether some pod of a document asks for devices."""
    return any(
        device_kind(name)
        for loc, fields in _mappings(source.root)
        if loc[-1:] in (("limits",), ("requests",))
        for name in fields
    )


def _mappings(value: object, loc: Loc = ()) -> Iterator[tuple[Loc, dict[str, Any]]]:
    """Yield all mappings with their places, outer ones first."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        yield loc, fields
        for key, inner in fields.items():
            yield from _mappings(inner, (*loc, key))
    elif isinstance(value, list):
        for at, inner in enumerate(cast("list[object]", value)):
            yield from _mappings(inner, (*loc, at))


def _texts(value: object) -> list[str]:
    items = cast("list[object]", value) if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, str)]


def _items(value: object) -> list[dict[str, Any]]:
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]
