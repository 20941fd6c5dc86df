"""Each field of the API that was asked for is in the CRD, or struck out with a reason (docs/adr/0113)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from dljob.reconcile.state import names

ROOT = Path(__file__).parents[3]
ASKED = [
    line
    for line in (ROOT / "tests" / "golden" / "asked-names.txt").read_text().splitlines()
    if not line.startswith("#")
]
STRUCK_OUT = {
    "spec.nodeGroups[].accelerator.model",
    "spec.auth.mode",
    "spec.auth.secretName",
    "status.progress.maxSteps",
    "status.progress.etaSeconds",
}


def _fields(node: dict[str, Any], path: str) -> Iterator[str]:
    for name, below in (node.get("properties") or {}).items():
        yield f"{path}.{name}"
        yield from _fields(below, f"{path}.{name}")
    if "items" in node:
        yield from _fields(node["items"], f"{path}[]")


def _known() -> set[str]:
    (crd,) = (ROOT / "crds").glob("*dljobs.yaml")
    schema = yaml.safe_load(crd.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    annotations = {f"annotation {value}" for value in vars(names).values() if isinstance(value, str)}
    return {*_fields(schema["spec"], "spec"), *_fields(schema["status"], "status"), *annotations}


def test_each_name_that_was_asked_for_is_known_or_struck_out() -> None:
    known = _known()
    assert len(ASKED) > 150
    assert {name for name in ASKED if name not in known} == STRUCK_OUT


def test_each_name_that_is_struck_out_has_its_reason() -> None:
    text = (ROOT / "docs" / "adr" / "0113-names-struck-out.md").read_text()
    assert [name for name in STRUCK_OUT if f"`{name.partition('.')[2]}`" not in text] == []
