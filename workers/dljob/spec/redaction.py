"""A spec for people, without values of `env`, `envFrom`, `runtimeEnv`, `httpHeaders`, `command`, `args` and `config`.

No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

LEFT_OUT = "(left out)"
_ALWAYS = ("env", "envFrom", "runtimeEnv", "httpHeaders")
_ON_REQUEST = ("command", "args", "config")
"""With values in a local file if the user asks for them; secrets should not, but may, stand there."""


def without_values(spec: Mapping[str, Any], *, with_values: bool = False) -> dict[str, Any]:
    """Return a spec in which names stay and values are gone, at any depth: templates of pods have an `env`, too.

    Args:
        spec: the spec as it was submitted.
        with_values: keep `command`, `args` and `config`.
    """
    hidden = _ALWAYS if with_values else (*_ALWAYS, *_ON_REQUEST)
    return {key: _hidden(key, value) if key in hidden else _shown(value, with_values) for key, value in spec.items()}


def _shown(value: Any, with_values: bool) -> Any:  # noqa: ANN401, FBT001 - JSON; a flag that is handed down
    if isinstance(value, dict):
        return without_values(cast("dict[str, Any]", value), with_values=with_values)
    if isinstance(value, list):
        return [_shown(item, with_values) for item in cast("list[Any]", value)]
    return value


def _hidden(key: str, value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return the names in a value: keys of objects, the names of a list's items, and the program of a command."""
    if key == "command" and isinstance(value, list):
        words = cast("list[Any]", value)
        return [*words[:1], *[LEFT_OUT] * (len(words) - 1)]
    if isinstance(value, dict):
        return dict.fromkeys(cast("dict[str, Any]", value), LEFT_OUT)
    if isinstance(value, list):
        names = [_name(item) for item in cast("list[Any]", value)]
        return [LEFT_OUT if name is None else {"name": name, "value": LEFT_OUT} for name in names]
    return value if value is None else LEFT_OUT


def _name(item: Any) -> str | None:  # noqa: ANN401 - JSON
    name = cast("dict[str, Any]", item).get("name") if isinstance(item, dict) else None
    return name if isinstance(name, str) else None
