"""A DLJob as YAML with comments at its fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, JsonValue

from dljob.spec.model import DLJobManifest, DLJobSpec, NodeGroup, Role
from dljob.spec.text.emit import to_yaml
from dljob.spec.text.tree import Document, Loc, Position, read


@dataclass(slots=True)
class FieldComments:
    """Comments of one field of the DLJob: lines above it, and those at the end of its line."""

    above: list[str] = field(default_factory=list[str])
    at_line_end: list[str] = field(default_factory=list[str])


def order_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a DLJob with its fields in the order of the reference."""
    ordered_job = _order_by_model(document, DLJobManifest)
    spec = _order_by_model(ordered_job["spec"], DLJobSpec)
    for key, model in (("nodeGroups", NodeGroup), ("roles", Role)):
        if key in spec:
            spec[key] = [_order_by_model(item, model) for item in spec[key]]
    # The machines first: roles refer to them.
    roles = spec.pop("roles")
    index_of_roles = list(spec).index("nodeGroups") + 1 if "nodeGroups" in spec else len(spec)
    items = list(spec.items())
    ordered_job["spec"] = dict([*items[:index_of_roles], ("roles", roles), *items[index_of_roles:]])
    return ordered_job


def _order_by_model(mapping: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Return a mapping with its keys in the order of a model's fields; others come last."""
    keys = [field.alias or name for name, field in model.model_fields.items()]
    return dict(sorted(mapping.items(), key=lambda item: keys.index(item[0]) if item[0] in keys else len(keys)))


def write_with_comments(document: Mapping[str, JsonValue], comments: Mapping[Loc, FieldComments]) -> str:
    """Return the document as YAML, each comment at its field, or at the nearest field around it."""
    text = to_yaml(dict(document))
    (parsed,) = read(text)
    above: dict[int, list[str]] = {}
    at_line_end: dict[int, list[str]] = {}
    for loc, field_comments in comments.items():
        number = _line_of_nearest_field(parsed, loc)
        above.setdefault(number, []).extend(field_comments.above)
        at_line_end.setdefault(number, []).extend(field_comments.at_line_end)
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        indentation = line[: len(line) - len(line.lstrip())]
        lines += [f"{indentation}{comment}" for comment in above.get(number, ())]
        # Comments that share a line are joined: a '#' within a comment is part of it.
        end_comment = " ".join(dict.fromkeys(at_line_end.get(number, ())))
        lines.append(f"{line}  {end_comment}" if end_comment else line)
    return "\n".join(lines) + "\n"


def _line_of_nearest_field(document: Document, loc: Loc) -> int:
    """Return the line of a field, or of the nearest field around it; 1 without any."""
    while loc and loc not in document.keys and loc not in document.values:
        loc = loc[:-1]
    return (document.keys.get(loc) or document.values.get(loc) or Position(1, 1)).line
