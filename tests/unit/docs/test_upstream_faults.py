"""Each fault of DLRover that is listed has tests, and these are there; so has each feature."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import sources

ROOT = Path(__file__).parents[3]
TEST = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)(?:\[([^\]`]+)\])?`")


def rows(page: str) -> list[list[str]]:
    """The cells of all tables of a page, without their heads."""
    lines = [line for line in (ROOT / "docs" / page).read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    heads = {index - 1 for index, row in enumerate(cells) if row[0].startswith("---")}
    return [row for index, row in enumerate(cells) if index not in heads and index - 1 not in heads]


@cache
def cases_in(file: str) -> dict[str, str]:
    """Qualified name -> source, of all test functions in a file."""
    text = (ROOT / file).read_text()
    found: dict[str, str] = {}

    def look(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                look(node.body, f"{prefix}{node.name}::")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found[prefix + node.name] = text

    look(sources.tree(text).body, "")
    return found


def missing(page: str) -> list[str]:
    """The tests that a page names and nobody has; a case in brackets stands in the file as a text."""
    lost: list[str] = []
    for file, name, case in TEST.findall((ROOT / "docs" / page).read_text()):
        text = cases_in(file).get(name) if (ROOT / file).exists() else None
        if text is None or (case and f'"{case}"' not in text):
            lost.append(f"{file}::{name}[{case}]")
    return lost


def test_every_fault_has_tests_that_are_there() -> None:
    faults = rows("upstream-faults.md")
    assert len(faults) >= 89
    assert [row for row in faults if len(row) != 3 or not TEST.search(row[2])] == []
    assert missing("upstream-faults.md") == []


def test_every_feature_is_shown_by_a_test_or_a_command_that_is_there() -> None:
    features = rows("features.md")
    assert len(features) >= 40
    assert [row for row in features if len(row) != 3 or not (TEST.search(row[2]) or "make " in row[2])] == []
    assert missing("features.md") == []
    made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = re.findall(r"`make ([^`]+)`", (ROOT / "docs" / "features.md").read_text())
    assert {command.split()[0] for command in commands} <= made
    named = {word.partition("=")[2] for command in commands for word in command.split()[1:]}
    assert [name for name in named if not (ROOT / "examples" / name / "dljob.yaml").exists()] == []


def test_features_that_are_missing_are_listed_in_the_readme_too() -> None:
    """The page's list of them, by its words in bold."""
    page = (ROOT / "docs" / "features.md").read_text()
    absent = re.findall(r"^- \*\*([^*]+)\*\*", page.split("## Not there yet")[1], re.MULTILINE)
    assert "an openYuanrong cluster" in absent
    readme = (ROOT / "README.md").read_text()
    assert [name for name in absent if name not in readme] == []
