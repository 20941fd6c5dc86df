"""References to the endpoints of a role, `{{roles.rollout.endpoints}}`, in texts of a spec."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

# Four braces write two, so that any text can be written; everything else stays as it is.
_REFERENCE = re.compile(r"\{\{\{\{|\{\{roles\.([a-z](?:[-a-z0-9]*[a-z0-9])?)\.endpoints\}\}")


def expanded(value: Any, lines: Mapping[str, str]) -> Any:  # noqa: ANN401 - any JSON
    """Return a value with each reference in its texts replaced; `lines`: role -> its endpoints."""
    if isinstance(value, str):
        return _REFERENCE.sub(lambda match: lines.get(match[1], "") if match[1] else "{{", value)
    if isinstance(value, dict):
        return {key: expanded(item, lines) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        kind = type(cast("list[Any]", value))
        return kind(expanded(item, lines) for item in cast("list[Any]", value))
    return value


def referred(value: Any) -> Iterator[str]:  # noqa: ANN401 - any JSON
    """Yield the roles that the texts of a value refer to."""
    if isinstance(value, str):
        yield from (name for name in _REFERENCE.findall(value) if name)
    elif isinstance(value, dict):
        for item in cast("dict[str, Any]", value).values():
            yield from referred(item)
    elif isinstance(value, list | tuple):
        for item in cast("list[Any]", value):
            yield from referred(item)
