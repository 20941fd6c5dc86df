"""Commit subjects: the area, the imperative, 72 characters."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CHECK = ROOT / "tests/commit_subject.py"
_spec = importlib.util.spec_from_file_location("commit_subject", CHECK)
assert _spec is not None
assert _spec.loader is not None
commit_subject = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(commit_subject)


@pytest.mark.parametrize(
    "subject",
    [
        "plan: render the RayCluster where it is read, not in each plan",
        "spec, operator: rooms in place of one folder, their order kept",
        "Merge branch 'a'",
        "a: " + "x" * 69,
    ],
)
def test_a_good_subject_passes(subject: str) -> None:
    assert commit_subject.wrong(subject) == []


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        ("render the RayCluster", "does not begin with an area"),
        ("plan: " + "x" * 67, "73 characters, and 72"),
        ("plan: Added a field", "not the imperative"),
        ("plan: render it.", "full stop"),
    ],
)
def test_a_bad_subject_is_told_with_its_reason(tmp_path: Path, subject: str, said: str) -> None:
    message = tmp_path / "message"
    message.write_text(
        f"{subject}\n\nThe body may be as long as it likes, and say why, in as many lines as it takes.\n"
    )
    done = subprocess.run([sys.executable, CHECK, message], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert said in done.stderr


def test_the_hooks_name_tools_that_are_there() -> None:
    config = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    entries = [line.split("entry: ")[1].split() for line in config.splitlines() if "entry: " in line]
    assert [entry[0] for entry in entries].count(".venv/bin/ruff") == 2
    scripts = {word for entry in entries for word in entry if word.endswith(".py")}
    assert scripts == {"tests/commit_subject.py"}
    assert all((ROOT / path).is_file() for path in scripts)
