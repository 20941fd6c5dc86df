"""Counts and times in messages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dljob.telemetry.wording import counted, every, level_words, moment, seconds, unix

CODE = Path(__file__).parents[3]


@pytest.mark.parametrize(("number", "said"), [(0, "0 ranks"), (1, "1 rank"), (2, "2 ranks"), (100_000, "100000 ranks")])
def test_a_count_and_its_noun_agree(number: int, said: str) -> None:
    assert counted(number, "rank") == said


@pytest.mark.parametrize(("name", "said"), [("inProcess", "in process"), ("roleGroup", "role group"), ("job", "job")])
def test_a_restart_level_is_told_in_words(name: str, said: str) -> None:
    assert level_words(name) == said


def test_a_noun_may_have_another_plural() -> None:
    assert [counted(n, "copy", plural="copies") for n in (1, 2)] == ["1 copy", "2 copies"]


def test_all_of_one_is_the_only_one() -> None:
    assert every(1, "rank", singular="is ready", many="are ready") == "the only rank is ready"
    assert every(2, "rank", singular="is ready", many="are ready") == "all 2 ranks are ready"


@pytest.mark.parametrize(
    ("span", "text"), [(0.354, "0.35 s"), (12.34, "12.3 s"), (192.0, "3m12s"), (7500.0, "2h05m"), (59.94, "59.9 s")]
)
def test_spans_for_people(span: float, text: str) -> None:
    assert seconds(span) == text


def test_times_are_rfc_3339_both_ways() -> None:
    assert moment(1767225600.9) == "2026-01-01T00:00:00Z"
    assert unix("2026-01-01T00:00:00.500000Z") == 1767225600.5
    assert unix("2026-01-01T01:00:00+01:00") == 1767225600.0
    assert [unix(text) for text in ("soon", "", None)] == [None] * 3


def test_no_message_words_a_count_by_itself() -> None:
    by_hand = re.compile(r"""\{'s' (if|\*)|\{'' if [^}]* else 's'\}|(?<! of )\{len\([^{}]*\)\} (item|pod)s""")
    found = [
        f"{path.name}: {line.strip()}"
        for folder in ("workers", "operator")
        for path in sorted((CODE / folder).rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if by_hand.search(line)
    ]
    assert found == []
