from __future__ import annotations

import pytest

from dljob.plan.labels import matches


@pytest.mark.parametrize(
    ("expression", "value", "expected"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a", None, False),
        ("!a", "a", False),
        ("!a", "b", True),
        ("!a", None, True),
        ("in(a,b)", "b", True),
        ("in(a, b)", "b", True),
        ("in(a,b)", "c", False),
        ("in(a,b)", None, False),
        ("!in(a,b)", "a", False),
        ("!in(a,b)", "c", True),
        ("!in(a,b)", None, True),
        ("inn", "inn", True),
    ],
)
def test_label_selectors_match_as_in_ray(expression, value, expected):
    labels = {} if value is None else {"rack": value}
    assert matches([("rack", expression)], labels) is expected


def test_every_key_must_match():
    assert matches([], {})
    assert not matches([("rack", "a"), ("zone", "b")], {"rack": "a"})
