"""What the answers become."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dljob import UsageError, register_collect
from dljob.calls import batch
from dljob.calls.collect import _user_collects, merge_answers, user_collects
from dljob.calls.dispatch import CallPlan
from dljob.runtime.process import arrays

arrays.register()
MANY = CallPlan((), ())


def test_the_answer_of_a_single_rank_is_returned_as_it_is_whatever_the_collect():
    assert merge_answers("concat", CallPlan((), (), picks_one_rank=True), ["as it is"], "r.f") == "as it is"


def test_list_first_concat_sum_and_max_merge_the_answers():
    assert merge_answers("list", MANY, [1, None], "r.f") == [1, None]
    assert merge_answers("first", MANY, [1, 2], "r.f") == 1
    assert merge_answers("concat", MANY, [[1], [2, 3]], "r.f") == [1, 2, 3]
    assert merge_answers("sum", MANY, [{"a": 1, "b": (2, [3])}, {"a": 10, "b": (20, [30])}], "r.f") == {
        "a": 11,
        "b": (22, [33]),
    }
    assert merge_answers("max", MANY, [3, 5, 4], "r.f") == 5


def test_the_mean_keeps_dicts_lists_and_tuples_as_they_are():
    answers = [{"a": 1, "b": (2, [3])}, {"a": 3, "b": (4, [5])}]
    assert merge_answers("mean", MANY, answers, "r.f") == {"a": 2, "b": (3, [4])}


def test_arrays_are_added_and_compared_row_by_row():
    a, b = np.array([1, 5]), np.array([4, 2])
    assert merge_answers("sum", MANY, [a, b], "r.f").tolist() == [5, 7]
    assert merge_answers("max", MANY, [a, b], "r.f").tolist() == [4, 5]
    floats = [torch.tensor([1.0, 5.0]), torch.tensor([4.0, 2.0])]
    assert merge_answers("mean", MANY, floats, "r.f").tolist() == [2.5, 3.5]
    assert merge_answers("max", MANY, [torch.tensor([1, 5]), torch.tensor([4, 2])], "r.f").tolist() == [4, 5]
    assert merge_answers("max", MANY, [np.float32(1), np.float32(2)], "r.f") == 2


@pytest.mark.parametrize("collect", ["sum", "mean", "max"])
@pytest.mark.parametrize("make", [np.ones, torch.ones], ids=["numpy", "torch"])
def test_answers_of_unlike_shapes_are_refused_with_the_call_and_the_shapes(collect, make):
    answers = [{"loss": make(2)}, {"loss": make(3)}]
    with pytest.raises(UsageError, match=r"r\.f answered \w+ of shape \(2,\) and \w+ of shape \(3,\), which cannot"):
        merge_answers(collect, MANY, answers, "r.f")
    with pytest.raises(UsageError, match=r"joined into the answer of r\.f"):
        merge_answers("concat", MANY, [make((2, 2)), make((2, 3))], "r.f")


@pytest.mark.parametrize("collect", ["concat", "sum", "mean", "max"])
def test_masked_arrays_keep_their_masks(collect):
    first, second = np.ma.array([1.0, 9.0], mask=[True, False]), np.ma.array([3.0, 4.0], mask=[False, False])
    merged = merge_answers(collect, MANY, [first, second], "r.f")
    assert np.ma.getmaskarray(merged).any()
    assert merged.compressed()[-1] == {"concat": 4, "sum": 13, "mean": 6.5, "max": 9}[collect]


@pytest.mark.parametrize("answers", [[math.nan, 1.0, 2.0], [1.0, math.nan, 2.0], [1, 2, np.float32("nan")]])
def test_the_maximum_of_answers_with_a_nan_is_nan_in_any_order(answers):
    assert math.isnan(merge_answers("max", MANY, answers, "r.f"))
    assert math.isnan(merge_answers("max", MANY, [{"loss": answer} for answer in answers], "r.f")["loss"])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.integers(1, 6))
def test_mean_of_shards_is_the_mean_of_all_rows(values, shards):
    sizes = batch.divide_rows(len(values), shards, "uneven")
    parts = [args[0] for args, _ in batch.split_arguments((values,), {}, sizes)]
    answers = [{"loss": sum(part) / len(part) if part else math.nan} for part in parts]
    got = merge_answers("mean", CallPlan((), (), shard_sizes=sizes), answers, "r.f")["loss"]
    assert got == pytest.approx(sum(values) / len(values), abs=1e-6, rel=1e-9)


@pytest.mark.parametrize("kind", [np.float16, np.uint8, torch.float16, torch.uint8], ids=str)
def test_mean_of_small_numbers_does_not_overflow_by_their_rows(kind):
    make = torch.tensor if isinstance(kind, torch.dtype) else np.array
    plan = CallPlan((), (), shard_sizes=batch.divide_rows(3000, 2, "uneven"))
    got = merge_answers("mean", plan, [make([200, 100], dtype=kind), make([220, 100], dtype=kind)], "r.f")
    assert got.tolist() == pytest.approx([210, 100])
    floats = kind in (np.float16, torch.float16)
    assert not floats or got.dtype == kind


def test_mean_keeps_what_is_exact():
    plan = CallPlan((), (), shard_sizes=batch.divide_rows(3, 2, "uneven"))
    assert merge_answers("mean", plan, [Decimal("0.1"), Decimal("0.4")], "r.f") == Decimal("0.2")
    assert merge_answers("mean", plan, [Fraction(1), Fraction(2)], "r.f") == Fraction(4, 3)
    assert merge_answers("mean", MANY, [1.0] * 10, "r.f") == 1.0
    assert merge_answers("mean", MANY, [np.float32(1), 2, 3.0], "r.f") == pytest.approx(2.0)


def test_mean_without_rows_is_that_of_the_answers():
    assert merge_answers("mean", CallPlan((), (), shard_sizes=batch.divide_rows(0, 2, "uneven")), [1, 2], "r.f") == 1.5
    assert merge_answers("mean", MANY, [1, 2, 6], "r.f") == 3


@pytest.mark.parametrize("collect", ["sum", "mean", "max"])
@pytest.mark.parametrize("answers", [["a", "b"], [{"a": 1}, {"b": 1}], [[1], [1, 2]], [1, [2]], [None, None], [1, "b"]])
def test_answers_that_are_no_numbers_are_refused(collect, answers):
    with pytest.raises(UsageError, match=r"r\.f answered"):
        merge_answers(collect, MANY, answers, "r.f")


def test_a_registered_collect_is_used_and_its_mistakes_are_named(monkeypatch):
    monkeypatch.setattr("dljob.calls.collect._user_collects", dict(_user_collects))
    register_collect("last", lambda answers: answers[-1])
    assert merge_answers("last", MANY, [1, 2], "r.f") == 2
    with pytest.raises(UsageError, match="not registered in this process"):
        merge_answers("unheard of", MANY, [1, 2], "r.f")
    with pytest.raises(UsageError, match="taken"):
        register_collect("list", list)


def test_padding_is_taken_off_what_was_joined():
    sizes = batch.divide_rows(3, 2, "auto")
    assert merge_answers("concat", CallPlan((), (), shard_sizes=sizes), [[1, 2], [3, 1]], "r.f") == [1, 2, 3]


def test_complex_answers_have_no_maximum_and_are_refused():
    with pytest.raises(
        UsageError, match=r"collect='max': r\.f answered complex, for which register_rows got no maximum"
    ):
        merge_answers("max", MANY, [1j, 2j], "r.f")


def test_names_that_were_added_are_known(monkeypatch):
    monkeypatch.setattr("dljob.calls.collect._user_collects", {})
    register_collect("longest", lambda answers: max(answers, key=len))
    assert user_collects() == ("longest",)
