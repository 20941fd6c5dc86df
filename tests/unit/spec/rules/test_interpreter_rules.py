"""Which interpreters roles may name: versions that dljob runs, and one of them for all ranks in Ray."""

from __future__ import annotations

from typing import Any

import pytest
from cel_cases import job, role

from dljob.errors import SpecError
from dljob.spec.loading.load import parse

SCRIPT = {"module": "a.py"}


def problems(*roles: dict[str, Any]) -> list[str]:
    try:
        parse(job({"roles": list(roles)}))
    except SpecError as error:
        return [f"{problem.path}: {problem.message} ({problem.hint})" for problem in error.problems]
    return []


@pytest.mark.parametrize("python", ["/usr/bin/python3.11", "python3.13", "python", "/opt/env-3.10/bin/python", "pypy3"])
def test_an_interpreter_that_may_fit_is_left_to_the_node(python: str) -> None:
    assert problems(role("a", entrypoint=SCRIPT, python=python)) == []


@pytest.mark.parametrize("python", ["/usr/bin/python3.10", "python3.14", "python2.7"])
def test_a_version_that_runs_no_ranks_is_refused(python: str) -> None:
    (said,) = problems(role("a", entrypoint=SCRIPT, python=python))
    assert said.startswith(f"spec.roles[0].python: ranks need Python 3.11 to 3.13, and {python} is another")


@pytest.mark.parametrize("python", ["bin/python", "python $(x)", "~/python", "/opt/a b/python", ""])
def test_an_interpreter_is_an_absolute_path_or_a_name(python: str) -> None:
    (said,) = problems(role("a", python=python))
    assert 'is not an absolute path such as "/opt/env/bin/python"' in said


def test_ranks_in_ray_need_one_version_and_scripts_any() -> None:
    script = role("c", entrypoint=SCRIPT, python="python3.13")
    assert problems(role("a", python="python3.12"), role("b", python="/opt/python3.12"), script) == []
    quota = role("b", entrypoint=SCRIPT, reserve="Quota", python="python3.12")
    (said,) = problems(role("a", python="/opt/python3.11"), quota, script)
    assert said.startswith("spec.roles[1].python: python3.12 is of another version than /opt/python3.11 of role a")
