"""The name of a test says what is expected: a failure line of CI often shows nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import sources

ROOT = Path(__file__).parents[3]
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
LEAST_WORDS = 3
"""A subject, a verb, and what is expected of it: fewer words only name a topic."""


def vague(text: str) -> list[str]:
    """Return the names of tests in a module that have fewer than LEAST_WORDS words after `test_`."""
    functions = (node for node in sources.nodes(text) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    names = [function.name for function in functions if function.name.startswith("test")]
    return [name for name in names if len([word for word in name.split("_")[1:] if word]) < LEAST_WORDS]


def test_each_test_name_has_three_words_or_more():
    found = {str(path.relative_to(ROOT)): vague(path.read_text(encoding="utf-8")) for path in TESTS}
    assert len(found) > 400, "the product has many test modules"
    assert {path: names for path, names in found.items() if names} == {}


def test_a_name_of_two_words_is_found_and_a_sentence_is_not():
    text = "def test_it(): ...\nclass TestA:\n    async def test_two_words(self): ...\ndef test_ranks_run_on(): ...\n"
    assert vague(text) == ["test_it", "test_two_words"]
