"""How many answers of a probe it takes to change what it says, and how long it waits for the next one."""

from __future__ import annotations

from dljob.plan.serving import ProbePlan
from dljob.runtime.serving.tally import Tally

PROBE = ProbePlan("tcp", successes=2, failures=3, period_s=4)


def after(*answers: bool) -> Tally:
    tally = Tally()
    for ok in answers:
        tally = tally.counted(PROBE, ok=ok)
    return tally


def test_a_verdict_takes_as_many_answers_in_a_row_as_the_thresholds_say():
    assert after(True).verdict is None
    assert after(True, True).verdict is True
    assert after(True, True, False, False).verdict is True
    assert after(True, True, False, False, True, False, False).verdict is True, "the row was broken"
    assert after(True, True, False, False, False).verdict is False
    assert after(False, False, False, True).verdict is False


def test_pauses_double_up_to_the_period_until_the_first_success():
    pauses = [after(*[False] * tries).pause_s(PROBE) for tries in range(1, 9)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 4.0, 4.0]
    assert after(False, True).pause_s(PROBE) == 4
