"""Decisions: each stands in the index once, under its own title, and is short."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parents[3] / "docs" / "adr"
INDEX = (FOLDER / "README.md").read_text(encoding="utf-8")
PAGES = sorted(FOLDER.glob("[0-9]*.md"))
LONGEST = 60


def test_each_adr_is_indexed_under_its_title() -> None:
    for page in PAGES:
        lines = page.read_text(encoding="utf-8").splitlines()
        title = lines[0].removeprefix("# ")
        assert INDEX.count(f"- [{title}]({page.name})") == 1, page
        assert title.startswith(f"{int(page.name[:4])}. "), page
        assert len(lines) <= LONGEST, page


def test_the_adr_index_names_no_missing_page() -> None:
    assert sorted(re.findall(r"\]\((\d[\w-]+\.md)\)", INDEX)) == [page.name for page in PAGES]
