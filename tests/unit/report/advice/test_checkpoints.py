"""Advice on saves: Daly's interval from measured save times and failures, and why there is none."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from dljob.report.advice.checkpoints import Intervals, advise, daly
from dljob.report.advice.job_use import JobUse, RoleUse, SaveUse

# A save of 0.5 s after each second of work; a failure every 500 s.
OFTEN = RoleUse(2, 4000.0, 0.8, saves=SaveUse(2000, 1000.0), steps=4000, failures=4)


def use(own: RoleUse = OFTEN, spec: dict[str, Any] | None = None, **more: Any) -> JobUse:
    return replace(JobUse("j", spec or {"roles": []}, 2500.0, 0.8, True, {"t": own}), **more)


def test_the_best_interval_costs_least() -> None:
    for save, failure in ((0.5, 500.0), (60.0, 86400.0), (1.0, 100.0)):
        best = daly(save, failure)
        assert best == pytest.approx(math.sqrt(2 * save * failure), rel=0.1)
        found = Intervals(save, failure, best, best)
        assert found.cost(best) < min(found.cost(best / 2), found.cost(best * 2))
    assert daly(100.0, 40.0) == 40.0


def test_too_frequent_saves_are_told_with_all_numbers() -> None:
    found = advise([use()])
    (one,) = found.proposals
    assert not found.none
    assert (one.subject, one.value, one.field) == ("roles.t: interval of checkpoint.save()", None, ())
    assert (one.now, one.proposed) == ("2 steps, 1 s", "44 steps, 22.0 s")
    # Half of the time goes to saves; of the best interval 4.5 % do, and as much to repeated steps.
    assert one.gain.share == pytest.approx(0.8 * (0.501 - 0.0447), abs=0.002)
    assert one.gain.uncertainty == pytest.approx(0.8 * 21.1 / 1000 / 2, rel=0.05)
    assert one.reason.startswith(
        "2000 saves of 0.5 s each, every 1 s; a failure every 8m20s (4); 0.0% of the time repeated"
    )
    assert one.data()["field"] is None


def test_what_was_repeated_beside_the_formula_makes_it_less_sure() -> None:
    found = advise([use(replace(OFTEN, recompute_s=400.0))]).proposals[0]
    assert found.gain.uncertainty > advise([use()]).proposals[0].gain.uncertainty + 0.05


def test_cuts_are_in_the_file_and_get_their_steps() -> None:
    (one,) = advise([use(spec={"roles": [], "checkpoint": {"everySteps": 2}})]).proposals
    assert (one.field, one.now, one.proposed, one.value) == (("checkpoint", "everySteps"), "2", "44", 44)
    (blind,) = advise([use(replace(OFTEN, steps=0), spec={"checkpoint": {"everySteps": 2}})]).proposals
    assert (blind.value, blind.now) == (None, "1 s")


def test_short_saves_are_told_in_milliseconds() -> None:
    seldom = replace(OFTEN, saves=SaveUse(10, 0.5))
    (one,) = advise([use(seldom)]).proposals
    assert "10 saves of 50 ms each, every 3m20s" in one.reason


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ([use(replace(OFTEN, saves=None))], "no save was recorded"),
        ([use(roles={})], "no save was recorded"),
        ([use(journal=False)], "the failures are not known"),
        ([use(replace(OFTEN, saves=SaveUse(9, 9.0)))], "too little history: 9 saves, wanted are 10"),
        ([use(replace(OFTEN, failures=2))], "too little history: 2 failures, wanted are 3"),
        ([use(replace(OFTEN, saves=SaveUse(20, 0.0)))], "a save took no time that could be measured"),
        ([use(replace(OFTEN, productive_s=0.0))], "a save took no time that could be measured"),
        ([use(replace(OFTEN, saves=SaveUse(90, 45.0)))], "the best interval would bring 0.0 points"),
        ([use(replace(OFTEN, saves=SaveUse(33, 16.5), failures=3))], "which is within its uncertainty of"),
    ],
)
def test_no_advice_on_saves_says_why(jobs: list[JobUse], said: str) -> None:
    found = advise(jobs)
    assert not found.proposals
    assert said in found.none[0].reason


def test_runs_count_together_for_saves_and_failures() -> None:
    few = replace(OFTEN, failures=2, saves=SaveUse(1000, 500.0), productive_s=2000.0, steps=2000)
    one, two = advise([use(few), use(few)]).proposals[0], advise([use()]).proposals[0]
    assert (one.proposed, one.gain) == (two.proposed, two.gain)
