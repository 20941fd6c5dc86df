"""Reading objects that may hold anything."""

from __future__ import annotations

from dljob.reconcile.state.fields import field, items, number, part, text, texts

BODY = {"a": {"b": [{"c": 1}], "t": "x", "n": 3}, "none": None}


def test_fields_of_their_type_are_read():
    assert field(BODY, "a", "n") == 3
    assert part(BODY, "a")["t"] == "x"
    assert items(BODY, "a", "b") == [{"c": 1}]
    assert text(BODY, "a", "t") == "x"
    assert number(BODY, "a", "n") == 3


def test_missing_fields_are_read_as_empty():
    assert field(BODY, "a", "t", "deeper") is None
    assert part(BODY, "none") == {}
    assert part(None, "a") == {}
    assert items(BODY, "a") == ()
    assert items({"a": [1, {"b": 2}, None]}, "a") == [{"b": 2}]
    assert text(BODY, "a", "n") == ""
    assert texts(BODY, "a") == []
    assert texts({"a": ["x", 1]}, "a") == ["x"]
    assert number(BODY, "a", "t") == 0
