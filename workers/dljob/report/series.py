"""Samples as a page shows them: few points, and of many ranks the least, the middle and the greatest. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from dljob.runtime.journal.samples import ABSENT
from dljob.runtime.journal.samples import ACCOUNTS as LETTERS
from dljob.telemetry.job_samples import ACCOUNTS

MOST = 720
"""Points in time of a page's series: about one for two pixels of a wide screen."""
RANKS = 16
"""Ranks of a role whose series are shown one by one; more than that cannot be told apart in a chart."""
DIGITS = 6
"""Digits of a metric that are kept."""

ByRank: TypeAlias = Sequence[Sequence[float | None]]


def samples_part(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the part `samples` of a page; None without samples.

    Args:
        data: `Samples.data()`.
    """
    if not data["times"]:
        return None
    by_role = {part: _by_role(data[part]) for part in ("steps", "memory", "device") if part in data}
    progress = {name: [_short(value) for value in values] for name, values in data["progress"].items()}
    by_process = {part: data[part] for part in ("calls", "queues") if part in data}
    weights = {
        name: {"published": channel["published"], "held": _by_role(channel["held"])}
        for name, channel in data.get("weights", {}).items()
    }
    return {"times": data["times"], **by_role, "progress": progress, **by_process, "weights": weights}


def narrowed(by_rank: ByRank) -> list[list[float | None]] | dict[str, list[float | None]]:
    """Return a role's series: as they are, or of many ranks `low`, `middle` and `high` at each time."""
    if len(by_rank) <= RANKS:
        return [list(series) for series in by_rank]
    bands: dict[str, list[float | None]] = {"low": [], "middle": [], "high": []}
    for values in zip(*by_rank, strict=True):
        known = sorted(value for value in values if value is not None)
        for key, at in (("low", 0), ("middle", len(known) // 2), ("high", -1)):
            bands[key].append(known[at] if known else None)
    return bands


def lanes(data: Mapping[str, Any], end: float) -> dict[str, list[list[float]]] | None:
    """Return the lanes that samples tell, for a job whose journal is not at hand; None where they tell none."""
    index = {letter: ACCOUNTS.index(name) for name, letter in LETTERS.items()} | {ABSENT: -1}
    lanes_by_role: dict[str, list[list[float]]] = {}
    for role, series in data["accounts"].items():
        rows = lanes_by_role.setdefault(role, [])
        for at, letters in zip(data["times"], series, strict=True):
            rows.extend([] for _ in range(len(letters or "") - len(rows)))
            for rank, letter in enumerate(letters or ""):
                account = index.get(letter, -1)
                if not rows[rank] or rows[rank][-1] != account:
                    rows[rank] += [round(at, 3), account]
        for row in rows:
            row += [round(end, 3), -1]
    return lanes_by_role or None


def _by_role(part: Mapping[str, ByRank]) -> dict[str, Any]:
    return {role: narrowed(series) for role, series in part.items()}


def _short(value: float | None) -> float | None:
    return value if value is None else float(f"{value:.{DIGITS}g}")
