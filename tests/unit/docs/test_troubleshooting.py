"""What the page of symptoms shows as printed stands in the product's sources, but for names and numbers."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
import sources
from pages import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
FIXED = 12
"""Fewest letters of a text that counts as a part of a printed line."""


def symptoms() -> dict[str, list[str]]:
    """Heading -> the lines that it says are printed."""
    parts = re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.M)[1:]
    blocks = {part.partition("\n")[0]: re.findall(r"^```text\n(.*?)^```", part, re.M | re.S) for part in parts}
    return {heading: "".join(found).splitlines() for heading, found in blocks.items()}


def pieces(node: ast.AST) -> list[str]:
    """The literal parts of a text, between which values stand; none where it is no text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        parts = [""]
        for value in node.values:
            if isinstance(value, ast.Constant):
                parts[-1] += str(value.value)
            else:
                parts.append("")
        return parts
    return []


@cache
def messages() -> list[list[str]]:
    files = [path for folder in ("workers", "operator") for path in sorted((ROOT / folder).rglob("*.py"))]
    nodes = (node for path in files for node in sources.nodes(path.read_text(encoding="utf-8")))
    return [found for node in nodes if (found := pieces(node))]


def printed(line: str) -> bool:
    """Whether some text of the product is this line, begins it, or has it as a part."""
    said = line.removeprefix("error: ")
    for parts in messages():
        if len(parts) == 1:
            (text,) = parts
            if text == said or (" " in said and said in text) or (" " in text and len(text) >= FIXED and text in said):
                return True
        elif sum(len(part.strip()) for part in parts) >= FIXED // 2 and all(part in said for part in parts):
            if re.fullmatch(".*?".join(re.escape(part) for part in parts), said):
                return True
        elif " " in said and any(said in part for part in parts):
            return True
    return False


def test_the_page_has_thirty_symptoms_each_with_what_is_printed() -> None:
    found = symptoms()
    assert len(found) >= 30
    assert [heading for heading, lines in found.items() if not lines] == []


@pytest.mark.parametrize(("heading", "line"), [(h, line) for h, lines in symptoms().items() for line in lines])
def test_a_printed_line_stands_in_the_sources(heading: str, line: str) -> None:
    assert printed(line), f"{heading}: nothing of the product prints {line!r} (any more)"
