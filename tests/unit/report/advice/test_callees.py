"""Advice on the number of ranks of a role that others call: who waits for whom, and what more or fewer would bring."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dljob.report.advice.callees import Waits, advise
from dljob.report.advice.job_use import CallUse, JobUse, RoleUse
from dljob.report.advice.proposals import Advice
from dljob.spec.loading.load import parse

WAITING = CallUse(seconds=600.0, waited_s=360.0, served_s=(350.0, 346.0), windows=(0.58, 0.62) * 15)
"""A trainer that works 40 % of its time, and waits for two rollouts that are busy for nearly as long."""
IDLE = CallUse(seconds=600.0, waited_s=6.0, served_s=(7.0, 5.0, 6.0, 6.0), windows=(0.01,) * 30)


def job(use: CallUse, /, **more: Any) -> JobUse:
    role: dict[str, Any] = {"name": "rollout", "replicas": len(use.served_s) or 2, **more}
    used = RoleUse(role["replicas"], 600.0, 0.9)
    calls = {("trainer", "rollout"): use, ("logger", "rollout"): replace(use, waited_s=1.0)}
    roles = {"trainer": RoleUse(1, 600.0, 0.9), "rollout": used}
    return JobUse("j", {"roles": [{"name": "trainer"}, role]}, 650.0, 0.9, True, roles, calls=calls)


def advice(use: CallUse, /, **more: Any) -> Advice:
    return advise([job(use, **more)])


def test_caller_that_waits_gets_more_ranks() -> None:
    (one,) = advice(WAITING).proposals
    assert (one.field, one.subject) == (("roles", "rollout", "replicas"), "roles.rollout.replicas")
    assert (one.now, one.proposed, one.value) == ("2", "4", 4)
    # 40 % of work, 60 % of waits less half of 58 %.
    predicted = 0.4 / (0.4 + 0.6 - 0.29)
    assert (one.gain.of, one.gain.share) == ("work", pytest.approx(predicted - 0.4))
    assert 0 < one.gain.uncertainty < 0.05
    assert one.reason == (
        "trainer waits for it 60% of its time, +/- 0.7, and a rank is busy 58% of that time; "
        "with 4 it would work 56% of its time instead of 40%"
    )


def test_fewest_ranks_that_end_the_waits_are_proposed() -> None:
    mild = CallUse(600.0, 60.0, (60.0,) * 4, (0.1,) * 30)
    (one,) = advice(mild).proposals
    assert one.proposed == "8"
    # What overlaps with the caller's own work is not waited for: two more ranks end what is.
    overlapped = CallUse(600.0, 60.0, (300.0,) * 4, (0.1,) * 30)
    (one,) = advice(overlapped).proposals
    assert one.proposed == "5"


def test_ranks_that_differ_make_the_gain_unsure() -> None:
    (even,) = advice(WAITING).proposals
    (uneven,) = advice(replace(WAITING, served_s=(360.0, 320.0))).proposals
    assert uneven.gain.uncertainty > even.gain.uncertainty + 0.01


def test_idle_ranks_are_given_up_within_a_point() -> None:
    (one,) = advice(IDLE).proposals
    # A fourth of them would be busy for 4 %: 3 points more than now; half of them cost one point.
    assert (one.now, one.proposed, one.gain.of, one.gain.share) == ("4", "2", "ranks", 0.5)
    assert one.reason.endswith("with 2 trainer would wait 1.0 points more at most")


@pytest.mark.parametrize(
    ("use", "more", "said"),
    [
        (replace(WAITING, seconds=100.0), {}, "too little history: trainer ran for 1m40s, wanted are 5m00s"),
        (replace(WAITING, windows=(0.6,) * 9), {}, "too little history: 9 samples of waits, wanted are 10"),
        (replace(WAITING, served_s=()), {}, "no time of calls in rollout was recorded"),
        (replace(WAITING, served_s=(100.0, 100.0)), {}, "most of the wait is not for a rank that works"),
        (replace(WAITING, windows=(0.0, 1.2) * 15), {}, "instead of 2 would bring"),
        (replace(IDLE, served_s=(100.0, 100.0)), {}, "2 fit: trainer waits for it 1% of its time"),
        (WAITING, {"type": "Elastic"}, "its ranks train together"),
        (WAITING, {"replicasPerGroup": 2}, "its ranks form groups"),
        (WAITING, {"maxReplicas": 4}, "it grows and shrinks while the job runs"),
    ],
)
def test_no_advice_on_ranks_says_why(use: CallUse, more: dict[str, Any], said: str) -> None:
    found = advice(use, **more)
    assert not found.proposals
    (one,) = found.none
    assert one.subject == "roles.rollout.replicas"
    assert said in one.reason


def test_role_as_a_job_records_it_gets_advice() -> None:
    role = {"name": "rollout", "replicas": 2, "driver": False, "entrypoint": {"class": "m.R"}}
    trainer = {"name": "trainer", "entrypoint": {"class": "m.T"}}
    kind = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob"}
    made = parse({**kind, "metadata": {"name": "j"}, "spec": {"roles": [trainer, role]}})
    spec = made.model_dump(mode="json", by_alias=True, exclude_none=True)["spec"]
    assert advise([replace(job(WAITING), spec=spec)]).proposals


def test_role_that_nobody_calls_is_not_mentioned() -> None:
    assert advise([replace(job(WAITING), calls={})]) == Advice()


def test_runs_of_one_shape_count_together() -> None:
    half = replace(WAITING, seconds=200.0, waited_s=120.0, served_s=(117.0, 115.0), windows=(0.6,) * 10)
    assert not advise([job(half)]).proposals
    assert advise([job(half), job(half)]).proposals


def test_caller_works_as_much_as_before_with_as_many_ranks() -> None:
    assert Waits(0.3, 0.3, 0.3, 0.0).at_work(1) == pytest.approx(0.7)
    assert Waits(0.3, 0.3, 0.3, 0.0).at_work(1e9) == pytest.approx(1.0)
