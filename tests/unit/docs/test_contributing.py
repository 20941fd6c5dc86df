"""CONTRIBUTING.md leads to files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PATHS = sorted(set(re.findall(r"`((?:workers|tests|docs|operator|charts)/[\w./-]+)`", PAGE)))


@pytest.mark.parametrize("path", PATHS)
def test_files_named_by_the_contributing_page_exist(path: str) -> None:
    assert (ROOT / path).exists()
