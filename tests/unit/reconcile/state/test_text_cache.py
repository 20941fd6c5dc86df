"""What is worked out from a text is kept by its digest, and the text is not."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest

from dljob.errors import SpecError
from dljob.reconcile.state.text_cache import cached_by_digest


class Text(str):
    """A text that tells when it is gone."""


def test_result_is_worked_out_once_for_each_text_and_value_and_the_text_is_let_go() -> None:
    worked: list[tuple[str, int]] = []

    @cached_by_digest(8)
    def length(text: str, factor: int) -> SimpleNamespace:
        worked.append((str(text[:1]), factor))
        return SimpleNamespace(value=len(text) * factor)

    text = Text("a" * 100)
    gone = weakref.ref(text)
    assert length(text, 2) is length("a" * 100, 2)
    assert length("a" * 100, 3).value == 300
    assert length("b", 2).value == 2
    assert worked == [("a", 2), ("a", 3), ("b", 2)]
    del text
    gc.collect()
    assert gone() is None


def test_result_used_longest_ago_goes_first() -> None:
    worked: list[str] = []

    @cached_by_digest(2)
    def same(text: str) -> str:
        worked.append(text)
        return text.upper()

    for text in ("a", "b", "a", "c", "a", "b"):
        assert same(text) == text.upper()
    assert worked == ["a", "b", "c", "b"]


def test_error_is_raised_each_time() -> None:
    @cached_by_digest(2)
    def refuse(text: str) -> str:
        raise SpecError(text)

    for _ in range(2):
        with pytest.raises(SpecError):
            refuse("a")
