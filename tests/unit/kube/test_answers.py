"""How much an answer of a head may be, by what it would become in memory."""

from __future__ import annotations

import json

import pytest

from dljob.kube.answers import LARGE, USUAL, Bounds, excess, parsed

FEW = Bounds(1000, 5)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", ""),
        (b'{"a":1,"b":[2]}', ""),
        (b'{"a":' + b"1" * 1000 + b"}", "more than 1000 bytes"),
        (b"[" + b"{}," * 4 + b"{}]", "more than 5 values"),
        (b"[[[[[[]]]]]]", "more than 5 values"),
        (rb'{"said": "{,{,{,{,{,{,\",\",\",\\"}', ""),
        (b'"' * 21, "more than 5 values"),
        (b'["a","b","c","d"]', ""),
    ],
)
def test_the_values_of_an_answer_are_counted_by_kind_and_depth(body, why):
    assert excess(body, FEW) == why


def test_a_snapshot_and_a_placement_of_10000_ranks_are_within_their_bounds():
    roles = [{"name": f"role{n}", "desired": 10_000, "ready": 10_000, "running": 10_000} for n in range(32)]
    assert excess(json.dumps({"roles": roles, "result": "x" * 100_000}).encode(), USUAL) == ""
    nodes = [
        {
            "node": f"{number:056x}",
            "pod": f"trainer-91b60-worker-{number}",
            "units": [f"trainer/{number}-{k}" for k in range(8)],
            "roles": ["trainer"],
            "ranks": f"trainer/{number * 8}-{number * 8 + 7}",
        }
        for number in range(1250)
    ]
    assert excess(json.dumps({"version": 1, "nodes": nodes}).encode(), LARGE) == ""


def test_many_small_objects_are_refused_before_they_are_made():
    body = b'{"version":1,"x":[' + b"{}," * 300_000 + b"{}]}"
    assert excess(body, USUAL) == "more than 20000 values"
    assert excess(body, LARGE) == "more than 100000 values"


def test_an_answer_nested_too_deep_is_no_json():
    assert parsed(b"") is None
    assert parsed(b'{"a": 1}') == {"a": 1}
    for bad in (b"[" * 100_000, b"{", b"1" * 10_000):
        with pytest.raises(ValueError, match=r"nested|Expecting|Exceeds"):
            parsed(bad)
