"""The placement plan as an annotation: the units, the content of each bundle, and the roles that share it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from dljob.plan.model import JobPlan, Resources, Series, Shape
from dljob.spec.quantity import show, show_memory

MAX_BYTES = 64 * 1024
"""The limit for this annotation; all annotations of an object together may hold 256 KiB."""


def placement_plan(plan: JobPlan) -> tuple[str, str]:
    """Return (compact JSON, 16 hex digits over the whole plan).

    Units of the same shape are one entry, equal bundles one line of it. Entries that exceed 64 KiB are left out, and
    `cut` says how many.
    """
    entries = [_entry(series, shape) for series in plan.units.series for shape in series.shapes]
    digest = hashlib.sha256(_compact(entries).encode()).hexdigest()[:16]
    count = len(entries)
    while True:
        text = _compact({"units": entries[:count], **({"cut": len(entries) - count} if count < len(entries) else {})})
        if len(text.encode()) <= MAX_BYTES:
            return text, digest
        # Halving ends after a few rounds even for plans with thousands of shapes.
        count //= 2


def _entry(series: Series, shape: Shape) -> dict[str, Any]:
    names = f"{series.name}/{shape.first}" + (f"-{shape.end - 1}" if shape.end - shape.first > 1 else "")
    entry: dict[str, Any] = {
        "units": names,
        "strategy": "STRICT_PACK",
        "roles": list(shape.roles),
        "bundles": _bundles(shape),
    }
    if series.selector:
        entry["labels"] = dict(series.selector)
    if series.apart:
        entry["apart"] = series.apart[0]
    if series.topology_key:
        entry["topologyKey"] = series.topology_key
    if series.preferred_key:
        entry["preferredTopologyKey"] = series.preferred_key
    if series.spread:
        entry["spread"] = True
    return entry


def _bundles(shape: Shape) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for resources, sharers in shape.bundles:
        line = {"count": 1, "resources": _amounts(resources), "roles": sorted({role for role, _, _ in sharers})}
        if lines and all(lines[-1][key] == line[key] for key in ("resources", "roles")):
            lines[-1]["count"] += 1
        else:
            lines.append(line)
    return lines


def _amounts(resources: Resources) -> dict[str, str]:
    return {name: show_memory(amount) if name == "memory" else show(amount) for name, amount in resources}


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
