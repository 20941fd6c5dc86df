"""Which jobs are of one shape, and what is said of the others."""

from __future__ import annotations

from typing import Any

import pytest

from dljob.report.advice.job_use import JobUse
from dljob.report.advice.shapes import comparable

ROLE: dict[str, Any] = {"name": "t", "entrypoint": {"class": "m.C"}, "replicas": 4}


def job(name: str, *roles: dict[str, Any]) -> JobUse:
    return JobUse(name, {"roles": list(roles)}, 1.0, None, True, {})


def test_jobs_of_one_shape_count_together() -> None:
    jobs = [job("a", {**ROLE, "type": "Actor", "config": {"lr": 1}}), job("b", {**ROLE, "args": ["x"]}), job("c", ROLE)]
    assert comparable(jobs) == (jobs, [])


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ([{**ROLE, "replicas": 5}], "roles.t.replicas is 5, not 4"),
        ([{**ROLE, "entrypoint": {"class": "m" * 90}}], 'roles.t.entrypoint is {"class": "mmm'),
        ([ROLE, {"name": "u"}], "it has the roles t, u, not t"),
        ([], "it has the roles none, not t"),
    ],
)
def test_jobs_of_another_shape_are_named_with_the_difference(roles: list[dict[str, Any]], said: str) -> None:
    kept, (none,) = comparable([job("a", *roles), job("b", ROLE)])
    assert [one.name for one in kept] == ["b"]
    assert none.subject == "a"
    assert none.reason.startswith(f"another shape of job than b: {said}")
    assert len(none.reason) < 160
