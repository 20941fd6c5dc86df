"""Advice on memory and CPUs: what is proposed from peaks and rates, and why nothing is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dljob.report.advice.job_use import JobUse, RoleUse
from dljob.report.advice.proposals import Advice, Proposal
from dljob.report.advice.resources import advise

MIB = 2**20
USED = RoleUse(
    ranks=2,
    productive_s=1200.0,
    productive=0.9,
    peaks=(900 * MIB, 1000 * MIB),
    cpus=tuple(0.5 + n / 100 for n in range(20)),
)


def role(**more: Any) -> dict[str, Any]:
    return {"name": "t", "replicas": 2, "resources": {"memory": "4Gi", "cpu": "2"}, **more}


def advice(used: RoleUse = USED, /, **more: Any) -> Advice:
    return advise([JobUse("j", {"roles": [role(**more)]}, 1000.0, 0.9, True, {"t": used})])


def of(found: Advice, key: str) -> Proposal:
    (one,) = (one for one in found.proposals if one.field[-1] == key)
    return one


def why(found: Advice, key: str) -> str:
    (one,) = (one for one in found.none if one.subject == f"roles.t.resources.{key}")
    return one.reason


def test_memory_is_the_highest_peak_and_a_fifth() -> None:
    found = of(advice(), "memory")
    assert (found.field, found.now, found.proposed) == (("roles", "t", "resources", "memory"), "4Gi", "1280Mi")
    assert found.value == "1280Mi"
    assert found.reason == "2 ranks of 1 run had at most 1 000 MiB resident, of 4Gi; a fifth more"
    assert (found.gain.of, found.gain.share) == ("memory", 1 - 1280 / 4096)
    assert found.gain.uncertainty == pytest.approx(200 / 4096)


def test_ranks_that_differ_make_the_gain_unsure() -> None:
    found = of(advice(replace(USED, peaks=(200 * MIB, 600 * MIB, 1000 * MIB))), "memory")
    assert found.gain.uncertainty == pytest.approx(800 / 4096)


def test_memory_that_is_nearly_full_is_raised() -> None:
    found = of(advice(replace(USED, peaks=(4000 * MIB,))), "memory")
    assert found.proposed == "4864Mi"
    assert found.gain.share < 0


def test_ranks_that_were_killed_get_half_as_much_again() -> None:
    found = of(advice(replace(USED, out_of_memory=4, lost_s=20.0)), "memory")
    assert (found.proposed, found.gain.of, found.gain.share) == ("6Gi", "goodput", 0.02)
    assert found.gain.uncertainty == pytest.approx(0.01)
    assert "4 ranks killed for want of it" in found.reason
    grown = replace(USED, out_of_memory=1, peaks=(9000 * MIB,))
    more = advise([JobUse("j", {"roles": [role()]}, 0.0, None, True, {"t": grown})])
    assert of(more, "memory").proposed == "11Gi"
    assert of(more, "memory").gain.share == 0.0


@pytest.mark.parametrize(
    ("used", "more", "said"),
    [
        (
            replace(USED, productive_s=100.0),
            {},
            "too little history: 50.0 s of productive time a rank",
        ),
        (replace(USED, peaks=()), {}, "no peak of its memory was recorded"),
        (replace(USED, growth=0.2), {}, "the peak still grew by 20% in the last quarter of a run"),
        (replace(USED, peaks=(3400 * MIB,)), {}, "4Gi fits"),
        (USED, {"resources": {}}, "the role asks for no memory"),
        (USED, {"resources": {"memory": "much"}}, "is not an amount of memory"),
    ],
)
def test_no_advice_on_memory_says_why(used: RoleUse, more: dict[str, Any], said: str) -> None:
    found = advice(used, **more)
    assert said in why(found, "memory")
    assert not [one for one in found.proposals if one.field[-1] == "memory"]


def test_cpus_are_what_nearly_all_measurements_need() -> None:
    found = of(advice(), "cpu")
    # 19 of 20 are at most 0.68: 0.81 with a fifth, and tenths below one.
    assert (found.now, found.proposed) == ("2", "0.9")
    assert found.gain.share == pytest.approx(0.55)
    assert found.gain.uncertainty == pytest.approx((0.69 - 0.68) / 2)
    assert found.reason == "95% of 20 measurements are at most 0.68 CPUs, the highest 0.69, of 2; a fifth more"
    assert of(advice(replace(USED, cpus=(1.3,) * 10), resources={"cpu": "4"}), "cpu").proposed == "2"
    assert of(advice(replace(USED, cpus=(0.0,) * 10), resources={"cpu": "500m"}), "cpu").proposed == "0.1"


@pytest.mark.parametrize(
    ("used", "more", "said"),
    [
        (replace(USED, productive_s=0.0), {}, "too little history"),
        (replace(USED, cpus=()), {}, "no CPU time was recorded"),
        (replace(USED, cpus=(0.5,) * 9), {}, "too little history: 9 measurements, wanted are 10"),
        (replace(USED, cpus=(2.5,) * 10), {}, "more may help, but nothing recorded says how much"),
        (replace(USED, cpus=(1.6,) * 10), {}, "2 fits"),
        (USED, {"resources": {"cpu": "many"}}, "is not an amount of CPU"),
        # Left out, a rank has one.
        (replace(USED, cpus=(0.9,) * 10), {"resources": {}}, "1 fits"),
    ],
)
def test_no_advice_on_cpus_says_why(used: RoleUse, more: dict[str, Any], said: str) -> None:
    found = advice(used, **more)
    assert said in why(found, "cpu")
    assert not [one for one in found.proposals if one.field[-1] == "cpu"]


def test_role_with_a_quota_gets_no_advice() -> None:
    assert advice(USED, reserve="Placement") == advice()
    found = advice(USED, reserve="Quota")
    assert not found.proposals
    assert "starts processes of its own" in found.none[0].reason


def test_runs_count_together_and_a_role_of_an_earlier_one_may_lack() -> None:
    half = replace(USED, productive_s=400.0)
    spec = {"roles": [role()]}
    uses = [JobUse("a", spec, 1.0, 0.9, True, {}), *[JobUse("b", spec, 1.0, 0.9, True, {"t": half})] * 2]
    assert "4 ranks of 2 runs" in of(advise(uses), "memory").reason
