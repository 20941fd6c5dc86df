"""Which calls a callee still begins, and what a caller that gives one up is told."""

from __future__ import annotations

import pytest

from dljob.calls import pending
from dljob.calls.pending import Fate, PendingCalls


def test_a_call_cancelled_before_it_arrives_is_not_run() -> None:
    calls = PendingCalls()
    assert calls.cancel("a:0:2") is Fate.NOT_RUN
    assert calls.arrive("a:0:1")
    assert not calls.arrive("a:0:2")
    assert not calls.cancelled


def test_a_call_cancelled_while_it_waits_for_its_turn_does_not_begin() -> None:
    calls = PendingCalls()
    assert calls.arrive("a:0:1")
    assert calls.cancel("a:0:1") is Fate.NOT_RUN
    assert not calls.begin("a:0:1")
    calls.end("a:0:1")
    assert calls == PendingCalls(last_numbers={"a:0": 1}, never_begun={"a:0:1": None})
    assert calls.cancel("a:0:1") is Fate.NOT_RUN, "its own time in the queue was over first"


def test_a_call_that_runs_is_told_as_begun() -> None:
    calls = PendingCalls()
    assert calls.arrive("a:0:1")
    assert calls.begin("a:0:1")
    assert calls.cancel("a:0:1") is Fate.BEGUN
    calls.end("a:0:1")
    assert calls == PendingCalls(last_numbers={"a:0": 1})


def test_of_a_call_that_ended_or_was_overtaken_nobody_says_that_it_did_not_run() -> None:
    calls = PendingCalls()
    for number in (1, 3):
        assert calls.arrive(f"a:0:{number}")
        assert calls.begin(f"a:0:{number}")
        calls.end(f"a:0:{number}")
    assert calls.cancel("a:0:1") is Fate.UNKNOWN
    assert calls.cancel("a:0:2") is Fate.UNKNOWN
    assert not calls.arrive("a:0:2"), "it was overtaken, and nobody waits for it"
    assert calls.cancel("b:0:1") is Fate.NOT_RUN, "another caller counts for itself"


def test_the_oldest_cancelled_calls_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "MAX_REMEMBERED_CALLS", 2)
    calls = PendingCalls()
    for number in (1, 2, 3):
        assert calls.cancel(f"a:0:{number}") is Fate.NOT_RUN
    assert [calls.arrive(f"a:0:{number}") for number in (1, 2, 3)] == [True, False, False]
