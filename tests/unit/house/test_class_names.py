"""Each class name stands once in the product: a reader who searches for a class finds one."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from sources import nodes

from dljob.telemetry.wording import counted

ROOT = Path(__file__).parents[3]
SOURCES = sorted([*(ROOT / "workers" / "dljob").rglob("*.py"), *(ROOT / "operator").rglob("*.py")])
THEIRS = "the name is DLRover's, and its scripts import it"
TWICE: dict[str, str] = dict.fromkeys(
    (
        *("DLJob", "DLJobBuilder", "DataQueue", "FutureSequence", "JobInfo", "RLJobBuilder", "RLRoleType"),
        *("PrimeMaster", "RoleBuilder", "RoleGroup", "Worker"),
    ),
    THEIRS,
)
"""A class name that stands more than once, and why."""


def defined(sources: dict[str, str]) -> dict[str, list[str]]:
    """Return each class name with the places, as `file:line`, where a class of this name is defined."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, text in sources.items():
        for node in nodes(text):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{path}:{node.lineno}")
    return dict(found)


def repeated(sources: dict[str, str], allowed: dict[str, str]) -> list[str]:
    """Return a line for each name that is defined more than once without a reason, or has a reason and is not."""
    found = {name: places for name, places in defined(sources).items() if len(places) > 1}
    wrong = [f"class {name} is defined {counted(len(found[name]), 'time')}: {', '.join(found[name])}"
             for name in sorted(found.keys() - allowed.keys())]  # fmt: skip
    return wrong + [f"class {name} is not defined twice any more" for name in sorted(allowed.keys() - found.keys())]


def test_each_class_name_stands_once() -> None:
    sources = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in SOURCES}
    assert len(defined(sources)) > 500, "the product has many classes"
    assert repeated(sources, TWICE) == []
    assert all(len(why.split()) >= 3 for why in TWICE.values())


def test_a_name_that_stands_twice_is_found_inside_functions_and_classes_too() -> None:
    sources = {"a.py": "class One: ...\nclass Two:\n    class Inner: ...\n", "b.py": "def f():\n    class Inner: ...\n"}
    assert repeated(sources, {}) == ["class Inner is defined 2 times: a.py:3, b.py:2"]
    assert repeated(sources, {"Inner": "both are of one protocol"}) == []
    assert repeated(sources, {"Inner": "as above here", "One": "as above here"}) == [
        "class One is not defined twice any more"
    ]
