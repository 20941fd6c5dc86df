"""Single values of a YAML text: what is set, and that nothing else changes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.errors import UsageError
from dljob.spec.text import tree
from dljob.spec.text.edit import with_value
from dljob.spec.text.tree import Loc


@pytest.mark.parametrize(
    ("text", "loc", "value", "made"),
    [
        ("a: 1 # why\n", ("a",), 2, "a: 2 # why\n"),
        ("a: '1'\n", ("a",), "2Gi", 'a: "2Gi"\n'),
        ("a: 'x'\n", ("a",), 2, "a: 2\n"),
        ("a: x\nb: y\n", ("a",), "3", 'a: "3"\nb: y\n'),
        ("a: x", ("b",), 3, "a: x\nb: 3\n"),
        ("a: x\r\nc: y\r\n", ("b",), 3, "a: x\r\nc: y\r\nb: 3\r\n"),
        ("# top\na: x # own\n# of c\nc: y\n", ("b", "d"), 3, "# top\na: x # own\n# of c\nc: y\nb:\n  d: 3\n"),
        # A text of several lines, or a mapping, is passed over: the value goes behind a key of one line.
        ("a: x\nc: |\n  1\n  2\n", ("b",), 3, "a: x\nb: 3\nc: |\n  1\n  2\n"),
        ("c:\n  d: 1\n", ("b",), 3, "b: 3\nc:\n  d: 1\n"),
        ("c: one\n  two\n", ("b",), 3, "b: 3\nc: one\n  two\n"),
        ("- - c:\n      d: 1\n", (0, 0, "b"), 3, "- - b: 3\n    c:\n      d: 1\n"),
        ("- name: x\n  y: {}\n", (0, "y", "z"), 3, "- name: x\n  y: {z: 3}\n"),
        ("a: { b: 1 } # why\n", ("a", "c", "d"), "4", 'a: {c: {d: "4"},  b: 1 } # why\n'),
        ('{"a": {"b": 1}}', ("a", "c"), "4", '{"a": {"c": "4", "b": 1}}'),
    ],
)
def test_value_is_set_and_all_else_stays(text: str, loc: Loc, value: str | int, made: str) -> None:
    assert with_value(text, 0, loc, value) == made


def test_document_is_chosen_by_its_number() -> None:
    assert with_value("a: 1\n---\n---\na: 1\n", 1, ("a",), 2) == "a: 1\n---\n---\na: 2\n"


@pytest.mark.parametrize(
    ("text", "loc", "said"),
    [
        ("a: &x {b: 1}\nc: *x\n", ("c", "b"), "an anchor or a merge shares it"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", ("c", "b"), "an anchor or a merge shares it"),
        ("a: {b: 1}\n", ("a",), "it is not a plain value"),
        ("a: 1\n", ("a", "b"), "a holds no key"),
        ("a:", ("a", "b", "c"), "a holds no key"),
    ],
)
def test_value_that_cannot_be_set_alone_is_refused(text: str, loc: Loc, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        with_value(text, 0, loc, 9)


KEYS = st.sampled_from(["a", "b", "long key", "c"])
DATA = st.recursive(
    st.integers(0, 99) | st.sampled_from(["x", "1", "", "two\nlines"]),
    lambda inner: st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, DATA, min_size=1), st.lists(KEYS, min_size=1, max_size=3), st.booleans())
def test_any_value_is_set_alone_or_refused(data: dict[str, object], path: list[str], block: bool) -> None:
    from dljob.spec.text.emit import to_yaml

    text = to_yaml(data) if block else json.dumps(data)  # type: ignore[arg-type]
    try:
        made = with_value(text, 0, tuple(path), 7)
    except UsageError:
        return
    before, after = tree.read(text)[0].data, tree.read(made)[0].data
    place: object = after
    for key in path:
        assert isinstance(place, dict)
        place = place[key]
    assert place == 7
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    assert {key: own for key, own in after.items() if key != path[0]} == {
        key: own for key, own in before.items() if key != path[0]
    }
