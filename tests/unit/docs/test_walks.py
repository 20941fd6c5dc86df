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
    assert walks.wrong(walk, walks.reader()) == []
    assert (walks.files(walk), walks.steps(walk)) <= MOST[title]


def test_the_page_has_these_walks_and_no_others() -> None:
    assert set(PAGE) == set(MOST)


STORY = {
    "workers/dljob/a.py": """
def first():
    b.second()

def makes():
    return Told(1)

TABLE = (b.listed,)

def asks():
    for one in TABLE:
        one()
""",
    "workers/dljob/b.py": """
def second():
    pass

def takes(event: Told):
    pass

def listed():
    pass
""",
}


@pytest.mark.parametrize(
    ("items", "errors"),
    [
        ("1. `a:first`\n2. `b:second`", []),
        ("1. `a:makes` hands `Told`\n2. `b:takes`", []),
        ("1. `a:asks`\n2. `b:listed`", []),
        ("1. `a:first`\n2. `b:second`\n3. back in `a:first`\n4. `b:second`", []),
        ("1. `a:first`\n2. `b:takes`", ["a:first does not call b:takes"]),
        ("1. `a:makes` hands `Told`\n2. `b:second`", ["b:second takes no Told"]),
        ("1. `a:first` hands `Told`\n2. `b:takes`", ["a:first makes no Told"]),
        ("1. `a:first`\n2. back in `a:makes`", ["a:makes was not on the walk before"]),
        ("1. `a:gone`\n2. `b:second`", ["a:gone is not there"]),
    ],
)
def test_a_walk_that_the_code_does_not_take_is_named(items: str, errors: list[str]) -> None:
    page = f"<details><summary>Walk: w</summary>\n\n{items}\n\n</details>"
    walk = walks.walks(page)["w"]
    assert walks.wrong(walk, lambda path: STORY.get(path, "")) == errors
