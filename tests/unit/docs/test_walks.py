"""The walks of docs/architecture.md hold in the code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "docs"))

import walks  # noqa: E402 - found by the path above

PAGE = walks.walks((ROOT / "docs" / "architecture.md").read_text())


@pytest.mark.parametrize("title", PAGE)
def test_each_function_of_a_walk_leads_to_the_next(title: str) -> None:
    assert walks.wrong(PAGE[title]) == []
