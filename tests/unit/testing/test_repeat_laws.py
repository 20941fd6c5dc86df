"""The law of ends that repeat: broken where the core judges by another rule, and kept where it judges by its own."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dljob.master.failure import repeats
from dljob.master.state.faults import FaultRecord
from dljob.master.state.views import Outcome, Reason
from dljob.telemetry import reasons
from dljob.testing.simulate.drive import case_of, simulate
from dljob.testing.world import repeat_invariants

BUG = Outcome(ok=False, reason=Reason.USER_ERROR, error_type="ValueError", frame="train.py:7 in step", step=3)
FIRST = FaultRecord(1, "Process", "UserError", "w/0", "w/0: ValueError", 100.0, rank="w/0", incarnation=1, outcome=BUG)
SECOND = replace(FIRST, id=2, detected_at=160.0, incarnation=2)
FURTHER = replace(SECOND, outcome=replace(BUG, step=4))
ELSEWHERE = replace(SECOND, outcome=replace(BUG, frame="train.py:9 in step"))


def broken(*faults: FaultRecord, ends: str = "", saved: float = 0.0, rules: tuple[Any, ...] = ()) -> list[str]:
    """What the law says of a job with these faults; `ends`: the reason of its end."""
    job = SimpleNamespace(
        fault_tolerance=SimpleNamespace(rules=rules), roles={"w": SimpleNamespace(is_torch_world=False)}
    )
    verdict = SimpleNamespace(reason=ends) if ends else None
    saves = {"w": SimpleNamespace(last=SimpleNamespace(at=saved))}
    return list(
        repeat_invariants.check_repeats(
            cast("Any", SimpleNamespace(faults=faults, verdict=verdict, saves=saves, job=job))
        )
    )


def test_the_law_finds_a_rank_that_goes_on_after_two_equal_ends() -> None:
    assert broken(FIRST, SECOND) == ["repeats: w/0 goes on after w/0: ValueError, twice without progress between"]
    assert broken(FIRST, SECOND, ends=reasons.USER_ERROR_REPEATS) == []


@pytest.mark.parametrize(
    "second", [FURTHER, ELSEWHERE, replace(SECOND, incarnation=3), replace(SECOND, reports_lost_peer=True)]
)
def test_the_law_allows_ranks_that_made_progress_or_ended_differently(second: FaultRecord) -> None:
    assert broken(FIRST, second) == []
    assert broken(FIRST, SECOND, saved=130.0) == []
    assert broken(FIRST, SECOND, rules=("one",)) == []


@pytest.mark.parametrize("second", [FURTHER, ELSEWHERE])
def test_no_job_ends_by_what_is_no_repetition(second: FaultRecord) -> None:
    said = ["repeats: the job ends with w/0: ValueError, which is no repetition"]
    assert broken(FIRST, second, ends=reasons.USER_ERROR_REPEATS) == said
    assert broken(SECOND, ends=reasons.USER_ERROR_REPEATS) == said
    blamed = replace(SECOND, outcome=replace(BUG, reason=Reason.NODE_LOST))
    assert broken(FIRST, blamed, ends=reasons.USER_ERROR_REPEATS) == said
    assert broken(replace(FIRST, outcome=replace(BUG, fatal=True)), ends=reasons.USER_ERROR_REPEATS) == []


def test_a_core_that_takes_every_end_for_the_same_breaks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "_is_same_end", lambda *_: True)
    found = simulate(case_of(2))
    assert [problem.partition(":")[0] for problem in found.problems] == ["repeats"]
