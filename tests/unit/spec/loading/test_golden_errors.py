"""One file per way to be wrong, and the exact words for it. DLJOB_GOLDEN=write makes the texts again: read the diff."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dljob.errors import SpecError
from dljob.spec.loading.load import load_all

GOLDEN = Path(__file__).parents[3] / "golden"
CASES = sorted((GOLDEN / "errors").glob("*.yaml"))


def said(path: Path) -> str:
    with pytest.raises(SpecError) as caught:
        load_all(path.read_bytes(), file=path.name)
    problems = caught.value.problems
    assert list(problems) == sorted(problems, key=lambda p: (p.line, p.column)), "not in the order of the file"
    assert all(p.line >= 1 and p.column >= 1 and p.file == path.name for p in problems)
    return "".join(f"{problem}\n" for problem in problems)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_problem_is_said_in_these_words(path: Path) -> None:
    text, expected = said(path), path.with_suffix(".txt")
    if os.environ.get("DLJOB_GOLDEN") == "write":
        expected.write_text(text, encoding="utf-8")
    assert text == expected.read_text(encoding="utf-8")


def test_each_expected_text_has_its_case() -> None:
    texts = {path.stem for path in (GOLDEN / "errors").glob("*.txt")}
    assert texts == {path.stem for path in CASES}
    assert len(CASES) > 40
