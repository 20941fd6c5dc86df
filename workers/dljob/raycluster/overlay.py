"""Merge of a partial object over a whole one, by the rules to which `spec.rules.templates` holds templates.

Mappings are merged key by key, and null removes a key. Lists whose items have a name are merged by it, with new items
last; every other list is replaced. Probes, and the items of `env` and `volumes`, are alternatives to each other, so
each is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "ports": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "workerGroupSpecs": "groupName",
}
"""List -> the key by which its items are told apart."""
APPENDED = frozenset({"envFrom", "tolerations"})
"""Lists to which items are added."""
WHOLE = frozenset({"readinessProbe", "livenessProbe", "startupProbe", "lifecycle"})
"""Mappings that are replaced as a whole."""
WHOLE_ITEMS = frozenset({"env", "volumes"})
"""Lists whose items are replaced as a whole."""

Object = dict[str, Any]


def overlay(base: Mapping[str, Any], over: Mapping[str, Any]) -> Object:
    """Return `base` overridden by `over`; neither is changed."""
    merged = dict(base)
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(key, merged.get(key), value)
    return merged


def _merged(key: str, old: object, new: object) -> object:
    if isinstance(new, Mapping):
        below: Mapping[str, Any] = {}
        # A merge of two probes would have two handlers, which Kubernetes refuses.
        if isinstance(old, Mapping) and key not in WHOLE:
            below = cast("Mapping[str, Any]", old)
        return overlay(below, cast("Mapping[str, Any]", new))
    if isinstance(new, list) and isinstance(old, list):
        items, more = cast("list[Any]", old), cast("list[Any]", new)
        if key in KEYS:
            return _by_name(key, items, more)
        if key in APPENDED:
            return [*items, *more]
    return cast("object", new)


def _by_name(key: str, old: list[Any], new: list[Any]) -> list[Any]:
    by = KEYS[key]
    # A dict keeps its order: old items stay in place, new ones come last.
    items = {item[by]: item for item in old}
    for item in new:
        name = item[by]
        items[name] = item if key in WHOLE_ITEMS else overlay(items.get(name, {}), item)
    return list(items.values())
