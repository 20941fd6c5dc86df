"""Which specs are too large to be kept, and what is kept of them."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from reconcile_kit import SETTINGS, dljob

from dljob.reconcile.state import accept, reasons
from dljob.reconcile.state.accept import Refused
from dljob.reconcile.state.excess import CHARACTERS, DEPTH, MARK, NESTING, VALUES, excess, reduced


def nested(levels: int) -> Any:
    made: Any = 1
    for _ in range(levels):
        made = [made]
    return made


@pytest.mark.parametrize(
    ("fits", "exceeds", "words"),
    [
        ([1] * VALUES, [1] * (VALUES + 1), f"more than {VALUES} values"),
        ([{}] * VALUES, {"a": [{}] * VALUES}, f"more than {VALUES} values"),
        (dict.fromkeys(map(str, range(VALUES))), dict.fromkeys(map(str, range(VALUES + 1))), "values"),
        ("x" * CHARACTERS, ["x", "x" * CHARACTERS], f"more than {CHARACTERS} characters"),
        ({"x" * CHARACTERS: 1}, {"x" * CHARACTERS: "y"}, f"more than {CHARACTERS} characters"),
        (nested(DEPTH - 1), nested(DEPTH), f"more than {DEPTH} levels"),
    ],
)
def test_a_spec_is_excessive_by_values_characters_or_nesting(fits: Any, exceeds: Any, words: str) -> None:
    assert excess(fits) == ""
    assert words in excess(exceeds)


def test_a_usual_job_is_kept_as_it_is() -> None:
    job = dljob(config={"layers": list(range(1000))})
    assert reduced(job) == job


def test_an_excessive_job_keeps_its_small_fields_and_is_refused_with_the_reason() -> None:
    job = dljob(config={"a": [{}] * VALUES}, ttlSecondsAfterFinished=5, rayClusterRef={"name": "mine"})
    kept = reduced(job)
    assert "config" not in kept["spec"]
    assert (kept["spec"]["ttlSecondsAfterFinished"], kept["spec"]["rayClusterRef"]) == (5, {"name": "mine"})
    assert kept["metadata"] == job["metadata"]
    found = accept.terms(accept.source(kept), SETTINGS)
    why = "spec: the spec has more than 20000 values (put large data into a file or a volume, and name that)"
    assert found == Refused(reasons.INVALID_SPEC, why)
    assert accept.live(accept.source(kept)).ttl == 5


@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="C code of Python 3.12 has a bound of its own; an operator has 3.11"
)
def test_the_deepest_json_that_an_api_server_takes_can_be_read_and_is_excessive() -> None:
    usual = sys.getrecursionlimit()
    text = '{"spec": {"config": ' + '{"a":' * 9_900 + "1" + "}" * 9_902
    try:
        sys.setrecursionlimit(NESTING)
        kept = reduced(json.loads(text))
    finally:
        sys.setrecursionlimit(usual)
    assert kept["spec"] == {MARK: f"the spec has more than {DEPTH} levels of objects and lists in each other"}
