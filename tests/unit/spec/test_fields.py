"""A field enters the tree with the code that obeys it: every field has a row that says where its effect is seen.

`Plan` rows are tried here: changing the field changes the plan. `Code` rows name a module that reads the field.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from field_rows import DECLARED, DERIVED, GROUPED, ROWS, Code, Plan
from pydantic import BaseModel

from dljob.plan.model import JobPlan
from dljob.plan.plan import plan
from dljob.raycluster.render import preview_raycluster
from dljob.spec.loading.load import dump, load, parse
from dljob.spec.model import DLJobManifest
from dljob.spec.text.words import aliases, model_in

ROOT = Path(__file__).parents[3]

PLANNED = {field: row for field, row in ROWS.items() if isinstance(row, Plan)}
CODED = {field: row for field, row in ROWS.items() if isinstance(row, Code)}


def leaves(model: type[BaseModel], path: str = "") -> Iterator[str]:
    for name, info in aliases(model).items():
        here = f"{path}.{name}{'[]' if 'tuple' in str(info.annotation) else ''}".removeprefix(".")
        inner = model_in(info.annotation)
        if inner:
            yield from leaves(inner, here)
        else:
            yield here


def test_every_field_has_a_row_and_every_row_a_field() -> None:
    assert list(leaves(DLJobManifest)) == list(ROWS)


def planned(manifest: DLJobManifest) -> tuple[JobPlan, dict[str, Any]]:
    """The plan of a job, and the RayCluster that would carry it."""
    made = plan(manifest)
    return made, preview_raycluster(made, manifest)


@pytest.mark.parametrize("field", PLANNED)
def test_changing_a_planned_field_changes_the_plan(field: str) -> None:
    row = PLANNED[field]
    data = copy.deepcopy({"derived": DERIVED, "declared": DECLARED, "grouped": GROUPED}[row.base])
    before = planned(parse(data))
    node: Any = data
    *parents, last = row.path.split(".")
    for part in parents:
        node = node[int(part) if part.isdecimal() else part]
    key = int(last) if last.isdecimal() else last
    old = node[key] if isinstance(node, list) or key in node else None
    assert old != row.value
    node[key] = row.value
    assert planned(parse(data)) != before, f"{field} is accepted and does nothing"


@cache
def read_in(module: str) -> set[str]:
    """What a module's source reads: `a.b.c` as it is written, names, and keys."""
    path = ROOT / "workers" / Path(*module.split(".")).with_suffix(".py")
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute | ast.Name):
            found.add(ast.unparse(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            found.add(node.value)
    return found


@pytest.mark.parametrize("field", CODED)
def test_each_coded_field_is_read_by_its_module(field: str) -> None:
    row = CODED[field]
    found = read_in(row.module)
    reads = any(name == row.attribute or name.endswith(f".{row.attribute}") for name in found)
    assert reads, f"{row.module} does not read {row.attribute} any more"


def test_a_dump_names_its_api_version_and_kind() -> None:
    assert dump(parse(DERIVED)).startswith("apiVersion: dljob.io/v1alpha1\nkind: DLJob\n")


def test_a_dump_carries_annotations() -> None:
    data = copy.deepcopy(DERIVED)
    data["metadata"]["annotations"] = {"example.com/note": "hello"}
    assert "  annotations:\n    example.com/note: hello\n" in dump(parse(data))


@pytest.mark.parametrize("said", [True, False])
def test_a_pre_check_can_be_asked_for_and_declined(said: bool) -> None:
    data = copy.deepcopy(DERIVED)
    data["spec"]["roles"][0]["comm"]["preCheck"] = said
    manifest = parse(data)
    assert manifest.spec.roles[0].comm.pre_check is said
    assert load(dump(manifest)) == manifest
