"""Bounds of a spec: 1 MiB of `{},{}` in a field without a schema becomes 25 MiB of Python objects, in every replica.

The API server stores 1.5 MiB of any shape. A larger spec than these bounds is refused by the webhook; the operator
keeps one that came in all the same without its large parts, and the job's status says why.
"""

from __future__ import annotations

from typing import Any, cast

from dljob.reconcile.state.fields import part
from dljob.reconcile.state.model import Object

VALUES, CHARACTERS, DEPTH = 20_000, 2**20, 100
"""Most values (objects, lists, texts, numbers), most characters in all texts, and the deepest nesting."""
MARK = "excess"
"""The field of a reduced spec that says why its large parts are missing. The schema of a DLJob has no such field."""
HINT = "put large data into a file or a volume, and name that"
NESTING = 25_000
"""Recursion limit with which CPython 3.11 parses the deepest JSON that an API server takes, 10,000 levels.

With Python's own limit one such DLJob would end every list and watch of the operator.
"""
_SMALL = 100, 2_000
"""Values and characters of a field that a reduced spec keeps."""


def excess(value: object, values: int = VALUES, characters: int = CHARACTERS) -> str:
    """Return by what a spec, or a part of it, is too large; empty when it is not. Takes time within the bounds."""
    level: list[object] = [value]
    for _ in range(DEPTH):
        below: list[object] = []
        for item in level:
            if isinstance(item, str):
                characters -= len(item)
            elif isinstance(item, dict):
                mapping = cast("dict[str, object]", item)
                values -= len(mapping)
                below.extend(mapping.values() if values >= 0 else ())
                characters -= sum(map(len, mapping)) if values >= 0 else 0
            elif isinstance(item, list):
                items = cast("list[object]", item)
                values -= len(items)
                below.extend(items if values >= 0 else ())
            if values < 0:
                return f"more than {VALUES} values"
            if characters < 0:
                return f"more than {CHARACTERS} characters"
        if not below:
            return ""
        level = below
    return f"more than {DEPTH} levels of objects and lists in each other"


def reduced(job: Object) -> dict[str, Any]:
    """Return a DLJob as the operator keeps it: of an excessive spec the small fields, and `MARK`."""
    spec = part(job, "spec")
    reason = excess(spec)
    if not reason:
        return dict(job)
    small_fields: dict[str, Any] = {key: value for key, value in spec.items() if not excess(value, *_SMALL)}
    return {**job, "spec": {**small_fields, MARK: f"the spec has {reason}"}}
