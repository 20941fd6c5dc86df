"""Collecting the answers of a call: `merge` makes one value of them, in the order of the requests."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from dljob.calls import batch, rows
from dljob.calls.dispatch import Dispatched
from dljob.calls.mark import COLLECTS
from dljob.errors import UsageError

Merge = Callable[[Sequence[Any]], Any]
"""A user's collect: the answers, in the order of the requests -> one value."""

_registered: dict[str, Merge] = {}


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
    _registered[name] = merge


def registered() -> tuple[str, ...]:
    """Return the names of the collects that users registered."""
    return tuple(_registered)


def merge(collect: str, sent: Dispatched, answers: Sequence[Any], what: str) -> Any:
    """Make one value of the wanted answers of a call, which are in the order of its sends.

    Raises:
        UsageError: answers of these types cannot be collected this way.
    """
    # One rank was asked: there is nothing to collect, whatever the option says.
    if sent.single:
        return answers[0]
    match collect:
        case "list":
            return list(answers)
        case "first":
            return answers[0]
        case "concat":
            joined = rows.join(answers, f"the answer of {what}")
            return batch.unpad(joined, sent.shares, what) if sent.shares else joined
        case "sum":
            return reduce(lambda a, b: _paired(_plus, a, b, what), answers)
        case "mean":
            return mean(answers, sent.shares.each if sent.shares else (), what)
        case "max":
            return reduce(lambda a, b: _paired(_larger, a, b, what), answers)
        case name:
            # Callees and callers are different processes: the module that registers it may not be imported here.
            own = _registered.get(name)
            if own is None:
                raise UsageError(
                    f"collect={name!r}: not registered in this process",
                    hint="register_collect it where callers import it too, as in a module that both import",
                )
            return own(answers)


def mean(answers: Sequence[Any], weights: Sequence[int], what: str) -> Any:
    """Return the mean of the answers, weighted by the rows of each shard, so that it is the mean over all rows.

    Shards without rows do not count.

    Raises:
        UsageError: they are not numbers, arrays, or dicts or tuples of them.
    """
    counted = [(answer, weight) for answer, weight in zip(answers, weights, strict=False) if weight]
    # The dispatch cut no rows, or there were none: then each answer counts once.
    if not counted:
        counted = [(answer, 1) for answer in answers]
    total = sum(weight for _, weight in counted)
    # Values stay beside their weights until all are known: arrays and plain numbers are averaged differently.
    weighed = [_mapped(lambda value, w=weight: _Weighed(((value, w),)), answer) for answer, weight in counted]
    together = reduce(lambda a, b: _paired(_side_by_side, a, b, what), weighed)
    return _mapped(lambda values: values.mean(total, what), together)


@dataclass(frozen=True, slots=True)
class _Weighed:
    """The numbers or arrays at one position of the answers, each with its weight."""

    values: tuple[tuple[Any, int], ...]

    def mean(self, total: int, what: str) -> Any:
        """Return the weighted mean."""
        for value, weight in self.values:
            _check(value, weight, what)
        if any(hasattr(value, "shape") for value, _ in self.values):
            # Scaled before they are added: a sum of half floats could overflow.
            return reduce(operator.add, (value * (weight / total) for value, weight in self.values))
        # Divided once, at the end: scaling each number would round where the mean is exact.
        return reduce(operator.add, (value * weight for value, weight in self.values)) / total


def _side_by_side(a: Any, b: Any, what: str) -> _Weighed:
    if isinstance(a, _Weighed) and isinstance(b, _Weighed):
        return _Weighed(a.values + b.values)
    # The answers differ in their structure: name the types at the first place where they do.
    one, other = (x.values[-1][0] if isinstance(x, _Weighed) else x for x in (a, b))
    raise _refused(one, other, what)


def _mapped(how: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _mapped(how, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        made = [_mapped(how, item) for item in value]
        return made if isinstance(value, list) else tuple(made)
    return how(value)


def _paired(how: Callable[[Any, Any, str], Any], a: Any, b: Any, what: str) -> Any:
    """Combine two answers: dicts by key, lists and tuples item by item, numbers and arrays by `how`."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return {key: _paired(how, a[key], b[key], what) for key in a}
    if isinstance(a, (list, tuple)) and isinstance(b, type(a)) and len(a) == len(b):
        made = [_paired(how, x, y, what) for x, y in zip(a, b, strict=True)]
        return made if isinstance(a, list) else tuple(made)
    return how(a, b, what)


def _reducible(value: Any) -> bool:
    """Return whether a value is a number, an array or a tensor."""
    known = isinstance(value, numbers.Number) or hasattr(value, "shape")
    # NumPy's texts and bytes have a `shape`, but no sum.
    return known and not isinstance(value, (str, bytes))


def _plus(a: Any, b: Any, what: str) -> Any:
    _check(a, b, what)
    return a + b


def _larger(a: Any, b: Any, what: str) -> Any:
    _check(a, b, what)
    if isinstance(a, numbers.Real):
        no_number = isinstance(b, numbers.Real) and b != b  # noqa: PLR0124 - `max` keeps one in the first place alone
        return b if no_number else max(a, b)
    kind = rows.kind_of(a)
    if kind is None or kind.maximum is None:
        raise UsageError(f"collect='max': {what} answered {type(a).__name__}, for which register_rows got no maximum")
    return kind.maximum(a, b)


def _check(a: Any, b: Any, what: str) -> None:
    if not (_reducible(a) and _reducible(b)):
        raise _refused(a, b, what)


def _refused(a: Any, b: Any, what: str) -> UsageError:
    return UsageError(
        f"{what} answered {type(a).__name__} and {type(b).__name__}, which cannot be added or compared",
        hint="numbers, arrays and tensors can, also in dicts with the same keys, lists and tuples of the same length",
    )
