"""Which roles may restart with a role: others that exist, and that live at the same time."""

from __future__ import annotations

from typing import Any

import pytest
from cel_cases import job, role

from dljob.errors import SpecError
from dljob.spec.loading.load import parse


def problems(*roles: dict[str, Any]) -> list[str]:
    try:
        parse(job({"roles": list(roles)}))
    except SpecError as error:
        return [f"{problem.path}: {problem.message} ({problem.hint})" for problem in error.problems]
    return []


def with_(name: str, *others: str, **policy: Any) -> dict[str, Any]:
    return role(name, restartPolicy={"with": list(others), **policy})


def complete(name: str, after: str) -> dict[str, Any]:
    return role(name, dependsOn=[{"role": after, "condition": "Complete"}])


def test_roles_may_name_each_other_in_any_direction() -> None:
    assert problems(with_("engine", "router"), with_("router", "engine"), role("trainer")) == []
    waits = [{"role": "engine", "condition": "Ready"}]
    assert problems(with_("engine", "router", level="Never"), role("router", dependsOn=waits)) == []


def test_a_role_that_does_not_exist_is_refused_with_the_nearest_name() -> None:
    (said,) = problems(with_("engine", "ruoter"), role("router"))
    assert "roles[0].restartPolicy.with[0]" in said
    assert "restartPolicy.with must name other roles: there is no role ruoter" in said
    assert "router" in said.partition("ruoter")[2]


def test_the_role_itself_and_a_second_mention_are_refused() -> None:
    (said,) = problems(with_("engine", "engine"), role("router"))
    assert "engine is the role itself" in said
    (said,) = problems(with_("engine", "router", "router"), role("router"))
    assert "roles[0].restartPolicy.with[1]: router is listed twice" in said


def test_a_role_whose_failures_restart_the_job_takes_nobody_along() -> None:
    (said,) = problems(with_("engine", "router", level="Job"), role("router"))
    assert "each failure of engine restarts all roles: its level is Job" in said


@pytest.mark.parametrize("first", ["prepare", "train"])
def test_roles_of_which_one_waits_for_the_end_of_the_other_are_refused(first: str) -> None:
    other = "train" if first == "prepare" else "prepare"
    prepare, train = role("prepare"), complete("train", "prepare")
    pair = [
        {**each, "restartPolicy": {"with": [other]}} if each["name"] == first else each for each in (prepare, train)
    ]
    (said,) = problems(*pair)
    assert "train waits until prepare has completed, so they never restart together" in said


def test_an_end_that_is_waited_for_through_other_roles_counts() -> None:
    between = complete("between", "prepare")
    last = role("last", dependsOn=[{"role": "between"}, {"role": "prepare"}])
    (said,) = problems(with_("prepare", "last"), between, last)
    assert "last waits until prepare has completed" in said
    ways = [role("one", dependsOn=[{"role": "prepare"}]), role("two", dependsOn=[{"role": "prepare"}])]
    both = role("both", dependsOn=[{"role": "one"}, {"role": "two"}])
    assert problems(with_("prepare", "both"), *ways, both) == []
    assert problems(with_("prepare", "side"), between, role("side", dependsOn=[{"role": "prepare"}])) == []
