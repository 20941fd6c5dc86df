"""Split and join: what is cut comes together again, whatever it is made of and however it divides."""

from __future__ import annotations

import pickle
from collections import namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from dljob import UsageError, register_rows, whole
from dljob.calls import batch, rows
from dljob.runtime.process import arrays

arrays.register()
MAKERS = {
    "list": lambda n: [f"row {i}" for i in range(n)],
    "ndarray": lambda n: np.arange(n * 3).reshape(n, 3),
    "tensor": lambda n: torch.arange(n * 2).reshape(n, 2),
    "TensorDict": lambda n: TensorDict({"a": torch.arange(n), "b": torch.ones(n, 2)}, batch_size=[n]),
    "dict": lambda n: {"ids": torch.arange(n), "texts": [str(i) for i in range(n)], "lr": 0.5},
    "tuple": lambda n: (list(range(n)), {"x": np.arange(n)}, "as it is"),
}


def same(a, b):
    """Equal, arrays by value."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if hasattr(a, "shape"):
        return type(a) is type(b) and a.shape == b.shape and bool((a == b).all())
    return a == b


def joined(kind, parts):
    """The first arguments of all parts as one; what is no row is the same in each."""
    if kind == "dict":
        return {**rows.join_values([{k: p[k] for k in ("ids", "texts")} for p in parts], "it"), "lr": parts[0]["lr"]}
    if kind == "tuple":
        return (*rows.join_values([p[:2] for p in parts], "it"), parts[0][2])
    return rows.join_values(parts, "it")


@pytest.mark.parametrize("kind", MAKERS)
@given(count=st.integers(0, 40), shards=st.integers(1, 9))
def test_split_then_join_is_the_identity(kind, count, shards):
    value = MAKERS[kind](count)
    sizes = batch.divide_rows(count, shards, "uneven")
    parts = [args[0] for args, _ in batch.split_arguments((value,), {}, sizes)]
    assert same(joined(kind, parts), value)


@given(count=st.integers(0, 200), shards=st.integers(1, 20))
def test_uneven_shares_differ_by_one_at_most_and_make_the_whole(count, shards):
    row_counts = batch.divide_rows(count, shards, "uneven").rows_per_shard
    assert (sum(row_counts), len(row_counts)) == (count, shards)
    assert max(row_counts) - min(row_counts) <= 1
    assert list(row_counts) == sorted(row_counts, reverse=True)


@pytest.mark.parametrize("kind", ["list", "ndarray", "tensor", "TensorDict"])
@given(count=st.integers(1, 40), shards=st.integers(1, 9), times=st.integers(1, 3))
def test_pads_make_shares_even_and_are_taken_off_again(kind, count, shards, times):
    value = MAKERS[kind](count)
    sizes = batch.divide_rows(count, shards, "auto")
    parts = [args[0] for args, _ in batch.split_arguments((value,), {}, sizes)]
    assert len({len(part) for part in parts}) == 1
    assert 0 <= sizes.padding_rows < shards
    many = [rows.join_values([part[n : n + 1] for n in range(len(part)) for _ in range(times)], "it") for part in parts]
    expected = rows.join_values([value[n : n + 1] for n in range(count) for _ in range(times)], "it")
    assert same(batch.remove_padding(rows.join_values(many, "it"), sizes, "r.f"), expected)


def test_padding_repeats_rows_from_the_first_on():
    sizes = batch.divide_rows(2, 5, "auto")
    parts = [args[0] for args, _ in batch.split_arguments((["a", "b"],), {}, sizes)]
    assert parts == [["a"], ["b"], ["a"], ["b"], ["a"]]


def test_answers_whose_padding_cannot_be_told_are_refused():
    with pytest.raises(UsageError, match="answered 7 rows for 6"):
        batch.remove_padding(list(range(7)), batch.divide_rows(5, 2, "auto"), "r.f")


@pytest.mark.parametrize(
    ("count", "pad", "words"), [(5, "error", "5 rows, which 2 shards cannot"), (0, "auto", "no rows to give to 2")]
)
def test_a_padding_policy_refuses_rows_that_it_cannot_share(count, pad, words):
    with pytest.raises(UsageError, match=words):
        batch.divide_rows(count, 2, pad)
    assert batch.divide_rows(4, 2, pad).rows_per_shard == (2, 2)


class TestWhatIsCut:
    def test_numbers_texts_and_whole_go_as_they_are(self):
        values = ([1, 2], 3, "four", whole([5, 6]), {"a": whole([7]), "b": [8, 9]}, np.float32(1), torch.tensor(2.0))
        (first, _), (second, _) = batch.split_arguments(values, {"k": None}, batch.divide_rows(2, 2, "uneven"))
        assert first == ([1], 3, "four", [5, 6], {"a": [7], "b": [8]}, np.float32(1), torch.tensor(2.0))
        assert second[0] == [2]

    def test_arguments_with_different_numbers_of_rows_are_named(self):
        with pytest.raises(UsageError, match=r"ids has 3 rows, but x\['mask'\] has 2"):
            batch.count_rows(([1, 2, 3],), {"x": {"mask": [1, 2]}}, ("ids",))
        assert batch.count_rows(([1, 2, 3],), {"x": whole([1])}) == 3

    def test_a_call_without_rows_to_split_is_refused(self):
        with pytest.raises(UsageError, match="no argument has rows"):
            batch.count_rows((3, "text", b"bytes", ()), {})

    def test_named_tuples_stay_named(self):
        pair = namedtuple("pair", "a b")
        (first, _), _ = batch.split_arguments((pair([1, 2], "x"),), {}, batch.divide_rows(2, 2, "uneven"))
        assert first[0] == pair([1], "x")

    def test_a_slice_of_a_tensor_is_sent_without_the_rest_of_its_storage(self):
        (first, _), _ = batch.split_arguments((torch.zeros(100_000),), {}, batch.divide_rows(100_000, 2, "uneven"))
        assert len(pickle.dumps(first[0])) < 250_000
        sizes = batch.divide_rows(10_000, 2, "uneven")
        (first, _), _ = batch.split_arguments((MAKERS["TensorDict"](10_000),), {}, sizes)
        assert len(pickle.dumps(first[0])) < 100_000

    def test_a_registered_row_type_is_counted_cut_and_joined(self):
        class Samples:
            def __init__(self, items):
                self.items = items

        register_rows(
            Samples,
            count=lambda s: len(s.items),
            cut=lambda s, a, b: Samples(s.items[a:b]),
            join=lambda parts: Samples([item for part in parts for item in part.items]),
        )
        sizes = batch.divide_rows(3, 2, "uneven")
        parts = [args[0] for args, _ in batch.split_arguments((Samples([1, 2, 3]),), {}, sizes)]
        assert [part.items for part in parts] == [[1, 2], [3]]
        assert rows.join_values(parts, "it").items == [1, 2, 3]


@pytest.mark.parametrize("parts", [[1, 2], [[1], (1,)], [{"a": [1]}, {"b": [1]}], ["a", "b"], [[1], None], [(1,), ()]])
def test_answers_that_cannot_be_joined_are_refused(parts):
    with pytest.raises(UsageError, match=r"r\.f(\[0\])? cannot be joined"):
        rows.join_values(parts, "r.f")


def test_joining_only_none_gives_none():
    assert rows.join_values([None, None], "it") is None


def test_whole_arguments_have_no_rows_to_count():
    assert list(rows.row_counts((whole([1, 2]), {"a": [3]}), "x")) == [("x[1]['a']", 1)]


class Ragged:
    """As a nested or sparse tensor: of a known type, but its library can do nothing with it."""

    layout, is_nested = "jagged", True

    def __init__(self, fails: str) -> None:
        self.fails = fails

    def attempt(self, action: str) -> int:
        if action == self.fails:
            raise RuntimeError(f"{action}(): not supported\nregistered at 40 lines of C++")
        return 2


@pytest.mark.parametrize(
    ("fails", "action"), [("count", "counted"), ("cut", "cut into shards"), ("join", "joined into it")]
)
def test_rows_that_a_library_cannot_treat_are_named(fails: str, action: str) -> None:
    register_rows(
        Ragged,
        count=lambda value: value.attempt("count"),
        cut=lambda value, *_: value.attempt("cut"),
        join=lambda parts: parts[0].attempt("join"),
    )
    value = Ragged(fails)

    def split_and_join() -> None:
        batch.split_arguments((value,), {}, batch.divide_rows(batch.count_rows((value,), {}), 2, "uneven"))
        rows.join_values([value, value], "it")

    with pytest.raises(UsageError) as caught:
        split_and_join()
    message = f"the rows of a nested Ragged of layout jagged cannot be {action}: RuntimeError: {fails}(): not supported"
    assert caught.value.message == message
    assert "whole(value)" in caught.value.hint


def test_usage_error_of_a_registered_type_stays_as_it_is() -> None:
    class Own:
        """A type of a user's, whose functions say themselves what is wrong."""

    def refuse(*_: object) -> int:
        raise UsageError("rows of Own come sorted")

    register_rows(Own, count=refuse, cut=refuse, join=refuse)
    with pytest.raises(UsageError, match="rows of Own come sorted"):
        batch.count_rows((Own(),), {})
