from __future__ import annotations

import pytest

from dljob.plan.words import natural, ranges, resources_text


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([0, 2, 3, 7], "0,2-3,7"), ([5, 6], "5-6")]
)
def test_consecutive_numbers_are_written_as_ranges(numbers, text):
    assert ranges(numbers) == text


def test_resources_are_written_in_words():
    assert resources_text((("CPU", 15_000), ("GPU", 4_000), ("memory", 2**30 * 10_000))) == (
        "1.5 CPU, 0.4 GPU, 1Gi memory"
    )
    assert resources_text(()) == "nothing"


def test_names_are_sorted_in_natural_order():
    assert sorted(["a-10", "a-9", "b-1", "a-b-2", "a1f"], key=natural) == ["a1f", "a-9", "a-10", "a-b-2", "b-1"]
