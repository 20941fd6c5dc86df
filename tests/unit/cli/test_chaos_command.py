"""`dljob chaos` where it can do nothing, and what is said of a faults file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dljob.cli import chaos, main


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DLJOB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    found = tmp_path / "faults.yaml"
    found.write_text("- {when: {time: 1}, target: master, fault: kill}\n")
    return found


def test_chaos_refuses_an_unknown_job(file, capsys):
    assert main.run(["chaos", "ppo", str(file)]) == 3
    assert "ppo" in capsys.readouterr().err


INCIDENT = {"cause": "Unknown", "target": "a/0", "level": "Process", "seconds": 0.5}
TOLD: dict[str, Any] = {
    "faults": [
        {"fault": "kill", "target": "a/0", "at": 2.0, "incidents": [INCIDENT], "problem": "", "met": True},
        {"fault": "kill", "target": "b", "at": None, "incidents": [], "problem": "it was never injected", "met": True},
    ],
    "unasked": [INCIDENT | {"seconds": None}],
    "problems": ["two ranks: a/0"],
}


def test_chaos_shows_faults_recoveries_and_broken_laws(capsys):
    chaos.show(TOLD)
    assert capsys.readouterr().out.splitlines() == [
        "      2.0 s  kill a/0",
        "             Unknown a/0 [Process]: well again after 0.50 s",
        "never        kill b",
        "of itself    Unknown a/0 [Process]: not well again",
        "broken: two ranks: a/0",
    ]


def test_chaos_fails_when_the_outcome_is_not_as_expected(capsys):
    assert chaos.verdict({}) == 0
    assert chaos.verdict(TOLD) == 0
    assert capsys.readouterr().err == "fault 1, kill b: it was never injected\n"
    bad = {"faults": [TOLD["faults"][0] | {"problem": "expected level Role; the job reported nothing", "met": False}]}
    assert chaos.verdict(bad) == 1
    assert "fault 0, kill a/0: expected level Role" in capsys.readouterr().err
