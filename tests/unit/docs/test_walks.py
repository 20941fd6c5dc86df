"""The walks of docs/architecture.md hold in the code, and grow in no file and no step unseen."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "docs"))

import walks  # noqa: E402 - found by the path above

PAGE = walks.walks((ROOT / "docs" / "architecture.md").read_text())
MOST = {
    "`replicas: 4` becomes four actors": (16, 28),
    "A worker dies, and a new actor takes its place": (7, 13),
    "A role calls another role": (10, 14),
    "A DLJob becomes a RayCluster": (10, 15),  # a pass whose status is refused is made again without the head's news
}
"""Files and steps of each walk. A change that makes one longer says why it is worth it."""


@pytest.mark.parametrize("title", MOST)
def test_each_function_of_a_walk_leads_to_the_next(title: str) -> None:
    walk = PAGE[title]
    assert walks.wrong(walk) == []
    assert (walks.files(walk), walks.steps(walk)) <= MOST[title]


def test_the_page_has_these_walks_and_no_others() -> None:
    assert set(PAGE) == set(MOST)
