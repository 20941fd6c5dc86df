"""A broad `except` or `suppress` speaks, or says on its line why silence is right."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import sources

ROOT = Path(__file__).parents[3]
SOURCES = sorted([*(ROOT / "workers" / "dljob").rglob("*.py"), *(ROOT / "operator").rglob("*.py")])
BROAD = {"Exception", "BaseException"}
NOQA = re.compile(r"noqa: [A-Z]+\d+(, ?[A-Z]+\d+)*( - )?")


def _names(node: ast.expr | None) -> set[str]:
    if node is None:
        return {"BaseException"}
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return {part.id for part in parts if isinstance(part, ast.Name)}


def _speaks(handler: ast.ExceptHandler) -> bool:
    """Whether a handler does something with the error, raises, logs or prints."""
    for node in ast.walk(handler):
        if isinstance(node, ast.Raise):
            return True
        if isinstance(node, ast.Name) and handler.name is not None and node.id == handler.name:
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "exception":
            return True
    return False


def silent(text: str) -> Iterator[int]:
    """The lines of broad handlers that say nothing, not even why."""
    lines = text.splitlines()
    for node in sources.nodes(text):
        if isinstance(node, ast.ExceptHandler):
            found = bool(_names(node.type) & BROAD) and not _speaks(node)
        elif isinstance(node, ast.With | ast.AsyncWith):
            calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
            suppresses = [call for call in calls if ast.unparse(call.func) in ("suppress", "contextlib.suppress")]
            found = any(_names(argument) & BROAD for call in suppresses for argument in call.args)
        else:
            continue
        _, _, comment = lines[node.lineno - 1].partition("#")
        if found and len(NOQA.sub("", comment).split()) < 3:
            yield node.lineno


def test_each_suppressed_exception_is_logged_or_justified() -> None:
    lines = {path.relative_to(ROOT): list(silent(path.read_text(encoding="utf-8"))) for path in SOURCES}
    assert len(lines) > 500
    assert {path: numbers for path, numbers in lines.items() if numbers} == {}


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("try:\n    f()\nexcept Exception:\n    pass\n", [3]),
        ("try:\n    f()\nexcept:\n    pass\n", [3]),
        ("with suppress(Exception):\n    f()\n", [1]),
        ("with contextlib.suppress(OSError, Exception):  # noqa: X1\n    f()\n", [1]),
        ("with suppress(Exception):  # noqa: X1, Y2\n    f()\n", [1]),
        ("try:\n    f()\nexcept Exception:  # noqa: BLE001, S110, SIM105\n    pass\n", [3]),
        ("with suppress(Exception):  # the next look asks again\n    f()\n", []),
        ("with suppress(Exception):  # noqa: X1 - the next look asks again\n    f()\n", []),
        ("try:\n    f()\nexcept Exception as error:\n    log.warning('no: %r', error)\n", []),
        ("try:\n    f()\nexcept Exception:\n    log.exception('no')\n", []),
        ("try:\n    f()\nexcept Exception:\n    raise Other from None\n", []),
        ("try:\n    f()\nexcept OSError:\n    pass\n", []),
        ("with suppress(OSError):\n    f()\n", []),
    ],
)
def test_a_silent_except_or_suppress_is_found(code: str, lines: list[int]) -> None:
    assert list(silent(code)) == lines
