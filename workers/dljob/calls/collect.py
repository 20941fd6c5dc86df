"""Collecting the answers of a call: `merge_answers` makes one value of them, in the order of the requests."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from dljob.calls import batch, rows
from dljob.calls.dispatch import CallPlan
from dljob.calls.mark import COLLECTS
from dljob.errors import UsageError

Merge = Callable[[Sequence[Any]], Any]
"""A user's collect: the answers, in the order of the requests -> one value."""

_user_collects: dict[str, Merge] = {}


def register_collect(name: str, merge: Merge) -> None:
    """Add a way to collect answers, in the process of the callee and of the caller.

    Args:
        name: the name for `@rpc(collect=)` and `.options(collect=)`.
        merge: takes the answers in the order of the requests, returns the value of the whole call.

    Raises:
        UsageError: the name belongs to a built-in collect.
    """
    if name in COLLECTS:
        raise UsageError(f"register_collect({name!r}): that name is taken", hint="choose another one")
    _user_collects[name] = merge


def user_collects() -> tuple[str, ...]:
    """Return the names of the collects that users registered."""
    return tuple(_user_collects)


def merge_answers(collect: str, plan: CallPlan, answers: Sequence[Any], call_name: str) -> Any:
    """Make one value of the answers of a call: those that are not discarded, in the order of its requests.

    `call_name` names the call in errors, as in "trainer.step".

    Raises:
        UsageError: answers of these types cannot be collected this way.
    """
    # The call means one rank, so its value is that rank's answer, whatever the option says.
    if plan.picks_one_rank:
        return answers[0]
    match collect:
        case "list":
            return list(answers)
        case "first":
            return answers[0]
        case "concat":
            answer = rows.join_values(answers, f"the answer of {call_name}")
            return batch.remove_padding(answer, plan.shard_sizes, call_name) if plan.shard_sizes else answer
        case "sum":
            return _reduce_answers(_add, answers, call_name)
        case "mean":
            return _weighted_mean(answers, plan.shard_sizes.rows_per_shard if plan.shard_sizes else (), call_name)
        case "max":
            return _reduce_answers(_maximum, answers, call_name)
        case name:
            # Callees and callers are different processes: the module that registers it may not be imported here.
            user_merge = _user_collects.get(name)
            if user_merge is None:
                raise UsageError(
                    f"collect={name!r}: not registered in this process",
                    hint="register_collect it where callers import it too, as in a module that both import",
                )
            return user_merge(answers)


def _weighted_mean(answers: Sequence[Any], weights: Sequence[int], call_name: str) -> Any:
    """Return the mean of the answers, weighted by the rows of each shard, so that it is the mean over all rows.

    Shards without rows do not count.

    Raises:
        UsageError: they are not numbers, arrays, or dicts or tuples of them.
    """
    weighted_answers = [(answer, weight) for answer, weight in zip(answers, weights, strict=False) if weight]
    # The dispatch cut no rows, or there were none: then each answer counts once.
    if not weighted_answers:
        weighted_answers = [(answer, 1) for answer in answers]
    total_weight = sum(weight for _, weight in weighted_answers)
    # Values stay beside their weights until all are known: arrays and plain numbers are averaged differently.
    samples = [
        _map_leaves(lambda value, weight=weight: _WeightedSamples(((value, weight),)), answer)
        for answer, weight in weighted_answers
    ]
    merged_samples = _reduce_answers(_join_samples, samples, call_name)
    return _map_leaves(lambda leaf: leaf.mean(total_weight, call_name), merged_samples)


@dataclass(frozen=True, slots=True)
class _WeightedSamples:
    """The numbers or arrays at one position of the answers, each with its weight."""

    samples: tuple[tuple[Any, int], ...]
    """(value, weight) of each answer."""

    def mean(self, total_weight: int, call_name: str) -> Any:
        """Return the weighted mean."""
        for value, weight in self.samples:
            _check_reducible(value, weight, call_name)
        if any(hasattr(value, "shape") for value, _ in self.samples):
            # Scaled before they are added: a sum of half floats could overflow.
            return _reduce_answers(_add, [value * (weight / total_weight) for value, weight in self.samples], call_name)
        # Divided once, at the end: scaling each number would round where the mean is exact.
        return reduce(operator.add, (value * weight for value, weight in self.samples)) / total_weight


def _join_samples(first: Any, second: Any, call_name: str) -> _WeightedSamples:
    if isinstance(first, _WeightedSamples) and isinstance(second, _WeightedSamples):
        return _WeightedSamples(first.samples + second.samples)
    # The answers differ in their structure: name the types at the first place where they do.
    values = [part.samples[-1][0] if isinstance(part, _WeightedSamples) else part for part in (first, second)]
    raise _unmergeable_error(values[0], values[1], call_name)


def _map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to the numbers and arrays of an answer; dicts, lists and tuples keep their structure."""
    if isinstance(value, dict):
        return {key: _map_leaves(function, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_map_leaves(function, item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return function(value)


def _reduce_answers(combine: Callable[[Any, Any, str], Any], answers: Sequence[Any], call_name: str) -> Any:
    return reduce(lambda first, second: _combine_answers(combine, first, second, call_name), answers)


def _combine_answers(combine: Callable[[Any, Any, str], Any], first: Any, second: Any, call_name: str) -> Any:
    """Combine two answers: dicts by key, lists and tuples item by item, numbers and arrays by `combine`."""
    if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
        return {key: _combine_answers(combine, first[key], second[key], call_name) for key in first}
    if isinstance(first, (list, tuple)) and isinstance(second, type(first)) and len(first) == len(second):
        items = [_combine_answers(combine, *pair, call_name) for pair in zip(first, second, strict=True)]
        return items if isinstance(first, list) else tuple(items)
    try:
        return combine(first, second, call_name)
    except UsageError:
        raise
    except Exception as error:  # of the values' library, such as for unlike shapes
        raise _unmergeable_error(first, second, call_name, f": {type(error).__name__}: {error}") from error


def _add(first: Any, second: Any, call_name: str) -> Any:
    _check_reducible(first, second, call_name)
    return first + second


def _maximum(first: Any, second: Any, call_name: str) -> Any:
    _check_reducible(first, second, call_name)
    if isinstance(first, numbers.Real):
        # `max` returns a NaN only if it is the first argument.
        is_second_nan = isinstance(second, numbers.Real) and second != second  # noqa: PLR0124 - only a NaN differs from itself
        return second if is_second_nan else max(first, second)
    row_type = rows.registered_type(first)
    if row_type is None or row_type.maximum is None:
        kind = type(first).__name__
        raise UsageError(f"collect='max': {call_name} answered {kind}, for which register_rows got no maximum")
    return row_type.maximum(first, second)


def _check_reducible(first: Any, second: Any, call_name: str) -> None:
    """Raise UsageError unless both values are numbers, arrays or tensors."""
    for value in (first, second):
        is_number_or_array = isinstance(value, numbers.Number) or hasattr(value, "shape")
        # NumPy's texts and bytes have a `shape`, but no sum.
        if not is_number_or_array or isinstance(value, (str, bytes)):
            raise _unmergeable_error(first, second, call_name)


def _unmergeable_error(first: Any, second: Any, call_name: str, reason: str = "") -> UsageError:
    kinds = " and ".join(
        f"{type(value).__name__}{f' of shape {tuple(value.shape)}' if reason and hasattr(value, 'shape') else ''}"
        for value in (first, second)
    )
    return UsageError(
        f"{call_name} answered {kinds}, which cannot be added or compared{reason}",
        hint="numbers, arrays and tensors can, also in dicts with the same keys, lists and tuples of the same length",
    )
