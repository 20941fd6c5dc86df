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
        ("tests/unit/master/placement/test_admission.py", "preRunningDeadlineSeconds"),
        ("tests/unit/api/test_every_field.py", ".pre_running_deadline("),
        ("workers/dljob/master/state/events.py", "class NodeThawed"),
        ("tests/unit/master/persistence/test_codec.py", "ev.NodeThawed"),
        ("workers/dljob/master/placement/nodes.py", "NodeThawed"),
        ("workers/dljob/master/transition.py", "NodeThawed: nodes.thawed"),
        ("tests/unit/master/placement/test_nodes.py", "NodeThawed"),
        ("workers/dljob/runtime/controller/node_watch.py", "ev.NodeThawed("),
        ("workers/dljob/testing/world/events.py", "NodeThawed("),
        ("workers/dljob/spec/loading/faults.py", '"stop"'),
        ("workers/dljob/plan/targets.py", '"stop"'),
        ("workers/dljob/spec/reference_faults.py", "stop"),
        ("workers/dljob/runtime/faults/injector.py", '"stop"'),
        ("workers/dljob/runtime/faults/signals.py", "def stop("),
        ("workers/dljob/testing/simulate/scenario.py", '"stop"'),
        ("tests/unit/plan/test_targets.py", "fault: stop"),
        ("tests/unit/runtime/faults/test_inflict.py", "fault: stop"),
        ("tests/unit/testing/test_scenario.py", "fault: stop"),
        ("tests/ray/controller/test_faults.py", "fault: stop"),
        ("docs/howto/faults.md", "| stop |"),
    ],
)
def test_each_step_of_a_walk_has_its_example(path: str, name: str) -> None:
    assert name in (ROOT / path).read_text(encoding="utf-8")
