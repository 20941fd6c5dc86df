"""The difference between two states, as JSON that can be applied to the older one by code that knows neither.

Events lead to a state only in the code that folded them. So each batch of events in the journal is followed by the
change that it made, written together with them and before anything acts. Another version of dljob then takes the state
as written, and decides nothing again. A change is one of

    ["v", value]                     a new value
    ["d", {field: change}]           of an object: changes by field
    ["m", [[key, change]], [key]]    of a map: rows that are new or changed, and keys that are gone
    ["s", first, last, [items]]      of an array: so many of its first and last items stay, with new items in between
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import cache
from itertools import compress
from operator import attrgetter, is_, is_not
from typing import Any, TypeAlias, cast, get_args, get_origin

from immutables import Map

from dljob.errors import JournalError
from dljob.master.persistence.codec import as_is, encoder, parts
from dljob.master.state.state import JobState

Differ: TypeAlias = Callable[[Any, Any], list[Any] | None]
_NOTHING = object()


def changes(before: JobState, after: JobState) -> list[Any] | None:
    """Return the change that makes `after` of `before`; None: they are equal."""
    return _differ(JobState)(before, after)


@cache
def _differ(kind: Any) -> Differ:  # noqa: ANN401 - any type, generic ones included
    """Return the function that compares two values of a type and returns their change."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Map:
        return _of_map(*args)
    if origin is tuple and args[-1] is Ellipsis:
        return _of_array(encoder(args[0]))
    if origin is None and is_dataclass(kind):
        return _of_object(cast("type", kind))
    # Anything else is small, and is written whole.
    encode = encoder(kind)
    return _of_scalar if encode is as_is else lambda old, new: None if old == new else ["v", encode(new)]


def _of_scalar(old: object, new: object) -> list[Any] | None:
    """Compare values that are JSON by themselves."""
    return None if old == new else ["v", new]


def _of_object(kind: type) -> Differ:
    """Compare dataclass instances field by field."""
    field_differs = tuple((name, _differ(part)) for name, part in parts(kind).items())
    names = [name for name, _ in field_differs]
    values = attrgetter(*names, names[0])  # with a single name attrgetter would return no tuple

    def differ(old: object, new: object) -> list[Any] | None:
        if old is new:
            return None
        were, are = values(old), values(new)
        # Most fields of most rows are the same object: for these no Python function is called.
        others = compress(zip(field_differs, were, are, strict=False), map(is_not, were, are))
        field_changes = {name: part(old_value, now) for (name, part), old_value, now in others}
        changed_fields = {name: change for name, change in field_changes.items() if change is not None}
        return ["d", changed_fields] if changed_fields else None

    return differ


def _of_map(key: Any, value: Any) -> Differ:  # noqa: ANN401 - types of any kind
    """Compare maps row by row. Unchanged rows are the same object, which keeps a walk over 10,000 ranks affordable."""
    key_of, encode, inner = encoder(key), encoder(value), _differ(value)

    def differ(old: Map[Any, Any], new: Map[Any, Any]) -> list[Any] | None:
        # A map and its changed copy iterate over equal keys in the same order: rows are compared without lookups.
        if len(old) == len(new) and all(map(is_, old, new)):
            others = compress(
                zip(new, old.values(), new.values(), strict=True), map(is_not, old.values(), new.values())
            )
            row_changes = [[key_of(name), inner(old_value, is_now)] for name, old_value, is_now in others]
            put, removed_keys = [row for row in row_changes if row[1] is not None], []
        else:
            row_changes = [
                [key_of(name), change_of(old.get(name, _NOTHING), new_value)] for name, new_value in new.items()
            ]
            put, removed_keys = (
                [row for row in row_changes if row[1] is not None],
                [key_of(name) for name in old if name not in new],
            )
        return ["m", put, removed_keys] if put or removed_keys else None

    def change_of(old_value: Any, is_now: Any) -> list[Any] | None:  # noqa: ANN401 - values of that type
        return ["v", encode(is_now)] if old_value is _NOTHING else inner(old_value, is_now)

    return differ


def _of_array(encode: Callable[[Any], Any]) -> Differ:
    """Compare tuples by their common beginning and end."""

    def differ(old: tuple[Any, ...], new: tuple[Any, ...]) -> list[Any] | None:
        if old is new or old == new:
            return None
        shorter = min(len(old), len(new))
        first = next((i for i in range(shorter) if _is_changed(old[i], new[i])), shorter)
        rest = shorter - first
        last = next((i for i in range(rest) if _is_changed(old[-1 - i], new[-1 - i])), rest)
        return ["s", first, last, [encode(item) for item in new[first : len(new) - last]]]

    return differ


def _is_changed(old: object, new: object) -> bool:
    return old is not new and old != new


class _Rows(dict[str, list[Any]]):
    """A map while changes are applied: key as JSON text -> [key, value], so that a row is found without a scan."""


class Written:
    """A state as the journal holds it: its last snapshot with the changes applied since."""

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data

    def lay(self, change: list[Any] | None) -> None:
        """Apply a change.

        Raises:
            JournalError: The change has an unknown form, or does not fit this state.
        """
        if change is None:
            return
        try:
            self._data = _apply_change(self._data, change)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise JournalError(f"a change does not fit the state before it: {error!r}", offset=0) from error

    def data(self) -> dict[str, Any]:
        """Return the state as `codec.encode_state` writes one."""
        return _plain(self._data)


def _apply_change(old: Any, change: list[Any]) -> Any:  # noqa: ANN401 - JSON
    """Return the old value with a change applied, in place where that is possible."""
    form, *arguments = change
    match form:
        case "v":
            return arguments[0]
        case "d":
            # A field may be missing: a version without it wrote the snapshot.
            for name, part in cast("dict[str, list[Any]]", arguments[0]).items():
                old[name] = _apply_change(old.get(name), part)
            return old
        case "m":
            return _apply_rows(old, *arguments)
        case "s":
            first, last, items = arguments
            return [*old[:first], *items, *old[len(old) - last :]]
        case _:
            raise ValueError(f"there is no change of the form {form!r}")


def _apply_rows(old: Any, put: list[Any], removed_keys: list[Any]) -> _Rows:  # noqa: ANN401 - JSON
    """Return a map with changed rows put in and lost ones removed."""
    rows = old if isinstance(old, _Rows) else _Rows({json.dumps(key): [key, value] for key, value in old or ()})
    for key, change in put:
        text = json.dumps(key)  # a JSON key may be an array, which cannot be a dict's key
        rows[text] = [key, _apply_change(rows.get(text, (None, None))[1], change)]
    for key in removed_keys:
        rows.pop(json.dumps(key), None)
    return rows


def _plain(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return the value with all maps as arrays of [key, value] again."""
    if isinstance(value, _Rows):
        return [[key, _plain(inner)] for key, inner in value.values()]
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in cast("list[Any]", value)]
    return value
