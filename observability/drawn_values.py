"""How values, axes and colours look: what Grafana does with units, thresholds and overrides, as far as we use them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

PALETTE = ("#73bf69", "#5794f2", "#ff9830", "#b877d9", "#f2cc0c", "#f2495c", "#37872d", "#8ab8ff", "#ffb357", "#ca95e5")
_CLOCK = (2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600)
_SCALES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def shown(value: float, unit: str) -> str:
    """A value in its unit."""
    if math.isnan(value):
        return "NaN"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit in ("s", "dtdurations"):
        return _duration(value) if unit == "dtdurations" else _seconds(value)
    text = _plain(value, thousands=unit == "short")
    after = unit.removeprefix("suffix:") if unit.startswith("suffix:") else ""
    return text + {"ops": " ops/s", "reqps": " req/s"}.get(unit, after)


def _plain(value: float, *, thousands: bool) -> str:
    if thousands and abs(value) >= 1000:
        return f"{value / 1000:.3g} K"
    return f"{value:.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:.3g}"


def _seconds(value: float) -> str:
    for size, name in _SCALES:
        if abs(value) >= size:
            return f"{value / size:.3g} {name}"
    return "0 s" if value == 0 else f"{value / 1e-6:.3g} µs"


def _duration(value: float) -> str:
    """The two largest parts."""
    total_seconds = int(value)
    parts = (
        (total_seconds // 86400, "d"),
        (total_seconds // 3600 % 24, "h"),
        (total_seconds // 60 % 60, "m"),
        (total_seconds % 60, "s"),
    )
    units_text = [f"{number}{name}" for number, name in parts if number]
    return " ".join(units_text[:2]) or "0s"


def ticks(top: float, unit: str = "", count: int = 4, *, whole_numbers: bool = False) -> list[float]:
    """Round numbers from 0 to at least `top`; of seconds above one, those of a clock."""
    if top <= 0:
        return [0.0, 1.0]
    raw = top / count
    size = 10 ** math.floor(math.log10(raw))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= raw * 0.999)
    if unit == "s" and raw > 1:
        step = next((clock for clock in _CLOCK if clock >= raw), step)
    if whole_numbers:
        step = math.ceil(step)
    return [n * step for n in range(math.ceil(top / step * 0.999) + 1)]


def legend(form: str, labels: Mapping[str, str]) -> str:
    """What a series is called."""
    if form == "__auto":
        inner = ", ".join(f"{key}={value}" for key, value in labels.items() if key != "__name__")
        return inner or labels.get("__name__", "value")
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: labels.get(match[1], ""), form)


def colour(name: str, place: int, config: Mapping[str, Any]) -> str:
    """The colour of a series: an override's, else the palette's."""
    for override in config.get("overrides", ()):
        matcher = override["matcher"]
        if matcher["id"] == "byRegexp" and re.search(matcher["options"].strip("/"), name):
            for setting in override["properties"]:
                if setting["id"] == "color":
                    return setting["value"]["fixedColor"]
    return PALETTE[place % len(PALETTE)]


def threshold(value: float, config: Mapping[str, Any]) -> str:
    """The colour of the threshold that a value has reached."""
    steps = config["defaults"]["thresholds"]["steps"]
    reached = [step["color"] for step in steps if step.get("value") is None or value >= step["value"]]
    return reached[-1]


def column(title: str, setting_id: str, config: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a unit, or links
    """A table column's setting, such as `unit` or `links`; None: it has none."""
    for override in config.get("overrides", ()):
        if override["matcher"] == {"id": "byName", "options": title}:
            for setting in override["properties"]:
                if setting["id"] == setting_id:
                    return setting["value"]
    return None
