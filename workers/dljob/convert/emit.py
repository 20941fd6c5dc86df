"""A DLJob as YAML with comments at its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, JsonValue

from dljob.spec.model import DLJobManifest, DLJobSpec, NodeGroup, Role
from dljob.spec.text.emit import to_yaml
from dljob.spec.text.tree import Loc, Position, read


@dataclass(slots=True)
class Notes:
    """Comments of one field: lines before it, and the end of its line."""

    before: list[str] = field(default_factory=list[str])
    behind: list[str] = field(default_factory=list[str])


def ordered(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a DLJob with its fields in the order of the reference."""
    ordered_job = _by_model(document, DLJobManifest)
    spec = _by_model(ordered_job["spec"], DLJobSpec)
    for key, model in (("nodeGroups", NodeGroup), ("roles", Role)):
        if key in spec:
            spec[key] = [_by_model(item, model) for item in spec[key]]
    # The machines first: roles refer to them.
    roles = spec.pop("roles")
    at = list(spec).index("nodeGroups") + 1 if "nodeGroups" in spec else len(spec)
    items = list(spec.items())
    ordered_job["spec"] = dict([*items[:at], ("roles", roles), *items[at:]])
    return ordered_job


def _by_model(value: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    names = [field.alias or name for name, field in model.model_fields.items()]
    return dict(sorted(value.items(), key=lambda item: names.index(item[0]) if item[0] in names else len(names)))


def with_comments(document: Mapping[str, JsonValue], notes: Mapping[Loc, Notes]) -> str:
    """Return the document as YAML, each comment at its field, or at the nearest field around it."""
    text = to_yaml(dict(document))
    (written,) = read(text)
    before: dict[int, list[str]] = {}
    behind: dict[int, list[str]] = {}
    for loc, field_notes in notes.items():
        line = _line(written.keys, written.values, loc)
        before.setdefault(line, []).extend(field_notes.before)
        behind.setdefault(line, []).extend(field_notes.behind)
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        pad = line[: len(line) - len(line.lstrip())]
        lines += [f"{pad}{comment}" for comment in before.get(number, ())]
        lines.append("  ".join([line, *_join_comments(behind.get(number, ()))]))
    return "\n".join(lines) + "\n"


def _join_comments(texts: Sequence[str]) -> list[str]:
    """Join comments that come to stand at one line: a '#' within a comment is part of it."""
    return [" ".join(dict.fromkeys(texts))] if texts else []


def _line(keys: Mapping[Loc, Position], values: Mapping[Loc, Position], loc: Loc) -> int:
    while loc and loc not in keys and loc not in values:
        loc = loc[:-1]
    return (keys.get(loc) or values.get(loc) or Position(1, 1)).line
