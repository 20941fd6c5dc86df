"""The exam of planted causes: its rows are sound, its grades are just, and its page is made of what is kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "tests" / "exam")]

import page  # noqa: E402 - found by the path above
from cause import GROUPS, MARK, Cause  # noqa: E402
from grading import grade  # noqa: E402
from rows import CAUSES  # noqa: E402

RIGHT_WORDS = "default/1: UserError: KeyError: 'god' (at train.py:7 in <module>), exit code 1"
PLANTED = Cause(
    name="key-error", group="user code", program="", kind="UserError", code=(10,), whom="default/1", says=("KeyError",)
)


def said(first: str, rank: str = "default/1", code: int = 10, **more: Any) -> dict[str, Any]:
    """What `dljob why` says of a failure, and the rest of a result."""
    fault = {"firstCause": first, "rank": rank, "reason": first.split(": ")[1], "evidence": []}
    why = {"code": code, "kind": "user_code", "fault": fault, "lines": ["job: Failed", f"first cause: {first}"]}
    return {"why": why, "status": {"phase": "Failed"}, "exit_code": 1, "broken": "", "console": [], **more}


def nothing_said() -> dict[str, Any]:
    why = {"code": 0, "kind": "nothing", "fault": None, "lines": ["job: Running", "nothing failed"]}
    return {"why": why, "status": {"phase": "Running"}, "exit_code": None, "broken": "", "console": []}


def test_every_cause_has_a_name_of_its_own_and_a_group_of_the_table() -> None:
    names = [cause.name for cause in CAUSES]
    assert len(names) == len(set(names))
    assert {cause.group for cause in CAUSES} <= set(GROUPS)
    assert [cause.name for cause in CAUSES if bool(cause.kind) == (cause.group == "nothing wrong")] == []
    twice = [cause.name for cause in CAUSES if (cause.program + "".join(cause.files.values())).count(MARK) > 1]
    assert twice == []


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (said(RIGHT_WORDS), "right"),
        (said(RIGHT_WORDS.replace("train.py:7", "dljob/rpc.py:7")), "half"),
        (said("default/1: Unknown: process gone, cause unknown", code=19), "wrong"),
        (said("default/0: Network: connection closed by peer", "default/0", 13), "innocent"),
        (said("default/0: UserError: KeyError: 'god' (at train.py:7)", "default/0"), "innocent"),
        (nothing_said(), "silent"),
        (said(RIGHT_WORDS, status={"phase": "Succeeded"}), "half"),
        (said(RIGHT_WORDS, broken="no process of default/1"), "not planted"),
    ],
)
def test_an_answer_is_right_only_with_kind_whom_and_line(result: dict[str, Any], expected: str) -> None:
    assert grade(PLANTED, "train.py:7", result)["grade"] == expected


def test_a_blame_where_nothing_failed_and_the_users_code_for_a_fault_of_the_machine_meet_innocents() -> None:
    sound = Cause(name="slow-start", group="nothing wrong", program="", kind="")
    assert grade(sound, "", said(RIGHT_WORDS))["grade"] == "innocent"
    assert grade(sound, "", nothing_said())["grade"] == "right"
    full = Cause(name="disk-full", group="disks", program="", kind="full", whom="default/1")
    assert grade(full, "", said("default/1: UserError: OSError: disk full"))["grade"] == "innocent"


def test_the_page_has_the_grades_that_are_kept() -> None:
    text, kept = page.PAGE.read_text(), page.known()
    assert page.rendered(text, kept) == text, "run: python tests/exam/page.py"
    assert kept.keys() <= {cause.name for cause in CAUSES}


def test_what_peers_say_is_kept_beside_the_rows_of_dljob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"group": "user code", "grade": "right", "first": "why", "expected": {}}
    kept: dict[str, Any] = {
        "a": row,
        "b": {**row, "peers": {"plain Ray": {"grade": "half", "kind": True, "whom": False, "when": "1"}}},
    }
    for name, text in {"KEPT": json.dumps(kept), "PAGE": f"# {page.BEGIN}{page.END}"}.items():
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(page, name, tmp_path / name)
    right = {"grade": "right", "kind": True, "whom": True, "when": "2", "tail": ["KeyError"]}
    page.keep({}, {"a": {"torchrun": right}, "b": {"torchrun": right, "Ray Train": {"grade": "not planted"}}, "c": {}})
    told = {key: value for key, value in right.items() if key != "tail"}
    assert page.known() == {
        "a": {**row, "peers": {"torchrun": told}},
        "b": {**row, "peers": {**kept["b"]["peers"], "torchrun": told}},
    }
    assert "| of 1 causes |" in page.PAGE.read_text(), "only b ran under both peers"
    page.keep({"a": {**row, "grade": "half"}}, {})
    assert page.known()["a"] == {**row, "grade": "half", "peers": {"torchrun": told}}
