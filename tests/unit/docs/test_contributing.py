"""CONTRIBUTING.md leads to files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PATHS = sorted(set(re.findall(r"`((?:workers|tests|docs|operator|charts)/[\w./-]+)`", PAGE)))


def test_the_contributing_walks_name_files() -> None:
    assert len(PATHS) > 15


@pytest.mark.parametrize("path", PATHS)
def test_files_named_by_the_contributing_page_exist(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("workers/dljob/spec/model.py", "pre_running_deadline_seconds"),
        ("tests/unit/spec/field_rows.py", "preRunningDeadlineSeconds"),
        ("workers/dljob/master/placement/timers.py", "pre_running_deadline_seconds"),
        ("workers/dljob/api/setters.py", "preRunningDeadlineSeconds"),
        ("workers/dljob/master/state/events.py", "class GroupAsked"),
        ("workers/dljob/master/transition.py", "GroupAsked: driver_groups.told"),
        ("workers/dljob/runtime/controller/group_watch.py", "GroupAsked"),
        ("tests/unit/master/persistence/test_codec.py", "GroupAsked"),
        ("workers/dljob/spec/loading/faults.py", '"slow"'),
    ],
)
def test_each_step_of_a_walk_has_its_example(path: str, name: str) -> None:
    assert name in (ROOT / path).read_text(encoding="utf-8")
