"""Advice on rules: the one that helps most in the simulator, and why there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from past_kit import WORKERS, past_of

from dljob.report import what_if
from dljob.report.advice import rules
from dljob.report.advice.proposals import Advice
from dljob.report.advice.rules import TriedRules, advise
from dljob.report.what_if import WhatIf
from dljob.spec.model import DLJobManifest
from dljob.testing.simulate.drive import Case
from dljob.testing.world.fault_schedule import Timed
from dljob.testing.world.model import FaultMove

SPARES = "faultTolerance.spares.processesPerNode=1"
LEVEL = "roles.w.restartPolicy.level=Process"


def rule(name: str, difference: float, uncertainty: float = 0.01) -> WhatIf:
    return WhatIf(name, 0.8, 0.8, difference, uncertainty, 100.0, "Succeeded")


def advice(*found: WhatIf, failures: int = 3) -> Advice:
    tried = TriedRules(DLJobManifest.model_validate(WORKERS), failures, found)
    return advise(Path(), lambda _folder: tried)


def test_best_rule_is_proposed_and_others_are_told() -> None:
    small = rule("faultTolerance.backoff.initialSeconds=0", 0.001)
    (one,) = advice(rule(SPARES, 0.06), rule(LEVEL, 0.03), small).proposals
    assert (one.field, one.now) == (("faultTolerance", "spares", "processesPerNode"), "0")
    assert (one.proposed, one.value, one.gain.share, one.gain.uncertainty) == ("1", 1, 0.06, 0.01)
    said = "3 failures of the last run, simulated: goodput 80.0% then, 86.0% with it; alone, and not beside it: "
    assert one.reason == f"{said}{LEVEL} +3.0 +/- 1.0 points"
    (level,) = advice(rule(LEVEL, 0.03)).proposals
    assert (level.field, level.now, level.value) == (("roles", "w", "restartPolicy", "level"), "-", "Process")
    assert "alone" not in level.reason
    (other,) = advice(rule("roles.gone.restartPolicy.level=Process", 0.03)).proposals
    assert other.now == "-"


@pytest.mark.parametrize(
    ("found", "failures", "said"),
    [
        ([rule(SPARES, 0.06)], 2, "too little history: 2 failures, wanted are 3"),
        ([rule(SPARES, 0.02, 0.03)], 3, f"the best rule tried, {SPARES}, +2.0 +/- 3.0 points, brings more"),
        ([], 3, "no rule that was tried brings more"),
    ],
)
def test_no_rule_says_why(found: list[WhatIf], failures: int, said: str) -> None:
    made = advice(*found, failures=failures)
    assert not made.proposals
    assert said in made.none[0].reason


def test_faults_of_a_folder_are_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if, "FEW", 2)
    manifest: Any = {**WORKERS, "spec": {**WORKERS["spec"], "faultTolerance": {"backoff": {"initialSeconds": 60}}}}
    kills = tuple(Timed(100.0 * n, FaultMove("kill", 0, 1, "w/0")) for n in range(1, 4))
    past_of(tmp_path / "job", Case(3, manifest, kills), work=400.0)
    found = rules.tried(tmp_path / "job")
    assert isinstance(found, TriedRules)
    assert found.failures == 3
    assert found.predictions[0].rule == "faultTolerance.backoff.initialSeconds=0"
    assert found.predictions[0].difference > 0.05


def test_folder_whose_job_cannot_be_played_again_says_why(tmp_path: Path) -> None:
    past_of(tmp_path / "job", Case(3, WORKERS, ()), core="9.9.9 f00f00f00f00")
    (none,) = advise(tmp_path / "job").none
    assert none.reason.startswith("the job ran with dljob 9.9.9 f00f00f00f00")
